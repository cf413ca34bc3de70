"""The outcome of an operation on a transactional id: one answer, and which id must settle first.

An id settles when its last record is applied, and when an append fails: waiting requests are tried after both.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oncelog.coordinator.outcome import Outcome
from oncelog.core.dataclass import dataclass

R = TypeVar("R")


@dataclass(slots=True, kw_only=True)
class TxnOutcome(Outcome, Generic[R]):
    response: R
    transactional_id: str | None = None
    """Whose transition is pending while the records are in flight."""
    wait_for: str | None = None
    """The id that must settle before a retry of the operation can get another answer than `response`. The shell may
    park the request until then. Records, if there are any, are appended first: they are what makes the id settle."""
