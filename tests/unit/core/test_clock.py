from __future__ import annotations

from oncelog.core.clock import SteadyClock, VirtualScheduler


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


def test_a_steady_clock_goes_on_when_its_clock_is_set_back() -> None:
    class Settable:
        time_ms = 1_000

        def now_ms(self) -> int:
            return self.time_ms

    clock = Settable()
    steady = SteadyClock(clock)
    seen = []
    for time_ms in (1_000, 1_010, 500, 520, 100, 130):
        clock.time_ms = time_ms
        seen.append(steady.now_ms())
    assert seen == [1_000, 1_010, 1_010, 1_030, 1_030, 1_060]
