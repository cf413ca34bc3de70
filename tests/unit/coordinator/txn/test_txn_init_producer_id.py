"""InitProducerId: the order of its checks, and the table of epochs row by row."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.init_producer_id import expected_identity, idempotent_producer
from oncelog.coordinator.txn.machine import TxnShard
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
NOT_LOADED = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# 4.1, the order of the checks: each request also has every fault that is looked for later.


def test_only_one_of_producer_id_and_epoch_is_an_invalid_request() -> None:
    assert expected_identity(-1, -1) is None
    assert expected_identity(7, 3) == identity(7, 3)
    for producer_id, epoch in ((7, -1), (-1, 3)):
        with pytest.raises(KafkaError) as refused:
            expected_identity(producer_id, epoch)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_without_a_transactional_id_every_call_gets_a_new_producer_id() -> None:
    harness = Harness()
    assert [idempotent_producer(harness.allocate).identity for _ in range(2)] == [identity(1000, 0), identity(1001, 0)]
    harness.allocation_error = KafkaError(NOT_LOADED, "no block of producer ids yet")
    result = idempotent_producer(harness.allocate)
    assert (result.error, result.reason) == (NOT_LOADED, "no block of producer ids yet")


@pytest.mark.parametrize(
    ("options", "enabled", "version", "error", "named"),
    [
        ({"transactional_id": "", "enable_2pc": True}, False, TV2, ErrorCode.INVALID_REQUEST, "empty string"),
        (
            {"enable_2pc": True, "keep_prepared": True, "timeout_ms": 0},
            False,
            TV2,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transaction.two.phase.commit.enable",
        ),
        (
            {"keep_prepared": True, "timeout_ms": 0},
            False,
            TV2,
            ErrorCode.UNSUPPORTED_VERSION,
            "transaction.two.phase.commit.enable",
        ),
        ({"keep_prepared": True, "timeout_ms": 0}, True, TV1, ErrorCode.UNSUPPORTED_VERSION, "transaction.version 2"),
        ({"timeout_ms": 0}, False, TV2, ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transaction.max.timeout.ms"),
        ({"timeout_ms": -1}, False, TV2, ErrorCode.INVALID_TRANSACTION_TIMEOUT, "-1 ms"),
        ({"timeout_ms": 900_001}, False, TV2, ErrorCode.INVALID_TRANSACTION_TIMEOUT, "900000"),
    ],
)
def test_what_is_refused_before_the_id_is_looked_at(
    options: dict[str, Any], enabled: bool, version: TransactionVersion, error: ErrorCode, named: str
) -> None:
    config = TxnConfig(transaction_version=version, two_phase_commit_enable=enabled)
    harness = Harness(config)
    harness.shard = TxnShard(20, config, harness.allocate)  # still loading, which comes after all of these
    outcome = harness.init_outcome(**options)
    assert outcome.response.error is error
    assert named in outcome.response.reason
    assert not outcome.records and outcome.wait_for is None


def test_the_longest_timeout_is_allowed() -> None:
    assert Harness().init(timeout_ms=900_000).error is ErrorCode.NONE


def test_while_loading() -> None:
    harness = Harness()
    harness.shard = TxnShard(20, harness.config, harness.allocate)
    assert harness.init_outcome().response.error is NOT_LOADED


def test_a_pending_transition_comes_before_fencing() -> None:
    harness = Harness()
    harness.install(metadata(CC), pending=E)
    outcome = harness.init_outcome(identity(1, 1))
    assert outcome.response.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert outcome.wait_for == ID
    assert "from CompleteCommit to Empty is not finished" in outcome.response.reason


@pytest.mark.parametrize("state", [PC, PA])
def test_fencing_comes_before_a_transaction_that_is_being_completed(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    fenced = harness.init_outcome(identity(1, 1))
    assert fenced.response.error is ErrorCode.PRODUCER_FENCED
    assert fenced.wait_for is None
    waiting = harness.init_outcome(identity(FIRST_PID, 5))
    assert waiting.response.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert waiting.wait_for == ID


def test_an_open_transaction_is_aborted_first_and_the_caller_told_to_come_back() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.init_outcome()
    assert outcome.response.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert outcome.wait_for == outcome.transactional_id == ID
    harness.commit(outcome)
    assert harness.value.state is PA
    assert [(sent.commit, sent.partitions) for sent in harness.to_send] == [(False, harness.value.partitions)]


def test_if_the_abort_cannot_be_logged_its_error_is_the_answer() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.init_outcome()
    assert harness.fail(outcome, ErrorCode.NOT_ENOUGH_REPLICAS) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (
        outcome.response.with_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "x").error
        is ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert harness.value.state is O
    assert harness.shard.is_settled(ID)


@pytest.mark.parametrize("state", [E, CC, CA])
def test_an_id_at_rest_is_initialised(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    result = harness.init()
    assert (result.error, result.identity) == (ErrorCode.NONE, identity(FIRST_PID, 6))
    assert (harness.value.state, harness.value.start_ms, harness.value.partitions) == (E, -1, frozenset())
    assert harness.init(identity(FIRST_PID, 3)).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("known", [False, True])
def test_without_a_producer_id_at_hand_the_generators_error_is_the_answer(known: bool) -> None:
    harness = Harness()
    if known:
        harness.install(metadata(CC, epoch=32766, producer_id=55))
    harness.allocation_error = KafkaError(NOT_LOADED, "no block of producer ids yet")
    outcome = harness.init_outcome()
    assert outcome.response.error is NOT_LOADED
    assert not outcome.records
    harness.allocation_error = None
    assert harness.init().error is ErrorCode.NONE


def test_the_answer_names_the_id_the_partition_and_the_identity() -> None:
    reason = Harness().init(identity(7, 3)).reason
    assert reason == (
        "transactional id 'tx-1' (__transaction_state-20), producer id 7 epoch 3: "
        "initialised with producer id 1000 epoch 0"
    )


# Section 3, row by row.


@pytest.mark.parametrize("expected", [None, identity(77, 9)])
def test_the_first_call_of_an_id_gets_epoch_0_whatever_it_expects(expected: ProducerIdAndEpoch | None) -> None:
    harness = Harness()
    assert harness.init(expected).identity == identity(FIRST_PID, 0)
    assert harness.value.last_producer_epoch == -1
    assert (harness.logged.state, harness.logged.timeout_ms, harness.logged.last_update_ms) == (E, TIMEOUT_MS, START_MS)


def test_nothing_expected_bumps_and_forgets_the_last_epoch() -> None:
    harness = Harness()
    harness.install(metadata(E, last_producer_epoch=4))
    assert harness.init().identity == identity(FIRST_PID, 6)
    assert harness.value.last_producer_epoch == -1


def test_the_current_epoch_expected_bumps_and_remembers_it() -> None:
    harness = Harness()
    harness.install(metadata(E))
    assert harness.init(identity(FIRST_PID, 5)).identity == identity(FIRST_PID, 6)
    assert harness.value.last_producer_epoch == 5


def test_the_retry_of_a_lost_answer_gets_that_answer_again() -> None:
    harness = Harness()
    harness.install(metadata(E))
    for _ in range(3):
        assert harness.init(identity(FIRST_PID, 5)).identity == identity(FIRST_PID, 6)
    assert harness.value.last_producer_epoch == 5


@pytest.mark.parametrize("epoch", [3, 4, 6, 7, 32766])
def test_any_other_epoch_is_fenced(epoch: int) -> None:
    harness = Harness()
    harness.install(metadata(E))
    result = harness.init(identity(FIRST_PID, epoch))
    assert result.error is ErrorCode.PRODUCER_FENCED
    assert result.identity == identity(-1, -1)


@pytest.mark.parametrize("epoch", [32766, 32767])
@pytest.mark.parametrize("expects", [False, True])
def test_used_up_epochs_rotate_the_producer_id(epoch: int, expects: bool) -> None:
    harness = Harness()
    harness.install(metadata(CA, epoch=epoch, producer_id=55))
    assert harness.init(identity(55, epoch) if expects else None).identity == identity(FIRST_PID, 0)
    assert harness.value.prev_producer_id == 55
    assert harness.value.last_producer_epoch == (epoch if expects else -1)


def test_the_retry_after_a_rotation_gets_the_new_producer_id_again_and_again() -> None:
    harness = Harness()
    harness.install(metadata(E, epoch=32766, producer_id=55))
    answers = {harness.init(identity(55, 32766)).identity for _ in range(3)}
    assert answers == {identity(FIRST_PID, 0)}


@pytest.mark.parametrize("expected", [identity(55, 0), identity(55, 32765), identity(56, 32766)])
def test_the_previous_producer_id_is_good_only_with_used_up_epochs(expected: ProducerIdAndEpoch | None) -> None:
    harness = Harness()
    harness.install(metadata(E, epoch=32766, producer_id=55))
    harness.init(identity(55, 32766))
    assert harness.init(expected).error is ErrorCode.PRODUCER_FENCED


def test_a_rotation_by_somebody_else_fences_the_old_producer() -> None:
    harness = Harness()
    harness.install(metadata(E, epoch=32766, producer_id=55))
    harness.init()
    result = harness.init(identity(55, 32766))
    assert result.error is ErrorCode.PRODUCER_FENCED
    assert "a newer producer took over with producer id 1000 epoch 0" in result.reason


@pytest.mark.parametrize(("version", "last"), [(TV0, -1), (TV1, -1), (TV2, 5)])
def test_over_an_open_transaction_the_epoch_moves_by_two(version: TransactionVersion, last: int) -> None:
    harness = Harness(version=version)
    harness.install(metadata(O))
    assert harness.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (harness.value.state, harness.value.producer_epoch, harness.value.last_producer_epoch) == (PA, 6, last)
    assert harness.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.write_markers()
    assert (harness.value.state, harness.value.producer_epoch) == (CA, 6)
    assert harness.init().identity == identity(FIRST_PID, 7)


@pytest.mark.parametrize("version", [TV0, TV1, TV2])
def test_the_reserved_epoch_is_given_to_no_client(version: TransactionVersion) -> None:
    harness = Harness(version=version)
    harness.install(metadata(O, epoch=32766, producer_id=55))
    harness.init()
    assert harness.value.transaction_identity == identity(55, 32767)
    harness.write_markers()
    result = harness.init()
    assert result.identity.producer_id != 55
    assert result.identity.epoch in (0, 1)


def test_the_epoch_that_only_a_fence_had_cannot_be_asked_for_again() -> None:
    """Under TV0/1 a fence leaves 32767 behind; the old producer must not get it as the retry of a lost answer."""
    harness = Harness(version=TV1)
    harness.install(metadata(CA, epoch=32767, producer_id=55, last_producer_epoch=32766))
    assert harness.init(identity(55, 32766)).error is ErrorCode.PRODUCER_FENCED


def test_the_timeout_is_stored_anew_each_time() -> None:
    harness = Harness()
    harness.init()
    harness.init(timeout_ms=1234)
    assert harness.logged.timeout_ms == 1234


def test_an_initialisation_that_could_not_be_logged_leaves_no_trace() -> None:
    harness = Harness()
    outcome = harness.init_outcome()
    assert harness.init_outcome().response.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal_of(harness.shard, ID) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    harness.fail(outcome, ErrorCode.REQUEST_TIMED_OUT)
    assert harness.add(outcome.response.identity).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.init().identity == identity(FIRST_PID + 1, 0)


def test_an_initialisation_that_expects_nothing_terminates_what_is_open() -> None:
    harness = Harness()
    producer = harness.init().identity
    harness.add(producer, P0)
    assert harness.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.write_markers()
    assert harness.value.state is CA
    assert harness.init().identity == identity(FIRST_PID, 2)
    assert harness.end(producer, commit=True).error is ErrorCode.PRODUCER_FENCED
