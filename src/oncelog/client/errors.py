"""What can go wrong, as few exceptions that say what to do next.

KafkaError                     a protocol error code and a text
  ConnectionLost               the broker went away; an answer may be lost. The client retries by itself
  TimedOut                     a bounded wait is over; the last failure is in the text
  UnsupportedByBroker          the broker does not speak what is asked for
  CorruptBatch                 records that cannot be read: seek past them, or set oncelog.skip.corrupt.batches
  CommitFailed                 the group has given the partitions to others: what was read may be read again
  TransactionError
    AbortableError             abort the transaction, then begin it again
    FatalError                 this producer is finished: close it
      ProducerFenced           a newer producer owns the transactional id
ConfigurationError             settings that are unknown or contradict each other
IllegalState                   a call that makes no sense now, such as a commit without a transaction
BufferExhausted                no room for more records within `max.block.ms`

`KafkaError.in_doubt` says of a call that changes something that it may have done so before it failed.
"""

from __future__ import annotations

from typing import Final

from oncelog.core.config import ConfigError
from oncelog.core.errors import RETRIABLE
from oncelog.core.errors import ErrorCode as ErrorCode
from oncelog.core.errors import KafkaError as KafkaError
from oncelog.core.ids import TopicPartition

SKIP_CORRUPT_BATCHES: Final = "oncelog.skip.corrupt.batches"


class ConnectionLost(KafkaError):
    """A broker went away, and with it answers that were due; what was asked may or may not have been done."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class TimedOut(KafkaError):
    """A bounded wait is over. The text names the last failure."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class UnsupportedByBroker(KafkaError):
    """The broker does not serve this, or not in a version that this client speaks."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


class CorruptBatch(KafkaError):
    """Records that cannot be read. To go on without them seek to `next_offset`, or set oncelog.skip.corrupt.batches."""

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int, reason: str) -> None:
        self.what = (
            f"topic {partition.topic}, partition {partition.partition}: offsets {offset} to {next_offset - 1} "
            f"cannot be read: {reason}"
        )
        """Where, and why."""
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.what}. Seek to offset {next_offset} to go on without them, or set {SKIP_CORRUPT_BATCHES}=true",
        )
        self.partition = partition
        self.offset = offset
        """The first that cannot be read."""
        self.next_offset = next_offset


class CommitFailed(KafkaError):
    """A commit was refused because this consumer is not the owner of the partitions any more."""


class TransactionError(KafkaError):
    """Something happened to the transaction that a retry does not mend."""


class AbortableError(TransactionError):
    """This transaction cannot be committed any more. Abort it, then begin it again."""


class FatalError(TransactionError):
    """This producer cannot go on. Close it and make a new one."""


class ProducerFenced(FatalError):
    """A newer producer with the same transactional id took over. Stop: its work is the valid one."""


class ConfigurationError(ConfigError):
    """A setting that is unknown, malformed, or contradicts another one; the text names it."""


class IllegalState(RuntimeError):
    """The call does not fit what the client is doing."""


class BufferExhausted(RuntimeError):
    """The producer's buffer stayed full for `max.block.ms`."""


def error_of(code: int, message: str) -> KafkaError:
    """The exception for a code from the wire; unknown codes of newer brokers are kept in the text."""
    try:
        return KafkaError(ErrorCode(code), message)
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}: {message}")


def is_retriable(error: BaseException) -> bool:
    """A batch that cannot be read is no better the second time."""
    return isinstance(error, KafkaError) and error.code in RETRIABLE and not isinstance(error, (TimedOut, CorruptBatch))
