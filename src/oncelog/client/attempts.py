"""The attempts of one call that changes something: an earlier one may have been carried out without an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncelog.client.errors import TimedOut

IN_DOUBT: Final = "an attempt got no clear answer, so this call may have done it"


class Attempts:
    def __init__(self) -> None:
        self._unanswered = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a request and its answer. One that ends in any other way than with an answer is in doubt."""
        self._unanswered += 1
        yield
        self._unanswered -= 1

    def doubt(self) -> None:
        """An answer came, and does not tell whether the request was carried out."""
        self._unanswered += 1

    @property
    def in_doubt(self) -> bool:
        return self._unanswered > 0


@contextmanager
def explained(attempts: Attempts | None) -> Iterator[None]:
    """Around all attempts of a change: giving up does not mean that nothing was done."""
    try:
        yield
    except TimedOut as error:
        if attempts is None or not attempts.in_doubt:
            raise
        raise TimedOut(f"{error.message}; {IN_DOUBT}", in_doubt=True) from error
