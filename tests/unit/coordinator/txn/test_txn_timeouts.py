"""Time-outs and expiry, and what a producer sees after its transaction was timed out, by protocol."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.metadata import TWO_PHASE_COMMIT_TIMEOUT_MS
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerIdAndEpoch
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    START_MS,
    TIMEOUT_MS,
    TV0,
    TV1,
    TV2,
    Harness,
    identity,
    metadata,
    refusal_of,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741
CURRENT = identity(FIRST_PID, 5)
WEEK_MS = 604_800_000


def timed_out(version: TransactionVersion, epoch: int = 5) -> Harness:
    harness = Harness(version=version)
    harness.install(metadata(O, epoch=epoch, producer_id=55))
    harness.now_ms += TIMEOUT_MS + 1
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    harness.commit(outcome)
    harness.write_markers()
    return harness


def test_a_transaction_is_aborted_only_after_more_than_its_timeout() -> None:
    harness = Harness()
    harness.install(metadata(O))
    assert harness.shard.abort_timed_out(START_MS + TIMEOUT_MS) == []
    harness.now_ms = START_MS + TIMEOUT_MS + 1
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    assert outcome.response.transactional_id == outcome.transactional_id == ID
    assert outcome.response.identity == CURRENT
    assert outcome.response.reason == (
        "transactional id 'tx-1' (__transaction_state-20), producer id 1000 epoch 5: "
        "the transaction timed out after 60000 ms and was aborted; it was open for 60001 ms"
    )
    assert harness.shard.abort_timed_out(harness.now_ms) == [], "it is under way already"
    harness.commit(outcome)
    assert (harness.value.state, harness.value.last_update_ms) == (PA, harness.now_ms)


@pytest.mark.parametrize("state", [E, PC, PA, CC, CA])
def test_only_open_transactions_time_out(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    assert harness.shard.abort_timed_out(START_MS + 10**9) == []


def test_a_transaction_of_a_clock_that_was_ahead_has_its_time_from_the_load_on_and_no_more() -> None:
    harness = Harness()
    harness.install(metadata(O, start_ms=START_MS + WEEK_MS))
    harness.reload()
    assert harness.shard.abort_timed_out(harness.now_ms + TIMEOUT_MS) == []
    assert len(harness.shard.abort_timed_out(harness.now_ms + TIMEOUT_MS + 1)) == 1


def test_neither_a_pending_one_nor_a_participant_of_a_two_phase_commit_times_out() -> None:
    harness = Harness()
    harness.install(metadata(O), pending=PC)
    assert harness.shard.abort_timed_out(START_MS + 10**9) == []
    harness.install(metadata(O, timeout_ms=TWO_PHASE_COMMIT_TIMEOUT_MS))
    assert harness.shard.abort_timed_out(START_MS + 10**13) == []


def test_the_clock_does_not_start_before_the_first_partition() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.now_ms += 10**7
    harness.add(producer, P0)
    assert harness.shard.abort_timed_out(harness.now_ms + TIMEOUT_MS) == []
    assert len(harness.shard.abort_timed_out(harness.now_ms + TIMEOUT_MS + 1)) == 1


def test_a_timeout_abort_that_could_not_be_logged_is_tried_at_the_next_scan() -> None:
    harness = Harness()
    harness.install(metadata(O))
    harness.now_ms += TIMEOUT_MS + 1
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    harness.fail(outcome, ErrorCode.NOT_ENOUGH_REPLICAS)
    (again,) = harness.shard.abort_timed_out(harness.now_ms)
    harness.commit(again)
    assert (harness.value.state, harness.value.producer_epoch) == (PA, 6)


def test_without_a_producer_id_at_hand_the_abort_waits_for_the_next_scan() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    harness.now_ms += TIMEOUT_MS + 1
    harness.allocation_error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no block yet")
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    assert (outcome.response.error, outcome.records) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    assert "not aborted yet, no block yet" in outcome.response.reason
    harness.allocation_error = None
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    assert outcome.records


@pytest.mark.parametrize(
    ("version", "epoch", "after", "last"),
    [
        (TV0, 5, identity(55, 6), -1),
        (TV1, 5, identity(55, 6), -1),
        (TV2, 5, identity(55, 6), 5),
        (TV0, 32766, identity(55, 32767), -1),
        (TV2, 32766, identity(FIRST_PID, 0), 32766),
    ],
)
def test_epochs_after_a_timeout_abort(
    version: TransactionVersion, epoch: int, after: ProducerIdAndEpoch, last: int
) -> None:
    harness = timed_out(version, epoch)
    assert harness.value.state is CA
    assert harness.value.client_identity == after
    assert harness.value.last_producer_epoch == last


# The table of section 7. Produce is the partition leader's part: its 47 follows from the epoch in the marker.


@pytest.mark.parametrize("server", [TV0, TV1])
def test_old_client_on_an_old_server_needs_a_new_producer(server: TransactionVersion) -> None:
    harness = timed_out(server)
    old = identity(55, 5)
    for commit in (True, False):
        result = harness.end(old, commit=commit, version=TV0)
        assert result.error is ErrorCode.PRODUCER_FENCED
        assert "the transaction timed out after 60000 ms and was aborted" in result.reason
    assert harness.init(old).error is ErrorCode.PRODUCER_FENCED
    assert harness.init().identity == identity(55, 7)


def test_old_client_on_a_tv2_server_recovers_with_its_old_epoch() -> None:
    harness = timed_out(TV2)
    old = identity(55, 5)
    for commit in (True, False):
        assert harness.end(old, commit=commit, version=TV0).error is ErrorCode.PRODUCER_FENCED
    assert harness.init(old).identity == identity(55, 6)


def test_old_client_on_a_tv2_server_does_not_if_the_coordinator_moved_meanwhile() -> None:
    harness = timed_out(TV2)
    harness.reload()
    result = harness.init(identity(55, 5))
    assert result.error is ErrorCode.PRODUCER_FENCED
    assert "moved on to producer id 55 epoch 6" in result.reason


def test_tv2_client_recovers_by_aborting() -> None:
    harness = timed_out(TV2)
    old = identity(55, 5)
    assert harness.end(old, commit=True).error is ErrorCode.PRODUCER_FENCED
    result = harness.end(old, commit=False)
    assert (result.error, result.identity) == (ErrorCode.NONE, identity(55, 6))
    assert harness.add(identity(55, 6), P0).error is ErrorCode.NONE


def test_who_was_fenced_by_a_timeout_is_told_so_even_after_a_newer_producer_came() -> None:
    harness = timed_out(TV2)
    harness.settle_and_init()
    old = harness.add(identity(55, 5))
    assert old.error is ErrorCode.PRODUCER_FENCED
    assert "the transaction timed out after 60000 ms and was aborted" in old.reason
    recovered = harness.add(identity(55, 6))
    assert recovered.error is ErrorCode.PRODUCER_FENCED
    assert "a newer producer took over with producer id 55 epoch 7" in recovered.reason


def test_the_memory_of_fences_is_bounded() -> None:
    harness = Harness()
    for _ in range(20):
        harness.init()
    assert len(harness.entry().fences) == 4


# hasFailedEpochFence: under TV0/1 a fence holds in memory even when it could not be logged.


@pytest.mark.parametrize("server", [TV0, TV1])
def test_a_fence_that_could_not_be_logged_holds_and_is_repeated_with_the_same_epoch(
    server: TransactionVersion,
) -> None:
    harness = Harness(version=server)
    harness.install(metadata(O))
    harness.now_ms += TIMEOUT_MS + 1
    for _ in range(3):
        (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
        harness.fail(outcome, ErrorCode.REQUEST_TIMED_OUT)
        refused = harness.end(CURRENT, commit=True, version=TV0)
        assert refused.error is ErrorCode.PRODUCER_FENCED
        assert "timed out after 60000 ms" in refused.reason
        assert harness.shard.describe(ID).producer_epoch == 6
    (outcome,) = harness.shard.abort_timed_out(harness.now_ms)
    harness.commit(outcome)
    assert harness.logged.producer_epoch == 6
    harness.write_markers()
    assert harness.value.producer_epoch == harness.entry().epoch_in_force == 6


def test_under_tv2_a_fence_that_could_not_be_logged_did_not_happen() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.init_outcome()
    harness.fail(outcome, ErrorCode.REQUEST_TIMED_OUT)
    assert harness.end(CURRENT, commit=True).identity == identity(FIRST_PID, 6)


# Expiry


@pytest.mark.parametrize("state", [E, CC, CA])
def test_an_idle_id_is_forgotten(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    assert harness.shard.expire_ids(START_MS + WEEK_MS - 1) == []
    harness.now_ms = START_MS + WEEK_MS
    (outcome,) = harness.shard.expire_ids(harness.now_ms)
    assert [record.value for record in outcome.records] == [None]
    assert outcome.response.reason.endswith("epoch 5: forgotten, it was not used for 604800000 ms")
    assert harness.add_outcome(CURRENT).wait_for == ID
    assert harness.shard.expire_ids(harness.now_ms) == [], "it is under way already"
    harness.commit(outcome)
    assert harness.shard.is_settled(ID)
    assert harness.add(CURRENT).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    harness.reload()
    assert refusal_of(harness.shard, ID) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("state", [O, PC, PA])
def test_an_id_with_a_transaction_is_never_forgotten(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    assert harness.shard.expire_ids(START_MS + 10 * WEEK_MS) == []


def test_a_tombstone_that_could_not_be_logged_leaves_the_id_usable() -> None:
    harness = Harness()
    harness.install(metadata(CC))
    (outcome,) = harness.shard.expire_ids(START_MS + WEEK_MS)
    harness.fail(outcome, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert harness.add(CURRENT).error is ErrorCode.NONE


def test_after_expiry_a_producer_may_come_back_with_what_it_had() -> None:
    harness = Harness()
    harness.install(metadata(CC, producer_id=55))
    harness.commit(harness.shard.expire_ids(START_MS + WEEK_MS)[0])
    assert harness.init(identity(55, 5)).identity == identity(FIRST_PID, 0)


def test_the_scan_for_timeouts_looks_at_open_transactions_only() -> None:
    """However many ids have finished theirs, and however many of those were forgotten."""
    harness = Harness()
    for _ in range(3):
        producer = harness.settle_and_init()
        harness.add(producer, P0)
        assert harness.shard._ongoing == {ID}
        harness.end(producer, commit=True)
        harness.write_markers()
        assert harness.shard._ongoing == set()
    harness.commit(harness.shard.expire_ids(START_MS + WEEK_MS)[0])
    assert harness.shard.abort_timed_out(START_MS + WEEK_MS) == []


def test_one_scan_expires_a_bounded_number_of_ids() -> None:
    harness = Harness(TxnConfig(expired_ids_per_scan_max=2))
    for transactional_id in ("a", "b", "c"):
        harness.install(metadata(CC), transactional_id=transactional_id)
    scans = [len(harness.shard.expire_ids(START_MS + WEEK_MS)) for _ in range(3)]
    assert scans == [2, 1, 0]
