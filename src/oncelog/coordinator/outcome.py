"""What an operation of a coordinator decided, and the contract between a shard and the shell that runs it.

A shard is everything that one partition of a coordinator's topic says. Decide, log, apply:

1. An operation checks and returns an `Outcome`. It changes nothing that a reader of the log would miss; it may change
   what lives in memory only, such as parked requests, timers, and which transition is pending.
2. Without `records`, the shell delivers `replies`.
3. Otherwise the shell appends `records` as one batch, a transactional one where there is a `producer`, and waits until
   it is committed. Batches are committed in the order in which they were appended.
4. Each committed record goes to `Shard.replay`, the only place where durable state changes: loading a log goes the same
   way. Then `replies` are delivered, and the effects that `replay` returned are carried out.
5. If the append fails, or is never committed, `Shard.append_failed` gives the outcome to carry out instead.

`server.coordinator_runtime` is the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Generic, Protocol, Self, TypeVar

from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_PRODUCER_ID, NO_TIMESTAMP, ProducerIdAndEpoch
from oncelog.core.named_tuple import NamedTuple

ReplyHandle = Callable[[Any], None]
"""Supplied with a request and called by the shell with the answer; a shard only carries it around."""


class Reply(NamedTuple):
    reply_to: ReplyHandle
    response: Any


class CoordinatorRecord(NamedTuple):
    """One record of `__transaction_state` or `__consumer_offsets`; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Outcome:
    replies: list[Reply] = field(default_factory=list)
    records: list[CoordinatorRecord] = field(default_factory=list)
    """To be appended as one batch; empty when there is nothing to log."""
    producer: ProducerIdAndEpoch | None = None
    """Whose transaction the records are part of."""
    notes: list[str] = field(default_factory=list)
    """For the operator's log."""
    compensations: list[Callable[[ErrorCode, int, Outcome], None]] = field(default_factory=list)
    """Called by `append_failed` with the error and the time, to bring memory back in line with the log."""

    def reply(self, reply_to: ReplyHandle, response: Any) -> Self:
        self.replies.append(Reply(reply_to, response))
        return self


E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Replayed(Generic[E_co]):
    """What applying a record led to."""

    effects: tuple[E_co, ...] = ()
    warning: str | None = None
    """Set when the record was skipped because it was not understood."""


class Shard(Protocol[E_co]):
    is_loaded: bool
    refusal: ErrorCode
    """The error of requests while it is not loaded."""

    def replay(
        self,
        record: CoordinatorRecord,
        *,
        offset: int,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        written_ms: int = NO_TIMESTAMP,
    ) -> Replayed[E_co]:
        """Apply a committed record, found at load or just written. Raises ValueError for an invalid one.

        `written_ms` is the time of day when it was written: see `plausible_ms`.
        """

    def replay_marker(self, producer_id: int, *, commit: bool) -> Replayed[E_co]:
        """Apply the marker of a transaction that records of this partition are part of."""

    def append_failed(self, outcome: Outcome, error: ErrorCode, reason: str, now_ms: int) -> Outcome:
        """What to carry out in place of `outcome`, whose records were not committed."""

    def unload(self) -> Outcome:
        """Another broker leads the partition: waiting requests get NOT_COORDINATOR."""
