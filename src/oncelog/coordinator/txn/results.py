"""What the operations answer. Each carries an error code and a `reason` in words: for the broker's log, and for the
`error_message` of those responses that have one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Self

from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_IDENTITY, ProducerIdAndEpoch, TopicPartition


@dataclass(frozen=True, slots=True)
class Result:
    error: ErrorCode = ErrorCode.NONE
    reason: str = ""

    @classmethod
    def failed(cls, error: ErrorCode, reason: str) -> Self:
        return cls(error=error, reason=reason)

    def with_error(self, error: ErrorCode, reason: str) -> Self:
        """The answer to give instead, because the records could not be logged or applied."""
        return type(self).failed(error, reason)


@dataclass(frozen=True, slots=True)
class InitProducerIdResult(Result):
    identity: ProducerIdAndEpoch = NO_IDENTITY
    ongoing: ProducerIdAndEpoch = NO_IDENTITY
    """The prepared transaction that was kept (KIP-939): OngoingTxnProducerId and OngoingTxnProducerEpoch."""


@dataclass(frozen=True, slots=True)
class PartitionsResult(Result):
    """The result of adding or verifying partitions. `error` is that of the request, `partitions` has one for each."""

    partitions: dict[TopicPartition, ErrorCode] = field(default_factory=dict)

    @classmethod
    def failed_for(cls, partitions: Iterable[TopicPartition], error: ErrorCode, reason: str) -> Self:
        return cls(error, reason, dict.fromkeys(partitions, error))

    def with_error(self, error: ErrorCode, reason: str) -> Self:
        return self.failed_for(self.partitions, error, reason)


@dataclass(frozen=True, slots=True)
class EndTxnResult(Result):
    identity: ProducerIdAndEpoch = NO_IDENTITY
    """What the client goes on with. Only EndTxn v5 carries it; without it the client keeps what it has."""


@dataclass(frozen=True, slots=True)
class IdResult(Result):
    """The result of work that the coordinator does on its own: completions, time-outs, expiry."""

    transactional_id: str = ""
    identity: ProducerIdAndEpoch = NO_IDENTITY

    def with_error(self, error: ErrorCode, reason: str) -> Self:
        return replace(self, error=error, reason=reason)
