"""From Prepare* to Complete*: markers, what may become of them, and carrying on after a load."""

from __future__ import annotations

import pytest

from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.markers import MarkerReaction, reaction_to
from oncelog.coordinator.txn.records import encode_key, encode_record, encode_tombstone
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import CoordinatorEpoch
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    START_MS,
    TV0,
    TV2,
    Harness,
    described_partitions,
    identity,
    metadata,
    refusal_of,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741
CURRENT = identity(FIRST_PID, 5)


def decided(commit: bool = True) -> Harness:
    harness = Harness()
    harness.install(metadata(O))
    harness.end(CURRENT, commit=commit)
    return harness


def test_complete_is_logged_with_the_last_acknowledgement_and_not_before() -> None:
    harness = decided()
    (sent,) = harness.to_send
    harness.now_ms += 3
    first = harness.shard.markers_acknowledged(sent, [P0], harness.now_ms)
    assert not first.records
    assert described_partitions(harness.shard) == {P1}
    assert not harness.shard.is_settled(ID)
    second = harness.shard.markers_acknowledged(sent, [P1], harness.now_ms)
    assert second.transactional_id == ID
    assert second.response.reason == "committed on all partitions"
    harness.commit(second)
    assert (harness.logged.state, harness.logged.partitions) == (CC, frozenset())
    assert (harness.logged.start_ms, harness.logged.last_update_ms) == (START_MS, START_MS + 3)
    assert harness.shard.is_settled(ID)


def test_an_acknowledgement_twice_does_not_log_complete_twice() -> None:
    harness = decided()
    (sent,) = harness.to_send
    complete = harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms)
    assert not harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms).records
    harness.commit(complete)
    late = harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms)
    assert (late.response.error, late.records) == (ErrorCode.NOT_COORDINATOR, [])


@pytest.mark.parametrize("version", [TV0, TV2])
def test_a_late_acknowledgement_of_the_last_transaction_does_not_count_for_the_next(
    version: TransactionVersion,
) -> None:
    """Under TV0 the two have the same producer id and epoch, and an id does not tell them apart (KAFKA-16352)."""
    harness = Harness()
    harness.install(metadata(O))
    harness.end(CURRENT, commit=True, version=version)
    (stale,) = harness.to_send
    harness.write_markers()
    current = harness.value.client_identity
    harness.add(current, P0, version=version)
    harness.end(current, commit=True, version=version)
    assert harness.shard.markers_acknowledged(stale, [P0], harness.now_ms).response.error is ErrorCode.NOT_COORDINATOR
    assert described_partitions(harness.shard) == {P0}


def test_markers_that_are_given_up_leave_the_transaction_as_decided_until_a_reload() -> None:
    harness = decided()
    (sent,) = harness.to_send
    harness.shard.markers_acknowledged(sent, [P0], harness.now_ms)
    said = harness.shard.markers_given_up(sent, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert "'tx-1' (__transaction_state-20), producer id 1000 epoch 6: TRANSACTION_COORDINATOR_FENCED" in said
    assert "coordinator epoch 1" in said
    assert harness.value.state is PC
    assert harness.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.reload()
    harness.write_markers()
    assert harness.value.state is CC


def test_what_the_sender_does_about_each_code() -> None:
    by_reaction = {
        MarkerReaction.ACKNOWLEDGE: {0},
        MarkerReaction.RETRY: {3, 6, 7, 19, 20, 56},
        MarkerReaction.DROP: {35, 43},
        MarkerReaction.GIVE_UP: {47, 52},
    }
    for code in ErrorCode:
        expected = [reaction for reaction, codes in by_reaction.items() if code in codes]
        assert reaction_to(code) is (expected[0] if expected else MarkerReaction.BUG)


@pytest.mark.parametrize(
    ("error", "mapped"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_complete_that_could_not_be_logged_stays_pending_and_is_tried_again(
    error: ErrorCode, mapped: ErrorCode
) -> None:
    harness = decided()
    (sent,) = harness.to_send
    for _ in range(3):
        outcome = harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms)
        assert harness.fail(outcome, error) is mapped
        assert not harness.shard.is_settled(ID)
        assert harness.add(identity(FIRST_PID, 6)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.commit(harness.shard.markers_acknowledged(sent, (), harness.now_ms))
    assert harness.value.state is CC


def test_while_complete_cannot_be_logged_the_new_identity_of_a_rotation_is_not_mistaken_for_a_wrong_one() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    answered = harness.end(identity(55, 32766), commit=True).identity
    (sent,) = harness.to_send
    harness.fail(harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms), ErrorCode.REQUEST_TIMED_OUT)
    assert harness.add(answered, P0).error is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(("prepared", "completed"), [(PC, CC), (PA, CA)])
def test_after_a_load_decided_transactions_are_carried_on_under_the_new_coordinator_epoch(
    prepared: TxnState, completed: TxnState
) -> None:
    harness = Harness()
    harness.log = [
        encode_record("decided", metadata(prepared, client_version=TV2), TV2),
        encode_record("open", metadata(O), TV2),
        encode_record("done", metadata(CC), TV2),
    ]
    harness.coordinator_epoch = 6
    harness.reload()
    (sent,) = harness.to_send
    assert (sent.transactional_id, sent.coordinator_epoch, sent.producer_epoch) == ("decided", 7, 5)
    assert (sent.commit, sent.partitions, sent.transaction_version) == (prepared is PC, frozenset({P0, P1}), TV2)
    assert not harness.shard.is_settled("decided")
    harness.write_markers()
    assert harness.entry("decided").metadata.state is completed
    assert harness.entry("open").metadata.state is O


def test_the_last_record_of_a_key_wins_and_a_tombstone_removes() -> None:
    harness = Harness()
    harness.log = [
        encode_record("a", metadata(O), TV2),
        encode_record("b", metadata(O), TV2),
        encode_record("a", metadata(CC, epoch=9), TV0),
        encode_tombstone("b"),
        encode_tombstone("never seen"),
    ]
    harness.reload()
    assert harness.entry("a").metadata.state is CC
    assert refusal_of(harness.shard, "b") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    harness.now_ms += 10**12
    assert harness.shard.abort_timed_out(harness.now_ms) == []


def test_records_of_newer_brokers_are_skipped_and_told_of() -> None:
    shard = TxnShard(0, Harness().config, Harness().allocate)
    newer = CoordinatorRecord(encode_key("x"), b"\x00\x05whatever")
    assert "version 5" in (shard.replay(newer, offset=0, now_ms=START_MS).warning or "")
    shard.on_loaded(CoordinatorEpoch(0), START_MS)
    assert refusal_of(shard, "x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_while_loading_nothing_is_scanned() -> None:
    shard = TxnShard(0, Harness().config, Harness().allocate)
    record = encode_record(ID, metadata(O), TV2)
    shard.replay(record, offset=0, now_ms=START_MS)
    assert shard.abort_timed_out(START_MS + 10**9) == []
    assert shard.expire_ids(START_MS + 10**12) == []
    assert not shard.is_loaded


def test_after_unloading_late_results_are_turned_away() -> None:
    harness = decided()
    (sent,) = harness.to_send
    complete = harness.shard.markers_acknowledged(sent, [P0, P1], harness.now_ms)
    harness.shard.unload()
    assert harness.shard.markers_acknowledged(sent, [P0], harness.now_ms).response.error is ErrorCode.NOT_COORDINATOR
    assert harness.fail(complete, ErrorCode.NOT_LEADER_OR_FOLLOWER) is ErrorCode.NOT_COORDINATOR
    assert harness.init_outcome().response.error is ErrorCode.NOT_COORDINATOR
