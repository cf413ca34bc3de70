"""Errors of work that is tried again: the first one is logged at its level, repetitions for debugging only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable


class RepeatedErrors:
    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self._log = log
        self._level = level
        self._failing: set[Hashable] = set()

    def report(self, subject: Hashable, message: str, *details: object, exc_info: bool = False) -> None:
        """Log an error of `subject`. Until `clear`, further errors of the same subject are logged at DEBUG."""
        level = logging.DEBUG if subject in self._failing else self._level
        self._log.log(level, message, *details, exc_info=exc_info)
        self._failing.add(subject)

    def clear(self, subject: Hashable) -> None:
        """The work of `subject` has succeeded."""
        self._failing.discard(subject)

    def clear_if(self, is_over: Callable[[Hashable], bool]) -> None:
        """The work of these subjects has ended."""
        self._failing = {subject for subject in self._failing if not is_over(subject)}
