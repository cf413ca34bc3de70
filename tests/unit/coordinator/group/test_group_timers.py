from __future__ import annotations

import random

from oncelog.coordinator.group.timers import TimerKey, TimerKind, TimerQueue

A, B, C = (TimerKey(TimerKind.SESSION, "g", name) for name in "abc")


def test_keys_come_due_in_the_order_of_their_deadlines() -> None:
    timers = TimerQueue()
    for key, deadline_ms in ((B, 20), (A, 10), (C, 30)):
        timers.schedule(key, deadline_ms)
    assert timers.next_deadline_ms() == 10
    assert [timers.pop_due(25), timers.pop_due(25), timers.pop_due(25)] == [A, B, None]
    assert timers.next_deadline_ms() == 30


def test_a_deadline_that_moved_away_does_not_fire_at_its_old_time() -> None:
    timers = TimerQueue()
    timers.schedule(A, 10)
    timers.schedule(A, 50)
    assert timers.pop_due(49) is None
    assert timers.next_deadline_ms() == 50
    assert timers.pop_due(50) == A
    assert timers.pop_due(1_000) is None


def test_a_deadline_that_moved_closer_fires_once_and_in_time() -> None:
    timers = TimerQueue()
    timers.schedule(A, 50)
    timers.schedule(A, 10)
    assert timers.pop_due(10) == A
    assert timers.pop_due(1_000) is None


def test_a_cancelled_timer_never_fires_and_can_be_set_again() -> None:
    timers = TimerQueue()
    timers.schedule(A, 10)
    timers.cancel(A)
    assert timers.next_deadline_ms() is None
    timers.schedule(A, 5)
    timers.cancel(A)
    timers.schedule(A, 7)
    assert timers.pop_due(6) is None
    assert timers.pop_due(7) == A


def test_heartbeats_do_not_grow_the_heap() -> None:
    timers = TimerQueue()
    for now_ms in range(10_000):
        timers.schedule(A, now_ms + 1_000)
        assert timers.pop_due(now_ms) is None
    assert len(timers._heap) <= 2


def test_agrees_with_a_plain_dictionary_of_deadlines() -> None:
    rng = random.Random(7)
    timers, model = TimerQueue(), dict[TimerKey, int]()
    now_ms = 0
    for _ in range(3_000):
        key = rng.choice((A, B, C))
        match rng.randrange(4):
            case 0 | 1:
                model[key] = now_ms + rng.randrange(20)
                timers.schedule(key, model[key])
            case 2:
                model.pop(key, None)
                timers.cancel(key)
            case _:
                now_ms += rng.randrange(8)
                due = {each for each, deadline_ms in model.items() if deadline_ms <= now_ms}
                fired = set()
                while (each := timers.pop_due(now_ms)) is not None:
                    fired.add(each)
                assert fired == due
                for each in due:
                    del model[each]
        assert timers.next_deadline_ms() == min(model.values(), default=None)
