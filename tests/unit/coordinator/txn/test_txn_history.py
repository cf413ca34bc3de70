"""Worked examples that people know, replayed on the coordinator."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.hashing import coordinator_partition, java_string_hash
from oncelog.core.ids import CoordinatorEpoch
from tests.unit.coordinator.txn.txn_harness import P0, P1, TIMEOUT_MS, TV0, TV2, Harness, identity


@pytest.mark.parametrize(
    ("transactional_id", "hashed", "partition"),
    [("first-transactional", 1476685612, 12), ("test-transactional-matt", -1260157965, 15)],
)
def test_example_1_where_an_id_lives(transactional_id: str, hashed: int, partition: int) -> None:
    assert java_string_hash(transactional_id) == hashed
    assert coordinator_partition(transactional_id, 50) == partition


@pytest.mark.parametrize("version", [TV0, TV2])
def test_example_1_two_producers_one_id(version: TransactionVersion) -> None:
    name = "first-transactional"
    harness = Harness()
    harness.shard = TxnShard(coordinator_partition(name, 50), TxnConfig(), harness.allocate)
    harness.shard.on_loaded(CoordinatorEpoch(0), harness.now_ms)

    first = harness.init(transactional_id=name)
    assert first.identity == identity(1000, 0)
    assert first.reason == (
        "transactional id 'first-transactional' (__transaction_state-12): initialised with producer id 1000 epoch 0"
    )
    harness.add(first.identity, P0, P1, transactional_id=name, version=version)

    second = harness.init_outcome(transactional_id=name)
    assert (second.response.error, second.wait_for) == (ErrorCode.CONCURRENT_TRANSACTIONS, name)
    harness.commit(second)
    (abort,) = harness.to_send
    assert (abort.commit, abort.partitions, abort.producer_epoch) == (False, frozenset({P0, P1}), 1)
    harness.write_markers()
    taken_over = harness.init(transactional_id=name).identity
    assert taken_over == identity(1000, 2), "by two: one to abort what was open, one for the new producer"

    for refused in (
        harness.add(first.identity, P0, transactional_id=name, version=version),
        harness.commit(harness.end_outcome(first.identity, commit=True, transactional_id=name, version=version)),
    ):
        assert refused.error is ErrorCode.PRODUCER_FENCED
        assert "'first-transactional' (__transaction_state-12), producer id 1000 epoch 0: fenced" in refused.reason
        assert "a newer producer took over" in refused.reason
    assert harness.add(taken_over, P0, transactional_id=name, version=version).error is ErrorCode.NONE


@pytest.mark.parametrize("version", [TV0, TV2])
def test_example_4_the_coordinator_dies_with_a_transaction_open_and_its_producer_goes_on(
    version: TransactionVersion,
) -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0, version=version)
    harness.reload()
    assert harness.to_send == []
    assert harness.shard.describe("tx-1").transaction_state == "Ongoing"
    assert harness.add(producer, P1, version=version).error is ErrorCode.NONE
    assert harness.end(producer, commit=True, version=version).error is ErrorCode.NONE
    harness.write_markers()
    assert harness.value.state is TxnState.COMPLETE_COMMIT


@pytest.mark.parametrize("version", [TV0, TV2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_example_4_the_coordinator_dies_after_the_decision_and_it_ends_as_logged(
    version: TransactionVersion, commit: bool, acknowledged: int
) -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0, P1, version=version)
    harness.end(producer, commit=commit, version=version)
    (sent,) = harness.to_send
    harness.shard.markers_acknowledged(sent, [P0, P1][:acknowledged], harness.now_ms)
    harness.reload()
    (again,) = harness.to_send
    assert (again.partitions, again.commit, again.producer_epoch) == (sent.partitions, commit, sent.producer_epoch)
    assert again.coordinator_epoch == sent.coordinator_epoch + 1
    harness.write_markers()
    assert harness.value.state is (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT)


@pytest.mark.parametrize("version", [TV0, TV2])
def test_example_4_the_coordinator_dies_before_the_decision_and_the_retry_decides(version: TransactionVersion) -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0, version=version)
    harness.end_outcome(producer, commit=True, version=version)
    harness.reload()
    assert harness.shard.describe("tx-1").transaction_state == "Ongoing"
    assert harness.end(producer, commit=True, version=version).error is ErrorCode.NONE
    harness.write_markers()
    assert harness.value.state is TxnState.COMPLETE_COMMIT


def test_example_4_nobody_retries_and_the_timeout_decides() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    harness.reload()
    harness.now_ms += TIMEOUT_MS + 1
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    harness.commit(outcome)
    harness.write_markers()
    assert harness.value.state is TxnState.COMPLETE_ABORT


def test_after_complete_the_id_stays_known() -> None:
    """Fencing needs it; only a week without use removes it."""
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    harness.end(producer, commit=True)
    harness.write_markers()
    assert harness.shard.describe("tx-1").transaction_state == "CompleteCommit"
    assert harness.log[-1].value is not None
