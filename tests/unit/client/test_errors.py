"""What may go wrong in a pool of processes is told to the process that asked."""

from __future__ import annotations

import copy
import pickle

import pytest

from oncelog.client.errors import (
    AbortableError,
    CommitFailed,
    ConfigurationError,
    ConnectionLost,
    CorruptBatch,
    ErrorCode,
    IllegalState,
    KafkaError,
    ProducerFenced,
    TimedOut,
    UnsupportedByBroker,
)
from oncelog.core.ids import TopicPartition

ERRORS = [
    KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic t"),
    KafkaError(ErrorCode.NOT_COORDINATOR),
    AbortableError(ErrorCode.INVALID_TXN_STATE, "aborted by its coordinator"),
    ProducerFenced(ErrorCode.PRODUCER_FENCED, "a newer producer owns shop"),
    CommitFailed(ErrorCode.ILLEGAL_GENERATION, "the group has gone on"),
    ConnectionLost("127.0.0.1:9092 closed the connection"),
    TimedOut("no answer for 5 s"),
    UnsupportedByBroker("it has no two-phase commit"),
    CorruptBatch(TopicPartition("t", 3), 10, 14, "its CRC does not match"),
    ConfigurationError("acks: expected 0, 1 or all", "acks"),
    IllegalState("there is no transaction"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_errors_are_the_same_in_another_process(error: Exception, again: object) -> None:
    if isinstance(error, KafkaError):
        error.in_doubt = True
    other = again(error)  # type: ignore[operator]
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
