"""What an operation on a group decided: answers, possibly to several parked requests, and records to append first.

The contract with the shell that runs a `GroupShard`:

1. An operation is called with the request, the handle to answer it with, and the time. It returns an `Outcome`.
2. `records`, if there are any, are appended as one batch: a plain one, or a transactional one when `producer` is set.
   Right after the local append, before any other operation, each record is handed to `GroupShard.replay` together
   with its offset (and the producer id).
3. The replies are delivered when that batch is committed. A reply that needs no record of its own waits for the
   batches that were appended before it, so that nobody is told what a failover could still take back.
4. If the append fails, or is not committed in time, `GroupShard.append_failed` gives the outcome to deliver instead.
5. `notes` are for the operator's log.

A request that has to wait gets no reply now: its handle stays in the shard and comes back in the outcome of a later
operation or of `tick`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch

ReplyHandle = Callable[[Any], None]
"""Supplied by the shell with a request and called by it with the answer; the machine only carries it around."""


class Result(Protocol):
    def failed(self, error: ErrorCode) -> Self: ...


class Reply(NamedTuple):
    reply_to: ReplyHandle
    response: Result


@dataclass(slots=True)
class Outcome:
    replies: list[Reply] = field(default_factory=list)
    records: list[CoordinatorRecord] = field(default_factory=list)
    producer: ProducerIdAndEpoch | None = None
    notes: list[str] = field(default_factory=list)
    compensations: list[Callable[[ErrorCode, int, Outcome], None]] = field(default_factory=list)
    """Called by `GroupShard.append_failed` with the error and the time, to bring memory back in line with the log."""

    def reply(self, reply_to: ReplyHandle, response: Result) -> Outcome:
        self.replies.append(Reply(reply_to, response))
        return self
