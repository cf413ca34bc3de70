"""How the cleaner shares the interpreter with the thread that serves clients.

Python runs one thread at a time. A thread that computes gives way after five milliseconds if another one waits, which
a request meets several times: whenever its thread comes back from a system call. So the cleaner gives way by itself,
after a fraction of that, and long enough for the other thread to notice.
"""

from __future__ import annotations

import time
from typing import Final

WORK_S: Final = 0.0005
REST_S: Final = 0.0005


class CleaningStopped(Exception):
    """The cleaning is to stop."""


class Pace:
    """`yield_turn` is called by the thread that cleans, `stop` by any other."""

    def __init__(self, work_s: float = WORK_S, rest_s: float = REST_S) -> None:
        self._work_s = work_s
        self._rest_s = rest_s
        self._since_s = time.perf_counter()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def yield_turn(self) -> None:
        """Rest if it is time to. Raises CleaningStopped if there is to be no more work."""
        if self._stopped:
            raise CleaningStopped
        if time.perf_counter() - self._since_s >= self._work_s:
            time.sleep(self._rest_s)
            self._since_s = time.perf_counter()
