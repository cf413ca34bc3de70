"""Work that comes back: run every so often until stopped, and tried again when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncelog.core.clock import Scheduler, Timer
from oncelog.core.errors import KafkaError

log = logging.getLogger("oncelog.server")


class RecurringWork:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._timers: dict[str, Timer] = {}
        self._stopped = False

    def every(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except (OSError, KafkaError):
                log.exception("recurring work '%s' failed and will be tried again", name)
            finally:
                if not self._stopped:
                    self._timers[name] = self._scheduler.call_later_ms(max(1, interval_ms), run)

        self._timers[name] = self._scheduler.call_later_ms(max(1, interval_ms), run)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
