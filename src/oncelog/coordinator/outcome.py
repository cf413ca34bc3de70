"""What an operation of a coordinator decided: an answer, and the records that must be committed before it is given.

Decide, log, apply. An operation checks and returns an `Outcome`; it changes nothing that a reader of the log would
miss. The shell then

1. parks the request when `wait_for` is set and there is room, to run the operation again once that id has settled
   (records, if there are any, are appended first: they are what makes the id settle);
2. without `records`, answers `response`;
3. otherwise appends `records` as one batch and waits until they are committed. Only then it hands them back to the
   machine, whose `replay` applies them, and answers `response`. If the append fails, the machine is told so and says
   which error to answer instead.

An id settles when its last record is applied, but also when an append fails: whoever is parked is looked at after both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from oncelog.core.ids import CoordinatorEpoch

R = TypeVar("R")

NO_COORDINATOR_EPOCH = CoordinatorEpoch(-1)


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """One record of `__transaction_state` or `__consumer_offsets`; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Outcome(Generic[R]):
    response: R
    records: list[CoordinatorRecord] = field(default_factory=list)
    """To be appended as one batch; empty when there is nothing to log."""
    transactional_id: str | None = None
    """Whose transition is pending while the records are in flight."""
    wait_for: str | None = None
    """The id that must settle before a retry of the operation can get another answer than `response`."""
    coordinator_epoch: CoordinatorEpoch = NO_COORDINATOR_EPOCH
    """The epoch under which this was decided. Records of another epoch must not be appended or applied."""
