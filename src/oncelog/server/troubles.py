"""Troubles that last: what is tried again and again is told when it begins, not each time it fails."""

from __future__ import annotations

import logging
from collections.abc import Hashable


class Troubles:
    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self._log = log
        self._level = level
        self._lasting: set[Hashable] = set()

    def tell(self, subject: Hashable, message: str, *details: object, exc_info: bool = False) -> None:
        """Something is wrong with `subject`. While it is not `over`, later messages about it are for debugging."""
        level = logging.DEBUG if subject in self._lasting else self._level
        self._log.log(level, message, *details, exc_info=exc_info)
        self._lasting.add(subject)

    def over(self, subject: Hashable) -> None:
        self._lasting.discard(subject)
