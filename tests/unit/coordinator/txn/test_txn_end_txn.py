"""EndTxn: state x command x epoch relation, for both protocols."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.end_txn import TV0_VERDICTS, TV2_VERDICTS
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.state import NEVER_LOGGED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerIdAndEpoch
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    START_MS,
    TV0,
    TV1,
    TV2,
    Harness,
    identity,
    metadata,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741
CURRENT, RETRY = identity(FIRST_PID, 5), identity(FIRST_PID, 4)
NONE, WRONG = ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE
FENCED, CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
NO_MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING

# state: (COMMIT, ABORT) for the stored epoch; `NONE` where something is logged is told apart below.
TV0_TABLE = {
    E: (WRONG, WRONG),
    O: (NONE, NONE),
    PC: (CONCURRENT, WRONG),
    PA: (WRONG, CONCURRENT),
    CC: (NONE, WRONG),
    CA: (WRONG, NONE),
}
# state: (COMMIT retry, COMMIT current, ABORT retry, ABORT current)
TV2_TABLE = {
    E: (FENCED, WRONG, FENCED, NONE),
    O: (FENCED, NONE, FENCED, NONE),
    PC: (CONCURRENT, FENCED, WRONG, FENCED),
    PA: (WRONG, FENCED, CONCURRENT, FENCED),
    CC: (NONE, WRONG, WRONG, NONE),
    CA: (FENCED, WRONG, NONE, NONE),
}
TV0_CASES = [
    (state, commit, answer)
    for state, answers in TV0_TABLE.items()
    for commit, answer in zip((True, False), answers, strict=True)
]
TV2_CASES = [
    (state, commit, who, answer)
    for state, answers in TV2_TABLE.items()
    for (commit, who), answer in zip(
        ((True, RETRY), (True, CURRENT), (False, RETRY), (False, CURRENT)), answers, strict=True
    )
]


def test_the_tables_leave_no_state_out() -> None:
    states = set(TxnState) - NEVER_LOGGED
    assert set(TV0_TABLE) == set(TV2_TABLE) == states
    assert len(TV0_VERDICTS) == 2 * len(states)
    assert len(TV2_VERDICTS) == 4 * len(states)


@pytest.mark.parametrize("server", [TV0, TV1, TV2])
@pytest.mark.parametrize(("state", "commit", "answer"), TV0_CASES)
def test_tv0_at_the_stored_epoch(state: TxnState, commit: bool, answer: ErrorCode, server: TransactionVersion) -> None:
    harness = Harness(version=server)
    harness.install(metadata(state))
    outcome = harness.end_outcome(CURRENT, commit=commit, version=TV0)
    assert outcome.response.error is answer
    assert outcome.response.identity == identity(-1, -1)
    assert outcome.wait_for == (ID if answer is CONCURRENT else None)
    assert bool(outcome.records) is (state is O)


@pytest.mark.parametrize(("state", "commit", "who", "answer"), TV2_CASES)
def test_tv2(state: TxnState, commit: bool, who: ProducerIdAndEpoch, answer: ErrorCode) -> None:
    harness = Harness()
    harness.install(metadata(state, client_version=TV2))
    outcome = harness.end_outcome(who, commit=commit)
    assert outcome.response.error is answer
    assert outcome.wait_for == (ID if answer is CONCURRENT else None)
    ends = answer is NONE and who is CURRENT
    assert bool(outcome.records) is ends
    if answer is NONE:
        assert outcome.response.identity == identity(FIRST_PID, 6 if ends else 5)
    else:
        assert outcome.response.identity == identity(-1, -1)


@pytest.mark.parametrize("state", list(TV0_TABLE))
@pytest.mark.parametrize("epoch", [3, 4, 6, 32766])
def test_tv0_any_other_epoch_is_fenced(state: TxnState, epoch: int) -> None:
    harness = Harness()
    harness.install(metadata(state))
    assert harness.end(identity(FIRST_PID, epoch), commit=True, version=TV0).error is FENCED


@pytest.mark.parametrize("state", list(TV2_TABLE))
@pytest.mark.parametrize("epoch", [3, 6, 32766])
@pytest.mark.parametrize("commit", [True, False])
def test_tv2_an_epoch_neither_current_nor_one_below_is_fenced(state: TxnState, epoch: int, commit: bool) -> None:
    harness = Harness()
    harness.install(metadata(state, client_version=TV2))
    assert harness.end(identity(FIRST_PID, epoch), commit=commit).error is FENCED


@pytest.mark.parametrize("state", list(TV2_TABLE))
@pytest.mark.parametrize("commit", [True, False])
def test_tv2_one_below_the_epoch_of_an_end_of_the_older_protocol_is_fenced(state: TxnState, commit: bool) -> None:
    harness = Harness()
    harness.install(metadata(state, client_version=TV1))
    assert harness.end(RETRY, commit=commit).error is FENCED


@pytest.mark.parametrize("version", [TV0, TV2])
@pytest.mark.parametrize("state", list(TV0_TABLE))
def test_another_producer_id_has_no_mapping(state: TxnState, version: TransactionVersion) -> None:
    harness = Harness()
    harness.install(metadata(state))
    assert harness.end(identity(77, 5), commit=True, version=version).error is NO_MAPPING


def test_tv0_looks_at_the_identity_before_the_pending_state() -> None:
    harness = Harness()
    harness.install(metadata(PC), pending=CC)
    assert harness.end(identity(77, 5), commit=True, version=TV0).error is NO_MAPPING
    assert harness.end(identity(FIRST_PID, 4), commit=True, version=TV0).error is FENCED
    assert harness.end(CURRENT, commit=False, version=TV0).error is CONCURRENT


def test_tv2_looks_at_the_pending_state_before_the_identity() -> None:
    harness = Harness()
    harness.install(metadata(PC), pending=CC)
    for who in (identity(77, 5), identity(FIRST_PID, 1), CURRENT):
        outcome = harness.end_outcome(who, commit=False)
        assert (outcome.response.error, outcome.wait_for) == (CONCURRENT, ID)


@pytest.mark.parametrize("version", [TV0, TV2])
def test_an_empty_or_unknown_id_and_a_coordinator_that_is_loading(version: TransactionVersion) -> None:
    harness = Harness()
    arguments = (ProducerIdAndEpoch.of(1, 0), True, version, START_MS)
    assert harness.shard.end_txn("", *arguments).response.error is ErrorCode.INVALID_REQUEST
    assert harness.shard.end_txn(None, *arguments).response.error is ErrorCode.INVALID_REQUEST
    assert harness.shard.end_txn("no", *arguments).response.error is NO_MAPPING
    harness.shard = TxnShard(20, harness.config, harness.allocate)
    assert harness.end(CURRENT, commit=True, version=version).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(("commit", "prepared", "completed"), [(True, PC, CC), (False, PA, CA)])
@pytest.mark.parametrize(("version", "epoch", "last"), [(TV0, 5, -1), (TV2, 6, 5)])
def test_from_the_decision_to_the_end(
    commit: bool, prepared: TxnState, completed: TxnState, version: TransactionVersion, epoch: int, last: int
) -> None:
    harness = Harness()
    harness.install(metadata(O))
    harness.now_ms += 10
    harness.end(CURRENT, commit=commit, version=version)
    assert (harness.logged.state, harness.logged.producer_epoch) == (prepared, epoch)
    assert (harness.value.last_producer_epoch, harness.value.start_ms) == (last, START_MS)
    (sent,) = harness.to_send
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (FIRST_PID, epoch, commit)
    assert (sent.partitions, sent.transaction_version) == (frozenset({P0, P1}), version)
    harness.write_markers()
    assert (harness.logged.state, harness.logged.producer_epoch, harness.logged.partitions) == (
        completed,
        epoch,
        frozenset(),
    )


def test_tv2_answers_as_soon_as_the_decision_is_committed() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.end_outcome(CURRENT, commit=True)
    assert (outcome.response.error, outcome.response.identity) == (NONE, identity(FIRST_PID, 6))
    assert outcome.wait_for is None


@pytest.mark.parametrize("state", [E, CC, CA])
def test_tv2_the_abort_of_nothing_bumps_the_epoch_and_needs_no_marker(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    harness.now_ms += 7
    assert harness.end(CURRENT, commit=False).identity == identity(FIRST_PID, 6)
    assert (harness.value.state, harness.value.start_ms) == (PA, harness.now_ms)
    (sent,) = harness.to_send
    assert sent.partitions == frozenset()
    harness.write_markers()
    assert (harness.value.state, harness.value.producer_epoch) == (CA, 6)
    assert harness.end(CURRENT, commit=False).identity == identity(FIRST_PID, 6)


@pytest.mark.parametrize("state", [E, O, CC])
def test_tv2_used_up_epochs_rotate_the_producer_id_between_prepare_and_complete(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state, epoch=32766, producer_id=55))
    result = harness.end(identity(55, 32766), commit=False)
    assert result.identity == identity(FIRST_PID, 0)
    assert harness.logged.transaction_identity == identity(55, 32767)
    assert harness.logged.next_producer_id == FIRST_PID
    assert harness.value.last_producer_epoch == 32766
    harness.write_markers()
    assert harness.logged.transaction_identity == identity(FIRST_PID, 0)
    assert (harness.logged.prev_producer_id, harness.logged.next_producer_id) == (55, -1)
    assert harness.value.last_producer_epoch == 32766
    retried = harness.end(identity(55, 32766), commit=False)
    assert (retried.error, retried.identity) == (NONE, identity(FIRST_PID, 0))


def test_tv2_the_retry_after_a_rotation_is_good_only_until_the_next_transaction() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    harness.end(identity(55, 32766), commit=True)
    harness.write_markers()
    assert harness.end(identity(55, 32766), commit=False).error is WRONG
    harness.add(identity(FIRST_PID, 0), P0)
    assert harness.end(identity(55, 32766), commit=True).error is NO_MAPPING


def test_tv2_a_first_epoch_is_not_mistaken_for_a_rotation() -> None:
    """The previous producer id of an id that never rotated is its own: a made-up epoch 32766 is no retry."""
    harness = Harness()
    harness.install(metadata(CC, epoch=0))
    assert harness.end(identity(FIRST_PID, 32766), commit=True).error is FENCED


def test_tv2_the_reserved_epoch_is_not_given_out_by_a_retry() -> None:
    """A fencing abort under TV0/1 can leave 32767 behind; the client must start over instead."""
    harness = Harness(version=TV1)
    harness.install(metadata(CA, epoch=32767, producer_id=55))
    result = harness.end(identity(55, 32766), commit=False)
    assert (result.error, result.identity) == (FENCED, identity(-1, -1))


def test_tv2_without_a_producer_id_at_hand_nothing_is_decided() -> None:
    harness = Harness()
    harness.install(metadata(O, epoch=32766, producer_id=55))
    harness.allocation_error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no block yet")
    outcome = harness.end_outcome(identity(55, 32766), commit=True)
    assert outcome.response.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not outcome.records and harness.shard.is_settled(ID)


def test_a_decision_that_could_not_be_logged_was_not_taken() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.end_outcome(CURRENT, commit=True)
    assert harness.end(CURRENT, commit=True).error is CONCURRENT
    assert harness.fail(outcome, ErrorCode.NOT_LEADER_OR_FOLLOWER) is ErrorCode.NOT_COORDINATOR
    assert outcome.response.with_error(ErrorCode.NOT_COORDINATOR, "").identity == identity(-1, -1)
    assert harness.end(CURRENT, commit=False).identity == identity(FIRST_PID, 6)


def test_the_reason_says_what_was_asked_of_which_state() -> None:
    harness = Harness()
    harness.install(metadata(E))
    assert harness.end(CURRENT, commit=True, version=TV0).reason == (
        "transactional id 'tx-1' (__transaction_state-20), producer id 1000 epoch 5: "
        "a transaction in Empty cannot commit"
    )
