"""Decide, log, apply: pending states, appends that fail or come too late, and what must hold for a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.txn import completeness
from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.outcome import TxnOutcome
from oncelog.coordinator.txn.records import encode_record
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerEpoch, ProducerId
from oncelog.core.invariant import InvariantError
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
CURRENT = identity(FIRST_PID, 5)


def test_a_decision_changes_nothing_before_its_record_is_committed() -> None:
    harness = Harness()
    harness.install(metadata(O))
    before = harness.value
    outcome = harness.end_outcome(CURRENT, commit=True)
    assert harness.value is before
    assert harness.entry().pending_state is PC
    harness.commit(outcome)
    assert harness.value.state is PC
    assert harness.entry().pending_state is CC


def test_whoever_meets_a_pending_state_waits() -> None:
    harness = Harness()
    harness.install(metadata(O))
    harness.add_outcome(CURRENT, P2)
    outcomes: list[TxnOutcome[Any]] = [
        harness.init_outcome(),
        harness.add_outcome(CURRENT, P2),
        harness.end_outcome(CURRENT, commit=True, version=TV0),
        harness.end_outcome(CURRENT, commit=True, version=TV2),
    ]
    assert [outcome.response.error for outcome in outcomes] == [ErrorCode.CONCURRENT_TRANSACTIONS] * 4
    assert [outcome.wait_for for outcome in outcomes] == [ID] * 4
    assert not any(outcome.records for outcome in outcomes)
    assert harness.shard.is_settled("another")


def test_ids_do_not_wait_for_each_other() -> None:
    harness = Harness()
    harness.install(metadata(O))
    harness.add_outcome(CURRENT, P2)
    assert harness.init(transactional_id="another").error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("append", "answer"),
    [(3, 15), (19, 15), (20, 15), (7, 15), (6, 16), (56, 16), (10, -1), (18, -1), (2, 2), (15, 15), (16, 16), (-1, -1)],
)
def test_what_a_failed_append_is_told_as(append: int, answer: int) -> None:
    assert error_for_failed_append(ErrorCode(append)) == answer
    harness = Harness()
    harness.install(metadata(O))
    assert harness.fail(harness.end_outcome(CURRENT, commit=True), ErrorCode(append)) == answer
    assert harness.shard.is_settled(ID)


def test_applying_a_record_twice_is_a_bug() -> None:
    harness = Harness()
    harness.install(metadata(O))
    prepared = harness.end_outcome(CURRENT, commit=True)
    harness.commit(prepared)
    with pytest.raises(InvariantError, match="nobody had decided"):
        harness.replay(*prepared.records)


def test_applying_what_nobody_decided_is_a_bug() -> None:
    harness = Harness()
    harness.install(metadata(O))
    record = encode_record(ID, metadata(CC), TV2)
    with pytest.raises(InvariantError, match="nobody had decided"):
        harness.replay(record)


def test_applying_something_else_than_was_decided_is_a_bug() -> None:
    harness = Harness()
    harness.install(metadata(O))
    harness.end_outcome(CURRENT, commit=True)
    record = encode_record(ID, metadata(PA, epoch=6), TV2)
    with pytest.raises(InvariantError, match=r"was written.*was decided"):
        harness.replay(record)


def test_loading_twice_is_a_bug() -> None:
    harness = Harness()
    with pytest.raises(InvariantError, match="__transaction_state-20 was loaded twice"):
        harness.shard.on_loaded(harness.shard.coordinator_epoch, 0)


@pytest.mark.parametrize("version", [TV0, TV2])
def test_the_log_alone_gives_the_same_state(version: TransactionVersion) -> None:
    """Except for what lives in memory only."""
    harness = Harness(version=version)
    for commit in (True, False, True):
        producer = harness.settle_and_init()
        harness.add(producer, P0, version=TV0)
        harness.add(producer, P1, version=TV0)
        harness.end(producer, commit=commit, version=TV0)
        live = harness.value
        harness.reload()
        recorded = replace(live, last_producer_epoch=ProducerEpoch(-1))
        if version is TV0:
            recorded = replace(recorded, prev_producer_id=ProducerId(-1))
        assert harness.value == recorded
        harness.write_markers()


# 2.6: completeness

BEFORE = {
    E: metadata(E),
    O: metadata(O),
    PC: metadata(PC, client_version=TV2),
    CC: metadata(CC),
}
PREPARED_TV2 = {"state": PA, "producer_epoch": 6, "last_producer_epoch": 5, "client_version": TV2}


def check(before: TxnMetadata, fence: bool = False, **changes: Any) -> None:
    completeness.check(ID, before, replace(before, **changes), is_epoch_fence=fence)


GOOD = [
    (E, {"producer_epoch": 6}, False),
    (E, {"producer_epoch": 5}, False),
    (E, {"producer_id": 9, "producer_epoch": 0}, False),
    (E, {"state": O, "start_ms": 1, "partitions": frozenset({P0})}, False),
    (O, {"partitions": frozenset({P0, P1, P2})}, False),
    (O, {"state": PC}, False),
    (O, {"state": PA, "producer_epoch": 6}, True),
    (O, PREPARED_TV2, False),
    (CC, {**PREPARED_TV2, "start_ms": 77}, False),
    (PC, {"state": CC, "partitions": frozenset()}, False),
]
BAD = [
    (E, {"producer_epoch": 7}, "jumps an epoch"),
    (E, {"producer_epoch": 4}, "jumps an epoch"),
    (E, {"producer_id": 9, "producer_epoch": 5}, "an epoch other than 0"),
    (E, {"partitions": frozenset({P0})}, "leaves a transaction behind"),
    (E, {"start_ms": 5}, "leaves a transaction behind"),
    (E, {"state": O, "partitions": frozenset({P0})}, "has no start"),
    (O, {"partitions": frozenset({P0})}, "loses partitions"),
    (O, {"timeout_ms": 1}, "changes the time-out"),
    (O, {"producer_epoch": 6}, "changes the producer of an open transaction"),
    (O, {"producer_id": 9}, "changes the producer of an open transaction"),
    (O, {"start_ms": 9}, "changes the start"),
    (O, {"state": F}, "never logged"),
    (O, {"state": D}, "never logged"),
    (O, {"state": PC, "producer_epoch": 6}, "wrong epoch for its markers"),
    (O, {"state": PC, "partitions": frozenset({P0})}, "changes the partitions"),
    (O, {"state": PC, "producer_id": 9}, "changes the producer id before"),
    (O, {"state": PC, "timeout_ms": 1}, "changes the time-out"),
    (O, {**PREPARED_TV2, "last_producer_epoch": 4}, "forgets the client's epoch"),
    (O, {**PREPARED_TV2, "producer_epoch": 5}, "wrong epoch for its markers"),
    (O, {**PREPARED_TV2, "start_ms": 9}, "changes the start"),
    (CC, {"state": PA, "start_ms": 9}, "changes the start"),
    (PC, {"state": CC}, "has partitions left"),
    (PC, {"state": CC, "partitions": frozenset(), "start_ms": -1}, "has no start"),
    (PC, {"state": CA, "partitions": frozenset()}, "not what was decided"),
    (PC, {"state": CC, "partitions": frozenset(), "producer_epoch": 6}, "the identity that the client was answered"),
    (PC, {"state": CC, "partitions": frozenset(), "timeout_ms": 1}, "changes the time-out"),
]


@pytest.mark.parametrize(("source", "changes", "fence"), GOOD)
def test_a_complete_transition(source: TxnState, changes: dict[str, Any], fence: bool) -> None:
    check(BEFORE[source], fence, **changes)


@pytest.mark.parametrize(("source", "changes", "problem"), BAD)
def test_an_incomplete_transition_is_a_bug(source: TxnState, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvariantError, match=problem):
        check(BEFORE[source], **changes)


def test_a_rotation_must_name_the_previous_producer_id() -> None:
    before = replace(
        BEFORE[PC], producer_epoch=ProducerEpoch(32767), next_producer_id=ProducerId(9), prev_producer_id=ProducerId(3)
    )
    after: dict[str, Any] = {
        "state": CC,
        "partitions": frozenset(),
        "producer_id": 9,
        "producer_epoch": 0,
        "next_producer_id": -1,
    }
    check(before, prev_producer_id=FIRST_PID, **after)
    with pytest.raises(InvariantError, match="without naming the previous one"):
        check(before, **after)
