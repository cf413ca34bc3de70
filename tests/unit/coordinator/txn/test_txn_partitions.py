"""AddPartitionsToTxn, AddOffsetsToTxn and verification: the order of their checks."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    P2,
    START_MS,
    TV0,
    TV1,
    TV2,
    Harness,
    identity,
    metadata,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741
CURRENT = identity(FIRST_PID, 5)
NONE = ErrorCode.NONE
FENCED, CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
NO_MAPPING, ABORTABLE = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTION_ABORTABLE
IDENTITIES = {
    "current": CURRENT,
    "other pid": identity(77, 5),
    "older": identity(FIRST_PID, 4),
    "newer": identity(FIRST_PID, 6),
}

ADD = [
    # state, pending, identity, answer, logged
    (E, None, "current", NONE, True),
    (O, None, "current", NONE, True),
    (CC, None, "current", NONE, True),
    (CA, None, "current", NONE, True),
    (PC, None, "current", CONCURRENT, False),
    (PA, None, "current", CONCURRENT, False),
    (PC, None, "older", FENCED, False),
    (O, None, "older", FENCED, False),
    (O, None, "newer", FENCED, False),
    (E, None, "newer", FENCED, False),
    (O, None, "other pid", NO_MAPPING, False),
    (PC, None, "other pid", NO_MAPPING, False),
    (O, O, "current", CONCURRENT, False),
    (O, PC, "older", CONCURRENT, False),
    (PC, CC, "other pid", CONCURRENT, False),
    (CC, D, "current", CONCURRENT, False),
]


@pytest.mark.parametrize("version", [TV0, TV2])
@pytest.mark.parametrize(("state", "pending", "who", "answer", "logged"), ADD)
def test_add(
    state: TxnState, pending: TxnState, who: str, answer: ErrorCode, logged: bool, version: TransactionVersion
) -> None:
    harness = Harness()
    harness.install(metadata(state), pending=pending)
    outcome = harness.add_outcome(IDENTITIES[who], P0, P2, version=version)
    assert outcome.response.error is answer
    assert outcome.response.partitions == {P0: answer, P2: answer}
    assert bool(outcome.records) is logged
    assert outcome.wait_for == (ID if answer is CONCURRENT else None)


VERIFY = [
    (O, None, "current", [NONE, ABORTABLE]),
    (O, PC, "current", [NONE, ABORTABLE]),
    (E, None, "current", [ABORTABLE, ABORTABLE]),
    (CC, None, "current", [ABORTABLE, ABORTABLE]),
    (CC, D, "current", [ABORTABLE, ABORTABLE]),
    (PC, None, "current", [CONCURRENT, CONCURRENT]),
    (PA, CA, "current", [CONCURRENT, CONCURRENT]),
    (O, None, "older", [FENCED, FENCED]),
    (O, None, "newer", [FENCED, FENCED]),
    (PC, CC, "older", [FENCED, FENCED]),
    (O, PC, "other pid", [NO_MAPPING, NO_MAPPING]),
]


@pytest.mark.parametrize(("state", "pending", "who", "answers"), VERIFY)
def test_verify(state: TxnState, pending: TxnState, who: str, answers: list[ErrorCode]) -> None:
    harness = Harness()
    harness.install(metadata(state), pending=pending)
    result = harness.verify(IDENTITIES[who], P0, P2)
    assert [result.partitions[P0], result.partitions[P2]] == answers


@pytest.mark.parametrize("transactional_id", ["", None])
def test_without_an_id_the_request_is_invalid(transactional_id: str | None) -> None:
    harness = Harness()
    arguments = (transactional_id, ProducerIdAndEpoch.of(1, 0), [P0])
    assert harness.shard.add_partitions(*arguments, TV2, START_MS).response.error is ErrorCode.INVALID_REQUEST
    assert harness.shard.verify_partitions(*arguments).response.partitions == {P0: ErrorCode.INVALID_REQUEST}


def test_an_unknown_id_has_no_producer() -> None:
    harness = Harness()
    assert harness.add(CURRENT).error is NO_MAPPING
    assert harness.verify(CURRENT).error is NO_MAPPING
    assert "the id is unknown" in harness.add(CURRENT).reason


def test_while_loading() -> None:
    harness = Harness()
    harness.shard = TxnShard(20, harness.config, harness.allocate)
    assert harness.add(CURRENT).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert harness.verify(CURRENT).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_what_is_already_in_the_transaction_is_not_logged_again() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.add_outcome(CURRENT, P0, P1)
    assert not outcome.records
    assert outcome.response.partitions == {P0: NONE, P1: NONE}


@pytest.mark.parametrize("state", [E, CC, CA])
def test_the_first_partition_starts_the_clock_and_later_ones_do_not(state: TxnState) -> None:
    harness = Harness()
    harness.install(metadata(state))
    harness.now_ms += 1_000
    harness.add(CURRENT, P0)
    harness.now_ms += 1_000
    harness.add(CURRENT, P1)
    assert harness.logged == harness.value.__class__(
        producer_id=ProducerId(FIRST_PID),
        producer_epoch=ProducerEpoch(5),
        timeout_ms=60_000,
        state=O,
        last_update_ms=START_MS + 2_000,
        partitions=frozenset({P0, P1}),
        start_ms=START_MS + 1_000,
        prev_producer_id=ProducerId(FIRST_PID),
        client_version=TV2,
    )


def test_the_version_the_client_speaks_is_recorded() -> None:
    harness = Harness(version=TV1)
    harness.install(metadata(E))
    harness.add(CURRENT, P0, version=TV0)
    assert harness.logged.client_version is TV0
    harness.add(CURRENT, P1, version=TV2)
    assert harness.logged.client_version is TV2


def test_an_add_that_could_not_be_logged_changes_nothing() -> None:
    harness = Harness()
    harness.install(metadata(O))
    outcome = harness.add_outcome(CURRENT, P2)
    assert not harness.shard.is_settled(ID)
    assert harness.fail(outcome, ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.NOT_COORDINATOR
    assert outcome.response.with_error(ErrorCode.NOT_COORDINATOR, "lost").partitions == {P2: ErrorCode.NOT_COORDINATOR}
    assert harness.shard.is_settled(ID)
    assert harness.verify(CURRENT, P2).partitions == {P2: ABORTABLE}
    assert harness.add(CURRENT, P2).error is NONE


def test_verification_says_which_partitions_are_missing() -> None:
    harness = Harness()
    harness.install(metadata(O))
    reason = harness.verify(CURRENT, P0, P2).reason
    assert reason.endswith("producer id 1000 epoch 5: not in the transaction: audit-0")


def test_a_stale_epoch_is_told_what_the_current_one_is() -> None:
    harness = Harness()
    harness.install(metadata(O))
    assert "moved on to producer id 1000 epoch 5" in harness.add(ProducerIdAndEpoch(*identity(FIRST_PID, 4))).reason
    assert "epoch 6 was never given out" in harness.add(identity(FIRST_PID, 6)).reason
