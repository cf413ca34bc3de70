"""Which errors end a transaction, and which its producer: one row per code.

Retriable codes never get here: they are retried until the deadline. A code without a row is fatal on the coordinator's
APIs and abortable on Produce, where the transaction can still be thrown away.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from oncelog.client.errors import (
    AbortableError,
    FatalError,
    KafkaError,
    ProducerFenced,
    TimedOut,
    TransactionError,
    error_of,
)
from oncelog.core.errors import ErrorCode


class Step(Enum):
    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn"
    OFFSETS = "TxnOffsetCommit"
    COMMIT = "EndTxn (commit)"
    ABORT = "EndTxn (abort)"
    PRODUCE = "Produce"


_EVERYWHERE: Final = frozenset(Step)
_NOT_ABORT: Final = _EVERYWHERE - {Step.ABORT}
_PRODUCE: Final = frozenset({Step.PRODUCE})
_ADDING: Final = frozenset({Step.ADD, Step.OFFSETS})

ABORTABLE: Final[dict[ErrorCode, frozenset[Step]]] = {
    ErrorCode.TRANSACTION_ABORTABLE: _NOT_ABORT,
    ErrorCode.INVALID_PRODUCER_EPOCH: _PRODUCE,
    ErrorCode.INVALID_TXN_STATE: _PRODUCE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: _PRODUCE,
    ErrorCode.UNKNOWN_PRODUCER_ID: _PRODUCE | {Step.ADD, Step.COMMIT},
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: frozenset({Step.INIT}),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _ADDING,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _ADDING | _PRODUCE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _ADDING | _PRODUCE,
    ErrorCode.OPERATION_NOT_ATTEMPTED: _ADDING,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: frozenset({Step.OFFSETS}),
    ErrorCode.ILLEGAL_GENERATION: frozenset({Step.OFFSETS}),
    ErrorCode.UNKNOWN_MEMBER_ID: frozenset({Step.OFFSETS}),
    ErrorCode.GROUP_ID_NOT_FOUND: frozenset({Step.OFFSETS}),
    ErrorCode.STALE_MEMBER_EPOCH: frozenset({Step.OFFSETS}),
    ErrorCode.FENCED_INSTANCE_ID: frozenset({Step.OFFSETS}),
}
"""Codes after which the transaction can be aborted and begun again, by the step that met them."""

_FATAL_PRODUCE: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_ADVICE: Final = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "transaction.timeout.ms is above transaction.max.timeout.ms of the brokers",
}
"""Where a new producer with the same settings would meet the same error."""
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


def transaction_error(step: Step, code: int, message: str) -> TransactionError:
    """The exception for a code that was not retried, with what to do in its text."""
    error = error_of(code, message)
    if _is_abortable(step, error.code):
        advice = "abort the transaction and begin it again"
        return AbortableError(error.code, f"{step.value}: {error.message}: {advice}")
    if error.code in _FENCED:
        advice = "a newer producer owns this transactional id, or the transaction timed out: stop this one"
        return ProducerFenced(error.code, f"{step.value}: {error.message}: {advice}")
    advice = _ADVICE.get(error.code, "close this producer and make a new one")
    return FatalError(error.code, f"{step.value}: {error.message}: {advice}")


def produce_error(error: KafkaError) -> TransactionError:
    """What a batch that was not delivered means for its transaction."""
    if isinstance(error, TransactionError):
        return error
    if isinstance(error, TimedOut):
        return AbortableError(error.code, f"{error.message}: abort the transaction and begin it again")
    return transaction_error(Step.PRODUCE, error.code, error.message)


def _is_abortable(step: Step, code: ErrorCode) -> bool:
    if step in ABORTABLE.get(code, ()):
        return True
    return step is Step.PRODUCE and code not in _FATAL_PRODUCE
