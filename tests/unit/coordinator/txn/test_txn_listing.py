"""ListTransactions and DescribeTransactions."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.coordinator.txn.listing import TransactionFilter, listing_of
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.state import NAME_OF, TxnState
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.list_transactions import TransactionState as ListedTransaction
from tests.unit.coordinator.txn.txn_harness import (
    FIRST_PID,
    ID,
    P0,
    P1,
    START_MS,
    TIMEOUT_MS,
    Harness,
    described_partitions,
    identity,
    metadata,
    refusal_of,
)

E, O, PC, PA, CC, CA, D, F = TxnState  # noqa: E741


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    for number, state in enumerate((E, O, PC, PA, CC, CA)):
        harness.install(
            metadata(state, producer_id=number, **({} if state is E else {"start_ms": START_MS - 1_000 * number})),
            transactional_id=f"{NAME_OF[state]}-{number}",
        )
    return harness


def listed(harness: Harness, **filters: Any) -> list[str]:
    wanted = TransactionFilter.of(**filters)
    return [entry.transactional_id for entry in harness.shard.entries() if wanted.includes(entry, START_MS)]


ALL = ["Empty-0", "Ongoing-1", "PrepareCommit-2", "PrepareAbort-3", "CompleteCommit-4", "CompleteAbort-5"]


def test_without_a_filter_all_are_listed(harness: Harness) -> None:
    assert listed(harness) == ALL
    assert listing_of(harness.shard.entries()[1]) == ListedTransaction(
        transactional_id="Ongoing-1", producer_id=1, transaction_state="Ongoing"
    )


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"state_names": ["Ongoing", "PrepareAbort"]}, ["Ongoing-1", "PrepareAbort-3"]),
        ({"state_names": ["Ongoing", "Pending"]}, ["Ongoing-1"]),
        ({"state_names": ["Pending"]}, []),
        ({"state_names": ["Dead"]}, []),
        ({"producer_ids": [0, 4, 99]}, ["Empty-0", "CompleteCommit-4"]),
        ({"producer_ids": [99]}, []),
        ({"longer_than_ms": 3_000}, ["Empty-0", "CompleteCommit-4", "CompleteAbort-5"]),
        ({"longer_than_ms": 2_999}, ["Empty-0", "PrepareAbort-3", "CompleteCommit-4", "CompleteAbort-5"]),
        ({"longer_than_ms": 0}, ALL),
        ({"longer_than_ms": -1}, ALL),
        ({"pattern": "Comp.*"}, ["CompleteCommit-4", "CompleteAbort-5"]),
        ({"pattern": "Comp"}, []),
        ({"pattern": ""}, ALL),
        ({"pattern": None}, ALL),
        ({"pattern": ".*[0-2]", "state_names": ["Ongoing", "CompleteAbort"]}, ["Ongoing-1"]),
    ],
)
def test_filters(harness: Harness, filters: dict[str, Any], expected: list[str]) -> None:
    assert listed(harness, **filters) == expected


def test_unknown_state_names_are_told_back() -> None:
    assert TransactionFilter.of(["Ongoing", "Pending", "ongoing"]).unknown_states == ("Pending", "ongoing")


def test_a_bad_pattern() -> None:
    with pytest.raises(KafkaError, match="missing") as refused:
        TransactionFilter.of(pattern="(tx")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_while_loading_there_is_no_list() -> None:
    harness = Harness()
    harness.shard = TxnShard(20, harness.config, harness.allocate)
    with pytest.raises(KafkaError) as refused:
        listed(harness)
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refusal_of(harness.shard, ID) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_an_id_whose_first_record_is_in_flight_is_not_shown_yet() -> None:
    harness = Harness()
    outcome = harness.init_outcome()
    assert listed(harness) == []
    harness.commit(outcome)
    assert listed(harness) == [ID]


def test_description() -> None:
    harness = Harness()
    harness.install(metadata(O))
    described = harness.shard.describe(ID)
    assert (described.transactional_id, described.transaction_state) == (ID, "Ongoing")
    assert (described.producer_id, described.producer_epoch) == identity(FIRST_PID, 5)
    assert (described.transaction_timeout_ms, described.transaction_start_time_ms) == (TIMEOUT_MS, START_MS)
    assert described_partitions(harness.shard) == {P0, P1}


def test_descriptions_that_fail_name_the_id() -> None:
    harness = Harness()
    assert refusal_of(harness.shard, "") is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError) as missing:
        harness.shard.describe("nobody")
    assert missing.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert "'nobody' (__transaction_state-20)" in missing.value.message
