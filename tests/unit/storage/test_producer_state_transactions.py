"""Markers, open transactions, the last stable offset, and the rules for batches inside and outside a transaction."""

from __future__ import annotations

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import EPOCH_MAX
from oncelog.core.invariant import InvariantError
from oncelog.protocol.batch import CONTROL_BIT, ControlMarker
from oncelog.storage.producer_state import (
    LATE_TRANSACTION_BUFFER_MS,
    CompletedTxn,
    Origin,
    PendingAppend,
    ProducerStatus,
)
from tests.unit.storage.producer_headers import DAY_MS, NOW_MS, PID, Partition, data, marker

OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
FENCED_COORDINATOR = ErrorCode.TRANSACTION_COORDINATOR_FENCED


def producer_at(epoch: int, *, is_open: bool, coordinator: int = 3) -> Partition:
    """A producer whose last marker had coordinator epoch 3 and the given epoch, with or without a transaction open."""
    partition = Partition()
    partition.end(epoch=epoch, coordinator=coordinator)
    if is_open:
        partition.send_verified(data(0, epoch=epoch, txn=True))
    return partition


MARKERS: list[tuple[str, int, bool, int, int, int, ErrorCode | None]] = [
    # name, stored epoch, transaction open, marker epoch, coordinator epoch, transaction version, expected
    ("TV0 same epoch ends the transaction", 5, True, 5, 3, 0, None),
    ("TV1 same epoch ends the transaction", 5, True, 5, 3, 1, None),
    ("TV0 newer epoch (a fencing abort)", 5, True, 6, 3, 0, None),
    ("TV0 older epoch", 5, True, 4, 3, 0, OLD_EPOCH),
    ("TV0 older epoch, nothing open", 5, False, 4, 3, 0, OLD_EPOCH),
    ("TV0 repeated", 5, False, 5, 3, 0, None),
    ("TV2 newer epoch ends the transaction", 5, True, 6, 3, 2, None),
    ("TV2 same epoch while one is open", 5, True, 5, 3, 2, OLD_EPOCH),
    ("TV2 same epoch, nothing open: repeated", 5, False, 5, 3, 2, None),
    ("TV2 older epoch", 5, True, 4, 3, 2, OLD_EPOCH),
    ("TV2 older epoch, nothing open", 5, False, 4, 3, 2, OLD_EPOCH),
    ("TV2 last epoch of all", EPOCH_MAX, True, EPOCH_MAX, 3, 2, None),
    ("TV2 one before the last epoch", EPOCH_MAX - 1, True, EPOCH_MAX - 1, 3, 2, OLD_EPOCH),
    ("a later version is as strict", 5, True, 5, 3, 3, OLD_EPOCH),
    ("newer coordinator", 5, True, 5, 4, 0, None),
    ("older coordinator", 5, True, 5, 2, 0, FENCED_COORDINATOR),
    ("older coordinator with a newer producer epoch", 5, True, 6, 2, 2, FENCED_COORDINATOR),
    ("the producer epoch is looked at first", 5, True, 4, 2, 0, OLD_EPOCH),
]


@pytest.mark.parametrize(
    ("stored", "is_open", "epoch", "coordinator", "tv", "expected"),
    [row[1:] for row in MARKERS],
    ids=[row[0] for row in MARKERS],
)
def test_marker(stored: int, is_open: bool, epoch: int, coordinator: int, tv: int, expected: ErrorCode | None) -> None:
    partition = producer_at(stored, is_open=is_open)
    if expected is None:
        completed = partition.end(epoch=epoch, coordinator=coordinator, tv=tv)
        assert (completed is not None) == is_open
        assert partition.state.first_undecided_offset is None
    else:
        with pytest.raises(KafkaError) as caught:
            partition.end(epoch=epoch, coordinator=coordinator, tv=tv)
        assert caught.value.code is expected
        assert "orders-0" in caught.value.message
        assert f"producer {PID} epoch {epoch}" in caught.value.message


@pytest.mark.parametrize(("epoch", "coordinator"), [(4, 3), (5, 2), (4, 2)])
def test_replicated_marker_is_never_rejected(epoch: int, coordinator: int, caplog: pytest.LogCaptureFixture) -> None:
    partition = producer_at(5, is_open=True)
    assert partition.end(epoch=epoch, coordinator=coordinator, tv=2, origin=Origin.REPLICATION) is not None
    assert "orders-0" in caplog.text


def test_marker_of_an_unknown_producer_is_accepted_and_remembered_for_fencing() -> None:
    partition = Partition()
    assert partition.end(epoch=7, coordinator=2, tv=2) is None
    assert partition.state.active_producers() == [ProducerStatus(PID, 7, -1, NOW_MS, 2, -1)]
    with pytest.raises(KafkaError) as caught:
        partition.send(data(0, epoch=6))
    assert caught.value.code is OLD_EPOCH


def test_marker_of_the_same_epoch_leaves_sequences_alone() -> None:
    partition = Partition()
    partition.send_verified(data(0, count=3, txn=True))
    partition.end(epoch=0)
    assert partition.send_verified(data(3, txn=True)) == 4


def test_an_emptied_marker_tells_the_epoch_that_it_was_left_for() -> None:
    """As in a log that is read again after a crash: the marker's epoch fences whoever has an older one."""
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    partition.end(epoch=0)
    header, _ = marker(epoch=1, offset=partition.end_offset)
    assert partition.state.apply(header._replace(records_count=0), now_ms=NOW_MS) is None
    assert [(each.epoch, each.last_sequence) for each in partition.state.active_producers()] == [(1, -1)]
    with pytest.raises(KafkaError) as caught:
        partition.send(data(1, epoch=0))
    assert caught.value.code is OLD_EPOCH


def test_other_control_types_change_nothing() -> None:
    partition = producer_at(5, is_open=True)
    before = partition.state.take_snapshot()
    header, _ = marker(epoch=9, offset=partition.end_offset)
    leader_change = ControlMarker(2, -1)
    for control in (None, leader_change):
        assert partition.state.check(header, origin=Origin.REPLICATION, control=control) is None
        assert partition.state.apply(header, control=control, now_ms=NOW_MS) is None
    assert partition.state.take_snapshot() == before
    assert partition.state.map_end_offset == header.next_offset
    assert header.attributes & CONTROL_BIT


def test_non_transactional_batch_while_a_transaction_is_open() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    with pytest.raises(KafkaError) as caught:
        partition.send(data(1))
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    partition.end()
    assert partition.send(data(1)) == 2


def test_non_transactional_batch_after_a_transactional_one_of_the_same_append() -> None:
    partition, pending = Partition(), PendingAppend()
    guard = partition.verify()
    assert partition.state.check(data(0, txn=True), origin=Origin.CLIENT, guard=guard, pending=pending) is None
    with pytest.raises(KafkaError) as caught:
        partition.state.check(data(1), origin=Origin.CLIENT, guard=guard, pending=pending)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_marker_and_data_of_one_append_are_seen_in_order() -> None:
    partition, pending = producer_at(5, is_open=True), PendingAppend()
    header, control = marker(epoch=6, coordinator=3)
    assert (
        partition.state.check(header, origin=Origin.COORDINATOR, control=control, marker_tv=2, pending=pending) is None
    )
    with pytest.raises(KafkaError) as caught:
        partition.state.check(data(1, epoch=5, txn=True), origin=Origin.COORDINATOR, pending=pending)
    assert caught.value.code is OLD_EPOCH


def test_transactional_batch_of_a_newer_epoch_joins_the_open_transaction_only_when_verified() -> None:
    """The marker of epoch 5 was lost for now: what it will end began at the first batch of epoch 5."""
    partition = producer_at(5, is_open=True)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(0, epoch=6, txn=True))
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    partition.send_verified(data(0, epoch=6, txn=True))
    assert partition.end(commit=False, epoch=7, coordinator=3) == CompletedTxn(PID, 1, 3, aborted=True)


def test_describe_producers_row() -> None:
    partition = Partition()
    partition.send_verified(data(0, count=3, epoch=2, txn=True, timestamp=NOW_MS + 5))
    assert partition.state.active_producers() == [ProducerStatus(PID, 2, 2, NOW_MS + 5, -1, 0)]
    partition.end(epoch=3, coordinator=9, tv=2)
    assert partition.state.active_producers() == [ProducerStatus(PID, 3, -1, NOW_MS, 9, -1)]


def test_last_stable_offset_follows_the_oldest_transaction() -> None:
    partition = Partition()
    state = partition.state
    assert state.first_unstable_offset is None
    for pid in (1, 2, 3):
        partition.send_verified(data(0, count=10, pid=pid, txn=True))
    assert (state.first_undecided_offset, state.first_unstable_offset) == (0, 0)
    partition.end(pid=2)
    partition.end(pid=1)
    assert (state.first_undecided_offset, state.first_unstable_offset) == (20, 0)
    state.on_high_watermark(31)
    assert state.first_unstable_offset == 0
    state.on_high_watermark(32)
    assert state.first_unstable_offset == 20
    partition.end(pid=3)
    assert (state.first_undecided_offset, state.first_unstable_offset) == (None, 20)
    state.on_high_watermark(33)
    assert state.first_unstable_offset is None


def test_unreplicated_transaction_stays_until_the_high_watermark_is_past_its_marker() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    partition.end()
    partition.state.on_high_watermark(1)
    assert partition.state.first_unstable_offset == 0
    partition.state.on_high_watermark(2)
    assert partition.state.first_unstable_offset is None


def test_transaction_index_value_is_the_oldest_other_transaction_else_past_the_marker() -> None:
    partition = Partition()
    for pid in (1, 2):
        partition.send_verified(data(0, pid=pid, txn=True))
    header, control = marker(commit=False, pid=1, offset=2)
    first = partition.state.apply(header, control=control, now_ms=NOW_MS)
    assert first == CompletedTxn(1, 0, 2, aborted=True)
    assert first is not None
    assert partition.state.lso_after(first) == 1
    assert partition.state.first_undecided_offset == 0, "the index entry comes first"
    partition.state.complete(first)
    header, control = marker(commit=False, pid=2, offset=3)
    second = partition.state.apply(header, control=control, now_ms=NOW_MS)
    assert second is not None
    assert partition.state.lso_after(second) == 4


def test_transaction_cannot_be_completed_twice() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    completed = partition.end()
    assert completed is not None
    with pytest.raises(InvariantError):
        partition.state.complete(completed)


def test_finished_transactions_leave_nothing_behind() -> None:
    partition = Partition()
    partition.send_verified(data(0, pid=1, txn=True))
    for sequence in range(1000):
        partition.send_verified(data(sequence, pid=2, txn=True))
        partition.end(pid=2)
        partition.state.on_high_watermark(partition.end_offset)
    assert len(partition.state._ongoing) == 1
    assert len(partition.state._unreplicated) == 0
    assert len(partition.state) == 2


def test_the_log_start_does_not_take_the_high_watermark_back() -> None:
    partition = Partition()
    for pid in (1, 2, 3):
        partition.send_verified(data(0, pid=pid, txn=True))
        partition.end(pid=pid)
    partition.state.on_high_watermark(6)
    partition.state.on_log_start_offset(1)
    assert partition.state.high_watermark == 6
    partition.state.on_log_start_offset(8)
    assert partition.state.high_watermark == 8


def test_a_held_back_high_watermark_keeps_only_transactions_that_can_be_the_oldest() -> None:
    partition = Partition()
    partition.send_verified(data(0, pid=1, txn=True))
    for sequence in range(100):
        partition.send_verified(data(sequence, pid=2, txn=True))
        partition.end(pid=2)
    partition.end(pid=1)
    assert [txn.producer_id for txn in partition.state._unreplicated] == [1]


def test_producer_with_an_open_transaction_never_expires() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    assert partition.state.expire(NOW_MS + 365 * DAY_MS) == 0
    partition.end()
    assert partition.state.expire(NOW_MS + 365 * DAY_MS) == 1


def test_late_transaction_is_one_past_the_longest_timeout_and_five_minutes() -> None:
    partition, timeout_ms = Partition(), 900_000
    due_ms = NOW_MS + timeout_ms + LATE_TRANSACTION_BUFFER_MS
    assert not partition.state.has_late_transaction(due_ms + 1, timeout_ms)
    partition.send_verified(data(0, txn=True))
    assert not partition.state.has_late_transaction(due_ms, timeout_ms)
    assert partition.state.has_late_transaction(due_ms + 1, timeout_ms)
    partition.end()
    assert not partition.state.has_late_transaction(due_ms + 1, timeout_ms)


def test_clear_forgets_everything_and_starts_at_the_given_offset() -> None:
    partition = producer_at(5, is_open=True)
    partition.verify(6)
    partition.state.clear(7)
    assert (len(partition.state), partition.state.map_end_offset) == (0, 7)
    assert partition.state.first_unstable_offset is None
    assert partition.state.check(data(3, epoch=1), origin=Origin.CLIENT) is None
