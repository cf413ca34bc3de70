"""Verification guards (KIP-890): when one is needed, what takes it away, what it holds back."""

from __future__ import annotations

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.producer_state import Origin, VerificationGuard
from oncelog.storage.verification_guards import VerificationTable
from tests.unit.storage.producer_headers import DAY_MS, NOW_MS, PID, Partition, data


def expect_no_transaction(partition: Partition, guard: VerificationGuard | None, **batch: int) -> None:
    with pytest.raises(KafkaError) as caught:
        partition.send(data(txn=True, **batch), guard=guard)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("origin", [Origin.CLIENT, Origin.COORDINATOR])
def test_first_transactional_batch_needs_a_guard_and_later_ones_do_not(origin: Origin) -> None:
    partition = Partition()
    with pytest.raises(KafkaError) as caught:
        partition.send(data(0, txn=True), origin=origin)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    guard = partition.verify()
    assert partition.send(data(0, txn=True), guard=guard, origin=origin) == 0
    assert partition.verify() is None
    assert partition.send(data(1, txn=True), origin=origin) == 1


def test_replication_needs_no_guard() -> None:
    assert Partition().send(data(0, txn=True), origin=Origin.REPLICATION) == 0


def test_guard_is_not_asked_for_when_verification_is_switched_off() -> None:
    assert Partition(verification_enabled=False).send(data(0, txn=True)) == 0


def test_guard_of_another_producer_or_one_made_up_is_worthless() -> None:
    partition = Partition()
    partition.verify()
    expect_no_transaction(partition, partition.verify(pid=7))
    expect_no_transaction(partition, VerificationGuard(1))
    expect_no_transaction(partition, None)


def test_guard_is_shared_by_all_who_ask_and_spent_by_the_first_append() -> None:
    partition = Partition()
    first, second = partition.verify(sequence=0), partition.verify(sequence=1)
    assert first is second
    partition.send(data(0, txn=True), guard=first)
    partition.end()
    expect_no_transaction(partition, second, sequence=1)


def test_idempotent_batch_does_not_spend_the_guard() -> None:
    partition = Partition()
    guard = partition.verify(sequence=1)
    partition.send(data(0))
    assert partition.send(data(1, txn=True), guard=guard) == 1


def test_newer_epoch_needs_its_own_verification_while_the_older_transaction_is_open() -> None:
    partition = Partition()
    partition.send_verified(data(0, txn=True))
    assert partition.verify(epoch=1) is not None


@pytest.mark.parametrize(
    ("tv2", "asked_epoch", "marker_epoch", "survives"),
    [
        (False, 5, 5, False),
        (False, 5, 6, False),
        (True, 5, 6, False),
        (True, 6, 6, True),
    ],
    ids=["TV1 same epoch", "TV1 fenced", "TV2 end of the asked transaction", "TV2 end of the one before"],
)
def test_marker_takes_the_guard_unless_it_ended_the_previous_tv2_transaction(
    tv2: bool, asked_epoch: int, marker_epoch: int, survives: bool
) -> None:
    partition = Partition(tv2=tv2)
    partition.send_verified(data(0, epoch=5, txn=True))
    if asked_epoch == 5:
        partition.end(epoch=5)
    guard = partition.verify(epoch=asked_epoch)
    assert guard is not None
    partition.end(epoch=marker_epoch, tv=2 if tv2 else 0)
    entry = partition.state._verifications.entries.get(PID)
    assert (entry is not None and entry.guard is guard) == survives
    if survives:
        assert partition.send(data(0, epoch=asked_epoch, txn=True), guard=guard) == 2


def test_later_batch_must_not_overtake_one_whose_verification_is_retried() -> None:
    partition = Partition()
    partition.send(data(0, count=2))
    partition.verify(sequence=2)
    guard = partition.verify(sequence=3)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(3, txn=True), guard=guard)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "expected sequence 2, which waits for verification, first" in caught.value.message
    assert partition.send(data(2, txn=True), guard=guard) == 2
    assert partition.send(data(3, txn=True)) == 3


def test_verification_in_progress_holds_back_a_batch_that_is_next_in_sequence() -> None:
    """Sequence 2 of epoch 0 is in order, but the producer is about to begin a transaction with epoch 1."""
    partition = Partition()
    partition.send(data(0, count=2))
    partition.verify(epoch=1, sequence=0)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(2))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_unknown_tv1_producer_is_held_to_the_lowest_sequence_that_asked() -> None:
    partition = Partition()
    guard = partition.verify(sequence=4)
    partition.verify(sequence=2)
    with pytest.raises(KafkaError) as caught:
        partition.send(data(4, txn=True), guard=guard)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def table_after(*asked: tuple[int, int, bool]) -> tuple[int, int, bool]:
    table = VerificationTable()
    for epoch, sequence, supports_epoch_bump in asked:
        table.start(PID, epoch=epoch, sequence=sequence, supports_epoch_bump=supports_epoch_bump, now_ms=NOW_MS)
    entry = table.entries.get(PID)
    assert entry is not None
    return entry.epoch, entry.lowest_sequence, entry.supports_epoch_bump


@pytest.mark.parametrize(
    ("asked", "remembered"),
    [
        ([(3, 5, False), (3, 2, False)], (3, 2, False)),
        ([(3, 5, False), (3, 9, False)], (3, 5, False)),
        ([(3, 5, False), (4, 9, False)], (4, 9, False)),
        ([(3, 5, False), (2, 0, False)], (3, 5, False)),
        ([(3, 5, False), (4, 0, True)], (4, 0, True)),
    ],
    ids=["lower sequence", "higher sequence", "newer epoch", "older epoch", "upgrade to TV2"],
)
def test_entry_follows_the_lowest_sequence_of_the_newest_epoch(
    asked: list[tuple[int, int, bool]], remembered: tuple[int, int, bool]
) -> None:
    assert table_after(*asked) == remembered


def test_unverified_leftovers_expire() -> None:
    partition = Partition()
    guard = partition.verify(now_ms=NOW_MS)
    partition.state.expire(NOW_MS + DAY_MS - 1)
    assert partition.verify() is guard
    partition.state.expire(NOW_MS + DAY_MS)
    expect_no_transaction(partition, guard)
