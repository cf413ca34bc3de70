"""Bugs that Apache Kafka's coordinator had after 4.0, each as a test of ours."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.records import encode_record
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    TIMEOUT_MS,
    TV0,
    TV1,
    TV2,
    Harness,
    identity,
    metadata,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741


def test_kafka_18401_an_empty_tv2_transaction_can_be_ended_and_another_begun() -> None:
    """A commit of nothing is refused without harm (clients do not send it); an abort of nothing succeeds."""
    harness = Harness()
    producer = harness.init().identity
    assert harness.end(producer, commit=True).error is ErrorCode.INVALID_TXN_STATE
    following = harness.end(producer, commit=False).identity
    harness.write_markers()
    assert harness.add(following, P0).error is ErrorCode.NONE
    assert harness.end(following, commit=True).error is ErrorCode.NONE


def test_kafka_18575_a_new_transaction_that_races_the_end_of_the_last_waits_for_it() -> None:
    """The client has its bumped epoch before the markers are written."""
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    following = harness.end(producer, commit=True).identity
    early = harness.add_outcome(following, P1)
    assert (early.response.error, early.wait_for) == (ErrorCode.CONCURRENT_TRANSACTIONS, ID)
    assert not harness.shard.is_settled(ID)
    harness.write_markers()
    assert harness.shard.is_settled(ID)
    assert harness.add(following, P1).error is ErrorCode.NONE


def test_kafka_18654_waiting_is_told_apart_from_refusal_so_that_no_client_needs_to_back_off() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    harness.end(producer, commit=True)
    assert harness.add_outcome(identity(FIRST_PID, 1)).wait_for == ID
    harness.write_markers()
    assert harness.add_outcome(producer).wait_for is None, "fenced: waiting would not help"


def test_kafka_18660_epoch_overflow_returns_the_new_identity_and_does_not_fence_its_owner() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    answered = harness.end(identity(55, 32766), commit=True).identity
    assert answered == identity(FIRST_PID, 0)
    for outcome in (harness.add_outcome(answered), harness.end_outcome(answered, commit=False)):
        assert outcome.response.error is ErrorCode.CONCURRENT_TRANSACTIONS, "pending comes before the producer id"
    harness.write_markers()
    assert harness.add(answered, P0).error is ErrorCode.NONE
    assert harness.end(answered, commit=True).identity == identity(FIRST_PID, 1)


@pytest.mark.parametrize("epoch", [5, 32765, 32766])
def test_kafka_19367_init_producer_id_over_an_open_transaction_bumps_once(epoch: int) -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=epoch, producer_id=55))
    harness.init()
    assert harness.value.transaction_identity == identity(55, epoch + 1)
    harness.write_markers()
    assert harness.init().error is ErrorCode.NONE


def test_kafka_20090_a_timeout_at_the_last_epoch_rotates_the_producer_id() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    harness.now_ms += TIMEOUT_MS + 1
    harness.commit(harness.shard.abort_timed_out(harness.now_ms)[0])
    assert (harness.logged.transaction_identity, harness.logged.next_producer_id) == (identity(55, 32767), FIRST_PID)
    harness.write_markers()
    late_abort = harness.end(identity(55, 32766), commit=False)
    assert (late_abort.error, late_abort.identity) == (ErrorCode.NONE, identity(FIRST_PID, 0))
    assert harness.add(identity(FIRST_PID, 0), P0).error is ErrorCode.NONE


def test_kafka_20090_a_transaction_already_stuck_at_the_reserved_epoch_gets_out() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32767, producer_id=55))
    harness.now_ms += TIMEOUT_MS + 1
    harness.commit(harness.shard.abort_timed_out(harness.now_ms)[0])
    harness.write_markers()
    assert (harness.value.state, harness.value.client_identity) == (CA, identity(FIRST_PID, 0))


@pytest.mark.parametrize("at", ["prepared", "completed"])
def test_kafka_20310_a_failover_during_a_rotation_does_not_strand_the_producer(at: str) -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    answered = harness.end(identity(55, 32766), commit=True).identity
    if at == "completed":
        harness.write_markers()
    harness.reload()
    harness.write_markers()
    assert harness.value.client_identity == answered
    retried = harness.end(identity(55, 32766), commit=True)
    assert (retried.error, retried.identity) == (ErrorCode.NONE, answered)
    assert harness.add(answered, P0).error is ErrorCode.NONE


def test_kafka_20310_what_an_older_broker_left_without_the_next_producer_id_is_completed_and_rotated_later() -> None:
    harness = Harness()
    harness.log = [encode_record(ID, metadata(PC, epoch=32767, producer_id=55, client_version=TV2), TV2)]
    harness.reload()
    harness.write_markers()
    assert harness.value.client_identity == identity(55, 32767)
    assert harness.init().identity == identity(FIRST_PID, 0)


def test_kafka_20785_a_commit_that_lost_the_race_with_a_timeout_is_fenced_and_not_told_a_fatal_state() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    harness.now_ms += TIMEOUT_MS + 1
    harness.commit(harness.shard.abort_timed_out(harness.now_ms)[0])
    harness.write_markers()
    result = harness.end(producer, commit=True)
    assert result.error is ErrorCode.PRODUCER_FENCED
    assert "the transaction timed out after 60000 ms and was aborted" in result.reason
    assert harness.end(producer, commit=False).error is ErrorCode.NONE


def test_kafka_17754_under_tv2_a_delayed_end_does_not_join_the_next_transaction() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    following = harness.end(producer, commit=True).identity
    harness.write_markers()
    harness.add(following, P0)
    assert harness.end(producer, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert harness.end(producer, commit=False).error is ErrorCode.PRODUCER_FENCED
    assert harness.value.state is O


def test_kafka_17754_stays_open_for_clients_of_the_old_protocol() -> None:
    """Nothing in their requests tells a delayed end from the next one. Stated here so that nobody relies on it."""
    harness = Harness()
    producer = harness.init().identity
    for _ in range(2):
        harness.add(producer, P0, version=TV0)
        assert harness.end(producer, commit=True, version=TV0).error is ErrorCode.NONE
        harness.write_markers()
    harness.add(producer, P0, version=TV0)
    assert harness.end(producer, commit=True, version=TV0).error is ErrorCode.NONE, "could be the second one, delayed"


@pytest.mark.parametrize("version", [TV0, TV1])
def test_kafka_9666_a_fence_that_fails_to_be_logged_does_not_use_up_epochs(version: TransactionVersion) -> None:
    harness = Harness(version=version)
    harness.install(metadata(O, epoch=32765))
    for _ in range(10):
        harness.fail(harness.init_outcome(), ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.init()
    assert harness.logged.producer_epoch == 32766
