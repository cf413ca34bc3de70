"""Duplicates, epochs and sequences of data batches: what a partition accepts, in which order it looks."""

from __future__ import annotations

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import SEQUENCE_MAX
from oncelog.protocol.batch import BatchHeader
from oncelog.storage.producer_state import DuplicateBatch, Origin, PendingAppend
from tests.unit.storage.producer_headers import NOW_MS, PID, Partition, data

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


def partition_with(*history: BatchHeader) -> Partition:
    partition = Partition()
    for header in history:
        partition.send(header)
    return partition


def after_bumping_marker() -> Partition:
    """Epoch 5 is known from a TV2 marker only: the batches of epoch 4 have been forgotten."""
    partition = Partition()
    partition.send_verified(data(0, count=3, epoch=4, txn=True))
    partition.end(epoch=5, tv=2)
    return partition


KNOWN = [data(0, count=3, epoch=4), data(3, count=2, epoch=4)]

RULES: list[tuple[str, Partition, BatchHeader, ErrorCode | None]] = [
    ("an unknown producer may start anywhere", Partition(), data(17), None),
    ("the next sequence", partition_with(*KNOWN), data(5, epoch=4), None),
    ("a gap", partition_with(*KNOWN), data(6, epoch=4), OUT_OF_ORDER),
    ("a step back that is no exact duplicate", partition_with(*KNOWN), data(4, epoch=4), OUT_OF_ORDER),
    ("the same first sequence with another length", partition_with(*KNOWN), data(3, count=3, epoch=4), OUT_OF_ORDER),
    ("an older epoch", partition_with(*KNOWN), data(5, epoch=3), OLD_EPOCH),
    ("an older epoch at sequence 0", partition_with(*KNOWN), data(0, epoch=3), OLD_EPOCH),
    ("an older epoch with the numbers of a cached batch", partition_with(*KNOWN), data(3, count=2, epoch=3), OLD_EPOCH),
    ("a new epoch at 0", partition_with(*KNOWN), data(0, epoch=5), None),
    ("a new epoch that goes on counting", partition_with(*KNOWN), data(5, epoch=5), OUT_OF_ORDER),
    ("wrap-around to 0", partition_with(data(SEQUENCE_MAX)), data(0), None),
    ("2147483647 is not followed by 1", partition_with(data(SEQUENCE_MAX)), data(1), OUT_OF_ORDER),
    ("wrap-around inside a batch", partition_with(data(SEQUENCE_MAX - 1, count=4)), data(2), None),
    ("0 where nothing wrapped", partition_with(data(8)), data(0), OUT_OF_ORDER),
    ("the epoch of a bumping marker starts at 0", after_bumping_marker(), data(0, epoch=5), None),
    ("the epoch of a bumping marker does not go on counting", after_bumping_marker(), data(3, epoch=5), OUT_OF_ORDER),
    ("a bumping marker fences the epoch before", after_bumping_marker(), data(3, epoch=4), OLD_EPOCH),
    ("a batch without producer id", partition_with(*KNOWN), data(-1, pid=-1, epoch=-1), None),
]


@pytest.mark.parametrize(("partition", "header", "expected"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_data_batch_of_a_client(partition: Partition, header: BatchHeader, expected: ErrorCode | None) -> None:
    if expected is None:
        assert partition.state.check(header, origin=Origin.CLIENT) is None
    else:
        with pytest.raises(KafkaError) as caught:
            partition.state.check(header, origin=Origin.CLIENT)
        assert caught.value.code is expected


@pytest.mark.parametrize(
    ("origin", "expected"), [(Origin.CLIENT, OUT_OF_ORDER), (Origin.COORDINATOR, None), (Origin.REPLICATION, None)]
)
def test_only_clients_are_held_to_sequences(origin: Origin, expected: ErrorCode | None) -> None:
    partition = partition_with(data(0, count=3))
    if expected is None:
        assert partition.state.check(data(0), origin=origin) is None
    else:
        with pytest.raises(KafkaError):
            partition.state.check(data(7), origin=origin)


def test_coordinator_batches_are_still_held_to_epochs() -> None:
    partition = partition_with(data(0, epoch=4))
    with pytest.raises(KafkaError) as caught:
        partition.state.check(data(0, epoch=3), origin=Origin.COORDINATOR)
    assert caught.value.code is OLD_EPOCH


def test_replicated_batches_of_an_older_epoch_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    partition = partition_with(data(0, epoch=4))
    assert partition.state.check(data(9, epoch=3), origin=Origin.REPLICATION) is None
    assert "producer 1000 epoch 3 is fenced on orders-0: epoch 4 has been seen" in caplog.text


def test_each_of_the_last_five_batches_is_a_duplicate_and_the_sixth_is_not() -> None:
    partition = partition_with(*[data(2 * n, count=2, timestamp=NOW_MS + n) for n in range(6)])
    for n in range(1, 6):
        again = partition.send(data(2 * n, count=2))
        assert again == DuplicateBatch(2 * n, 2 * n + 1, NOW_MS + n)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(0, count=2))
    assert caught.value.code is OUT_OF_ORDER
    assert partition.end_offset == 12


def test_duplicate_that_wraps_around_is_found() -> None:
    partition = partition_with(data(SEQUENCE_MAX - 1, count=4))
    assert partition.send(data(SEQUENCE_MAX - 1, count=4)) == DuplicateBatch(0, 3, NOW_MS)


def test_batch_of_a_coordinator_displaces_the_ones_it_does_not_follow() -> None:
    """Else the second of these sequences would be both the next one and a duplicate."""
    partition = partition_with(data(7), data(8))
    partition.send(data(7), origin=Origin.COORDINATOR)
    assert partition.send(data(8)) == 3
    assert partition.send(data(7)) == DuplicateBatch(2, 2, NOW_MS)


def test_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    partition = partition_with(data(0, epoch=0), data(0, epoch=1))
    assert partition.send(data(0, epoch=1)) == DuplicateBatch(1, 1, NOW_MS)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(0, epoch=0))
    assert caught.value.code is OLD_EPOCH


def refusal_of(partition: Partition, header: BatchHeader, *, verified: bool) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        (partition.send_verified if verified else partition.send)(header)
    return caught.value.code


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_batch_is_not_taken_for_one_of_a_transaction_that_has_ended(is_reloaded: bool) -> None:
    """librdkafka gives the number of a record that was aborted without an answer to the next one (TV0/1)."""
    partition = Partition()

    def go_on() -> None:
        if is_reloaded:
            snapshot = partition.state.take_snapshot()
            partition.state.load_snapshot(snapshot, NOW_MS, end_offset=partition.end_offset)

    partition.send_verified(data(0, txn=True))
    partition.end(commit=False)
    go_on()
    assert refusal_of(partition, data(0, txn=True), verified=False) is ErrorCode.INVALID_TXN_STATE
    assert partition.send_verified(data(1, txn=True)) == 2
    go_on()
    assert partition.send(data(1, txn=True)) == DuplicateBatch(2, 2, NOW_MS), "one of the open transaction is known"
    assert refusal_of(partition, data(0, txn=True), verified=False) is OUT_OF_ORDER
    partition.end()
    go_on()
    assert refusal_of(partition, data(1, txn=True), verified=True) is OUT_OF_ORDER


def test_producers_do_not_share_sequences() -> None:
    partition = partition_with(data(0, pid=1), data(0, pid=2), data(1, pid=1))
    assert [row.last_sequence for row in partition.state.active_producers()] == [1, 0]


def test_check_changes_nothing() -> None:
    partition = partition_with(data(0))
    before = partition.state.take_snapshot()
    for _ in range(2):
        assert partition.state.check(data(0, epoch=3), origin=Origin.CLIENT) is None
    assert partition.state.take_snapshot() == before


def test_several_batches_of_one_append_are_checked_against_each_other() -> None:
    partition, pending = partition_with(data(0)), PendingAppend()
    for header in (data(1, count=2), data(3), data(0, epoch=1)):
        assert partition.state.check(header, origin=Origin.CLIENT, pending=pending) is None
    with pytest.raises(KafkaError) as caught:
        partition.state.check(data(4), origin=Origin.CLIENT, pending=pending)
    assert caught.value.code is OLD_EPOCH
    assert partition.state.check(data(1), origin=Origin.CLIENT) is None


def test_check_of_several_batches_changes_nothing_but_the_pending_append() -> None:
    partition, pending = partition_with(data(0)), PendingAppend()
    before = partition.state.take_snapshot()
    for sequence in range(1, 4):
        partition.state.check(data(sequence), origin=Origin.CLIENT, pending=pending)
    assert partition.state.take_snapshot() == before


def test_the_same_batch_twice_in_one_append_is_out_of_order() -> None:
    partition, pending = Partition(), PendingAppend()
    assert partition.state.check(data(0), origin=Origin.CLIENT, pending=pending) is None
    with pytest.raises(KafkaError) as caught:
        partition.state.check(data(0), origin=Origin.CLIENT, pending=pending)
    assert caught.value.code is OUT_OF_ORDER


def test_duplicate_is_found_in_an_append_of_several_batches() -> None:
    partition, pending = partition_with(data(0, count=2)), PendingAppend()
    duplicate = partition.state.check(data(0, count=2), origin=Origin.CLIENT, pending=pending)
    assert duplicate == DuplicateBatch(0, 1, NOW_MS)


def test_one_guard_lets_all_batches_of_an_append_in() -> None:
    partition, pending = Partition(tv2=True), PendingAppend()
    guard = partition.verify()
    for sequence in range(3):
        header = data(sequence, txn=True)
        assert partition.state.check(header, origin=Origin.CLIENT, guard=guard, pending=pending) is None


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (data(5, epoch=3), "producer 1000 epoch 3 is fenced on orders-0: epoch 4 has been seen"),
        (data(7, epoch=4), "producer 1000 epoch 4 sent sequence 7 out of order on orders-0: expected sequence 5"),
        (data(7, epoch=6), "producer 1000 epoch 6 sent sequence 7 out of order on orders-0: expected sequence 0 for"),
        (data(0, epoch=4, txn=True), "producer 1000 epoch 4 has no transaction open and none verified on orders-0"),
    ],
)
def test_rejection_names_partition_producer_epoch_and_expectation(header: BatchHeader, text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        partition_with(*KNOWN).send(header)
    assert text in caught.value.message


def test_backfill_with_old_timestamps_keeps_its_protection_while_it_writes() -> None:
    partition = partition_with(data(0, timestamp=1))
    assert partition.state.expire(NOW_MS + 1) == 0
    assert partition.send(data(0)) == DuplicateBatch(0, 0, 1)


def test_idle_producers_expire_at_the_configured_age() -> None:
    partition = Partition(expiration_ms=1000)
    partition.send(data(0))
    partition.send(data(0, pid=7, timestamp=NOW_MS + 1))
    assert partition.state.expire(NOW_MS + 999) == 0
    assert partition.state.expire(NOW_MS + 1000) == 1
    assert [row.producer_id for row in partition.state.active_producers()] == [7]
    assert partition.state.check(data(9, pid=PID), origin=Origin.CLIENT) is None


def test_records_deleted_from_the_front_do_not_make_a_producer_unknown() -> None:
    partition = partition_with(data(0, count=5))
    partition.state.on_log_start_offset(5)
    with pytest.raises(KafkaError):
        partition.send(data(9))
    partition.state.on_log_start_offset(8)
    assert partition.state.map_end_offset == 8
