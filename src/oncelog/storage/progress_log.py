"""A line in the log for work that takes long: one per second, and none for what is done sooner."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 1.0

logger = logging.getLogger("oncelog.storage")


class ProgressLog:
    def __init__(self, what: str, total: int, unit: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._clock_s = clock_s
        self._done = 0
        self._logged_s = clock_s()

    def add(self, amount: int) -> None:
        self._done += amount
        now_s = self._clock_s()
        if now_s - self._logged_s >= INTERVAL_S:
            self._logged_s = now_s
            logger.info("%s: %d of %d %s done", self._what, self._done, self._total, self._unit)
