"""KIP-939: transactions that are part of a larger one, kept over the crash of their producer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.metadata import TWO_PHASE_COMMIT_TIMEOUT_MS
from oncelog.coordinator.txn.state import TxnState
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerEpoch, ProducerIdAndEpoch
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    P2,
    TV0,
    TV2,
    Harness,
    identity,
    metadata,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741
NONE = identity(-1, -1)
TRANSACTION = identity(55, 5)


def crashed(epoch: int = 5, **changes: Any) -> Harness:
    """A producer prepared its transaction on P0 and P1, told the outer coordinator so, and died."""
    harness = Harness(TxnConfig(two_phase_commit_enable=True))
    harness.install(
        metadata(O, epoch=epoch, producer_id=55, timeout_ms=TWO_PHASE_COMMIT_TIMEOUT_MS, client_version=TV2, **changes)
    )
    return harness


def come_back(harness: Harness, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
    result = harness.init(expected, enable_2pc=True, keep_prepared=True)
    assert result.error is ErrorCode.NONE, result.reason
    return result.identity


def test_a_participant_never_times_out() -> None:
    harness = Harness(TxnConfig(two_phase_commit_enable=True))
    producer = harness.init(enable_2pc=True, timeout_ms=1).identity
    assert harness.logged.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS
    harness.add(producer, P0)
    assert harness.shard.abort_timed_out(harness.now_ms + 10**13) == []


def test_a_participant_may_have_any_timeout_in_its_request() -> None:
    harness = Harness(TxnConfig(two_phase_commit_enable=True))
    for timeout_ms in (-1, 0, 2**31 - 1):
        assert harness.init(enable_2pc=True, timeout_ms=timeout_ms).error is ErrorCode.NONE


def test_coming_back_keeps_the_transaction_and_moves_the_client_on() -> None:
    harness = crashed()
    result = harness.init(enable_2pc=True, keep_prepared=True)
    assert (result.error, result.identity, result.ongoing) == (ErrorCode.NONE, identity(55, 6), TRANSACTION)
    assert harness.logged.state is O
    assert harness.logged.transaction_identity == TRANSACTION
    assert (harness.logged.next_producer_id, harness.logged.next_producer_epoch) == (55, 6)
    assert harness.to_send == []


@pytest.mark.parametrize(("commit", "prepared", "completed"), [(True, PC, CC), (False, PA, CA)])
def test_the_kept_transaction_is_settled_by_end_txn(commit: bool, prepared: TxnState, completed: TxnState) -> None:
    harness = crashed()
    client = come_back(harness)
    result = harness.end(client, commit=commit)
    assert (result.error, result.identity) == (ErrorCode.NONE, identity(55, 7))
    assert (harness.logged.state, harness.logged.transaction_identity) == (prepared, identity(55, 6))
    (sent,) = harness.to_send
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (55, 6, commit)
    assert sent.partitions == {P0, P1}
    harness.write_markers()
    assert (harness.logged.state, harness.logged.transaction_identity) == (completed, identity(55, 7))
    assert not harness.logged.keeps_prepared
    retried = harness.end(client, commit=commit)
    assert (retried.error, retried.identity) == (ErrorCode.NONE, identity(55, 7))
    assert harness.add(identity(55, 7), P0).error is ErrorCode.NONE


def test_nothing_open_is_nothing_to_keep() -> None:
    harness = Harness(TxnConfig(two_phase_commit_enable=True))
    first = harness.init(enable_2pc=True, keep_prepared=True)
    assert (first.identity, first.ongoing) == (identity(FIRST_PID, 0), NONE)
    second = harness.init(keep_prepared=True)
    assert (second.identity, second.ongoing) == (identity(FIRST_PID, 1), NONE)


@pytest.mark.parametrize("state", [PC, PA])
def test_a_decided_transaction_is_waited_for(state: TxnState) -> None:
    harness = crashed()
    harness.install(metadata(state))
    outcome = harness.init_outcome(keep_prepared=True)
    assert (outcome.response.error, outcome.wait_for) == (ErrorCode.CONCURRENT_TRANSACTIONS, ID)


def test_crashing_again_and_again_moves_only_the_client() -> None:
    harness = crashed()
    for epoch in (6, 7, 8):
        harness.reload()
        result = harness.init(enable_2pc=True, keep_prepared=True)
        assert (result.identity, result.ongoing) == (identity(55, epoch), TRANSACTION)
    assert harness.end(identity(55, 8), commit=True).identity == identity(55, 9)
    assert harness.logged.transaction_identity == identity(55, 6), "the markers follow the transaction's own epoch"


def test_the_former_self_is_fenced_and_told_why() -> None:
    harness = crashed()
    come_back(harness)
    for result in (
        harness.end(TRANSACTION, commit=True),
        harness.end(TRANSACTION, commit=False, version=TV0),
        harness.add(TRANSACTION, P2),
        harness.verify(TRANSACTION, P0),
    ):
        assert result.error is ErrorCode.PRODUCER_FENCED
        assert "a newer producer took over with producer id 55 epoch 6" in result.reason
    assert harness.init(TRANSACTION, keep_prepared=True).error is ErrorCode.PRODUCER_FENCED


def test_nothing_may_be_added_to_the_kept_transaction() -> None:
    harness = crashed()
    client = come_back(harness)
    for result in (harness.add(client, P2), harness.add(client, P0), harness.verify(client, P0)):
        assert result.error is ErrorCode.INVALID_TXN_STATE
        assert "can only be committed or aborted" in result.reason


def test_an_end_of_the_kept_transaction_that_comes_late_does_not_end_the_next() -> None:
    """Why the end bumps the client's epoch although coming back had bumped it."""
    harness = crashed()
    client = come_back(harness)
    following = harness.end(client, commit=True).identity
    harness.write_markers()
    harness.add(following, P0)
    assert harness.end(client, commit=True).error is ErrorCode.PRODUCER_FENCED
    assert harness.value.state is O


def test_a_failover_while_the_transaction_is_kept_and_while_it_is_settled() -> None:
    harness = crashed()
    client = come_back(harness)
    harness.reload()
    assert harness.value.client_identity == client
    answered = harness.end(client, commit=True).identity
    harness.reload()
    assert harness.end(client, commit=True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.write_markers()
    assert (harness.value.state, harness.value.client_identity) == (CC, answered)


def test_a_retry_of_a_lost_answer_gets_it_again_without_a_record() -> None:
    harness = crashed()
    client = come_back(harness)
    following = come_back(harness, client)
    assert following == identity(55, 7)
    records = len(harness.log)
    assert come_back(harness, client) == following
    assert len(harness.log) == records
    assert harness.init(identity(55, 4), keep_prepared=True).error is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_of_another_life_is_no_retry() -> None:
    harness = crashed(last_producer_epoch=ProducerEpoch(4))
    assert harness.init(identity(55, 4), keep_prepared=True).error is ErrorCode.PRODUCER_FENCED


def test_without_keep_prepared_the_kept_transaction_is_aborted() -> None:
    """Forced termination, and both identities are fenced."""
    harness = crashed()
    client = come_back(harness)
    assert harness.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    (sent,) = harness.to_send
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (55, 6, False)
    harness.write_markers()
    assert (harness.value.state, harness.value.client_identity) == (CA, identity(55, 7))
    assert harness.init().identity == identity(55, 8)
    assert harness.end(client, commit=True).error is ErrorCode.PRODUCER_FENCED


def test_epochs_used_up_by_coming_back_rotate_only_the_client() -> None:
    harness = crashed(epoch=32766)
    client = come_back(harness)
    assert client == identity(FIRST_PID, 0)
    assert harness.end(client, commit=True).identity == identity(FIRST_PID, 1)
    (sent,) = harness.to_send
    assert (sent.producer_id, sent.producer_epoch) == (55, 32767)
    harness.write_markers()
    assert harness.value.client_identity == identity(FIRST_PID, 1)
    assert harness.end(client, commit=True).identity == identity(FIRST_PID, 1)


def test_epochs_used_up_by_the_end_rotate_the_client_then() -> None:
    harness = crashed(epoch=32765)
    client = come_back(harness)
    assert client == identity(55, 32766)
    assert harness.end(client, commit=True).identity == identity(FIRST_PID, 0)
    harness.entry().pending_state = (
        None  # reached by nobody while the markers are sent; the answer is fixed all the same
    )
    assert harness.end(client, commit=True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.reload()
    harness.write_markers()
    assert harness.value.client_identity == identity(FIRST_PID, 0)
    retried = harness.end(client, commit=True)
    assert (retried.error, retried.identity) == (ErrorCode.NONE, identity(FIRST_PID, 0))


def test_the_lost_answer_of_a_rotation_is_given_again() -> None:
    harness = crashed(epoch=32766)
    assert come_back(harness, identity(55, 32766)) == identity(FIRST_PID, 0)
    assert come_back(harness, identity(55, 32766)) == identity(FIRST_PID, 0)


def test_two_rotations_over_one_transaction() -> None:
    harness = crashed(epoch=32766)
    come_back(harness)
    entry = harness.entry()
    entry.metadata = replace(entry.metadata, next_producer_epoch=ProducerEpoch(32766))
    client = come_back(harness, identity(FIRST_PID, 32766))
    assert client == identity(FIRST_PID + 1, 0)
    assert come_back(harness, identity(FIRST_PID, 32766)) == client
    assert harness.end(client, commit=True).identity == identity(FIRST_PID + 1, 1)
    assert harness.to_send[0].producer_id == 55


def test_the_lost_answer_of_an_end_that_rotated_a_client_which_had_rotated_before() -> None:
    harness = crashed(epoch=32766)
    come_back(harness)
    entry = harness.entry()
    entry.metadata = replace(entry.metadata, next_producer_epoch=ProducerEpoch(32766))
    client = identity(FIRST_PID, 32766)
    answered = harness.end(client, commit=True).identity
    assert answered == identity(FIRST_PID + 1, 0)
    harness.write_markers()
    retried = harness.end(client, commit=True)
    assert (retried.error, retried.identity) == (ErrorCode.NONE, answered)


def test_an_end_txn_of_the_old_protocol_settles_it_too() -> None:
    harness = crashed()
    client = come_back(harness)
    assert harness.end(client, commit=True, version=TV0).error is ErrorCode.NONE
    (sent,) = harness.to_send
    assert (sent.producer_epoch, sent.transaction_version) == (5, TV0)
    harness.write_markers()
    assert (harness.value.state, harness.value.client_identity) == (CC, client)


def test_without_enable_2pc_a_kept_transaction_still_times_out() -> None:
    harness = Harness(TxnConfig(two_phase_commit_enable=True))
    harness.install(metadata(O, producer_id=55))
    client = come_back_without_2pc(harness)
    harness.now_ms += 60_001
    harness.commit(harness.shard.abort_timed_out(harness.now_ms)[0])
    harness.write_markers()
    assert harness.value.state is CA
    refused = harness.end(client, commit=True)
    assert refused.error is ErrorCode.PRODUCER_FENCED
    assert "timed out after 60000 ms" in refused.reason
    assert harness.end(client, commit=False).identity == identity(55, 7)


def come_back_without_2pc(harness: Harness) -> ProducerIdAndEpoch:
    result = harness.init(keep_prepared=True)
    assert result.error is ErrorCode.NONE
    return result.identity


def test_the_operators_see_the_transactions_own_identity() -> None:
    harness = crashed()
    come_back(harness)
    described = harness.shard.describe(ID)
    assert (described.producer_id, described.producer_epoch, described.transaction_state) == (*TRANSACTION, "Ongoing")
