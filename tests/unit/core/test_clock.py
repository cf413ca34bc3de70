from __future__ import annotations

from oncelog.core.clock import (
    JUMP_BELIEVED_AFTER_MS,
    JUMP_MS,
    CautiousClock,
    SteadyClock,
    plausible_ms,
)
from tests.virtual_clock import VirtualScheduler

DAY_MS = 86_400_000


def test_timers_run_in_order_at_their_own_time() -> None:
    scheduler = VirtualScheduler(1000)
    seen: list[tuple[str, int]] = []
    scheduler.call_later_ms(20, lambda: seen.append(("late", scheduler.now_ms())))
    scheduler.call_later_ms(10, lambda: scheduler.call_later_ms(5, lambda: seen.append(("nested", scheduler.now_ms()))))
    cancelled = scheduler.call_later_ms(1, lambda: seen.append(("never", 0)))
    cancelled.cancel()
    scheduler.advance_ms(100)
    assert seen == [("nested", 1015), ("late", 1020)]
    assert scheduler.now_ms() == 1100
    assert scheduler.next_due_ms() is None


def test_a_steady_clock_goes_on_when_the_wall_clock_is_set() -> None:
    clock = VirtualScheduler(1_000)
    steady = SteadyClock(clock)
    for wrong_by_ms in (0, -500, DAY_MS, -DAY_MS, 0):
        clock.wrong_by_ms = wrong_by_ms
        before_ms = steady.now_ms()
        clock.advance_ms(10)
        assert steady.now_ms() == before_ms + 10
    assert steady.now_ms() == 1_050


def test_a_cautious_clock_does_not_follow_a_jump_that_passes() -> None:
    clock = VirtualScheduler()
    jumps: list[int] = []
    cautious = CautiousClock(clock, jumps.append)
    clock.advance_ms(DAY_MS)
    assert cautious.now_ms() == clock.now_ms()
    clock.wrong_by_ms = 8 * DAY_MS
    for _ in range(3):
        clock.advance_ms(1_000)
        assert cautious.now_ms() == clock.monotonic_ms()
    clock.wrong_by_ms = 0
    assert cautious.now_ms() == clock.now_ms()
    assert jumps == [8 * DAY_MS]


def test_a_cautious_clock_believes_what_lasts_and_what_goes_back() -> None:
    clock = VirtualScheduler()
    cautious = CautiousClock(clock)
    clock.wrong_by_ms = 8 * DAY_MS
    assert cautious.now_ms() == clock.monotonic_ms()
    clock.advance_ms(JUMP_BELIEVED_AFTER_MS - 1)
    assert cautious.now_ms() == clock.monotonic_ms()
    clock.advance_ms(1)
    assert cautious.now_ms() == clock.now_ms() == clock.monotonic_ms() + 8 * DAY_MS
    clock.wrong_by_ms = -DAY_MS
    assert cautious.now_ms() == clock.now_ms()


def test_a_time_far_behind_that_of_its_record_does_not_count() -> None:
    assert plausible_ms(1_000, 1_000 + JUMP_MS) == 1_000
    assert plausible_ms(1_000, DAY_MS) == DAY_MS
    assert plausible_ms(DAY_MS, 1_000) == DAY_MS
