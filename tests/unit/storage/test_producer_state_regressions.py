"""Bugs that Apache Kafka's partition leader has had, each as the story that showed it."""

from __future__ import annotations

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.producer_state import CompletedTxn
from tests.unit.storage.producer_headers import DAY_MS, NOW_MS, PID, Partition, data


def rejected_with(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, match=code.name)


def test_KAFKA_18202_non_zero_first_sequence_without_state_under_tv2() -> None:
    """The first batch was lost, the second must not become the beginning of the transaction."""
    partition = Partition(tv2=True)
    guard = partition.verify(sequence=5)
    with rejected_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        partition.send(data(5, txn=True), guard=guard)
    assert partition.send_verified(data(0, count=5, txn=True)) == 0
    assert partition.send(data(5, txn=True)) == 5


def test_KAFKA_18202_state_that_expired_or_was_reset_counts_as_none() -> None:
    expired = Partition(tv2=True)
    expired.send_verified(data(0, txn=True))
    expired.end(epoch=1, tv=2)
    expired.state.expire(NOW_MS + DAY_MS)
    reset = Partition(tv2=True)
    reset.send_verified(data(0, txn=True))
    reset.end(epoch=1, tv=2)
    for partition in (expired, reset):
        with rejected_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            partition.send_verified(data(1, epoch=1, txn=True))
        assert partition.send_verified(data(0, epoch=1, txn=True)) == partition.end_offset - 1


def test_KAFKA_18202_does_not_touch_older_clients() -> None:
    assert Partition(tv2=False).send_verified(data(5, txn=True)) == 0


def test_KAFKA_19446_late_tv2_marker_does_not_end_the_next_transaction() -> None:
    """The marker (epoch 1) of transaction A is delayed, written a second time, and meets transaction B of epoch 1."""
    partition = Partition(tv2=True)
    partition.send_verified(data(0, epoch=0, txn=True))
    partition.end(epoch=1, tv=2)
    partition.send_verified(data(0, epoch=1, txn=True))
    with rejected_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.end(commit=False, epoch=1, tv=2)
    assert partition.state.first_undecided_offset == 2
    assert partition.end(epoch=2, tv=2) == CompletedTxn(PID, 2, 3, aborted=False)


def test_KAFKA_19446_older_protocol_cannot_tell_and_stays_lenient() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    partition.end()
    partition.send_verified(data(1, txn=True))
    assert partition.end(commit=False) is not None


def test_KAFKA_19999_repeated_tv2_marker_is_accepted_when_nothing_is_open() -> None:
    """The coordinator reloads its Prepare state and sends again, with a higher coordinator epoch."""
    partition = Partition(tv2=True)
    partition.send_verified(data(0, txn=True))
    assert partition.end(epoch=1, tv=2, coordinator=4) == CompletedTxn(PID, 0, 1, aborted=False)
    partition.state.on_high_watermark(2)
    assert partition.end(epoch=1, tv=2, coordinator=5) is None
    assert partition.state.first_unstable_offset is None
    assert partition.send_verified(data(0, epoch=1, txn=True)) == 3


def test_KAFKA_18042_stale_epoch_is_refused_before_the_coordinator_is_asked() -> None:
    partition = Partition()
    partition.end(epoch=6)
    with rejected_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.verify(epoch=5)
    assert partition.verify(epoch=6) is not None


def test_KAFKA_19690_stale_epoch_is_refused_before_the_guard_is_missed() -> None:
    """The epoch moved on while the coordinator was asked: 47 lets the client abort, 48 would kill it."""
    partition = Partition()
    guard = partition.verify(epoch=5)
    partition.end(commit=False, epoch=6)
    with rejected_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.send(data(0, epoch=5, txn=True), guard=guard)


def test_KAFKA_17754_delayed_produce_does_not_open_a_transaction_after_its_marker() -> None:
    """TV0/1, same epoch throughout: the guard is all that tells the old transaction from the next."""
    partition = Partition()
    delayed = partition.verify()
    partition.end(commit=False)
    with rejected_with(ErrorCode.INVALID_TXN_STATE):
        partition.send(data(0, txn=True), guard=delayed)
    assert partition.state.first_undecided_offset is None


def test_KAFKA_17754_guard_of_the_ended_transaction_is_not_the_guard_of_the_next() -> None:
    partition = Partition()
    delayed = partition.verify()
    partition.end(commit=False)
    current = partition.verify()
    with rejected_with(ErrorCode.INVALID_TXN_STATE):
        partition.send(data(0, txn=True), guard=delayed)
    assert partition.send(data(0, txn=True), guard=current) == 1


def test_KAFKA_17754_under_tv2_the_epoch_fences_the_delayed_produce_even_with_the_next_transaction_open() -> None:
    partition = Partition(tv2=True)
    partition.send_verified(data(0, txn=True))
    partition.end(epoch=1, tv=2)
    partition.send_verified(data(0, epoch=1, txn=True))
    with rejected_with(ErrorCode.INVALID_PRODUCER_EPOCH):
        partition.send(data(1, epoch=0, txn=True))
