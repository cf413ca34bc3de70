"""What a shard makes of partitions that know more, or less, than its log."""

from __future__ import annotations

import pytest

from oncelog.coordinator.txn.metadata import TWO_PHASE_COMMIT_TIMEOUT_MS, TxnEntry
from oncelog.coordinator.txn.recovery import MissingMarker, OpenTransaction, Repair, judge, recover
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import CoordinatorEpoch, TopicPartition
from tests.unit.coordinator.txn.txn_harness import ID, START_MS, TIMEOUT_MS, Harness, identity, metadata

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
PID, EPOCH = 7, 5
TV0, TV2 = TransactionVersion.TV0, TransactionVersion.TV2
BEFORE, AFTER = START_MS - 1, START_MS + 1


def opened(epoch: int, *, producer_id: int = PID, last_marker_ms: int = -1) -> OpenTransaction:
    return OpenTransaction(HERE, producer_id, epoch, -1, last_marker_ms)


@pytest.mark.parametrize(
    ("state", "version", "epoch", "partition", "expected"),
    [
        (TxnState.ONGOING, TV2, EPOCH, HERE, Repair.LEAVE),
        (TxnState.ONGOING, TV0, EPOCH, HERE, Repair.LEAVE),
        (TxnState.ONGOING, TV2, EPOCH, ELSEWHERE, Repair.DOUBT),
        (TxnState.ONGOING, TV2, EPOCH - 1, HERE, Repair.DOUBT),
        (TxnState.ONGOING, TV2, EPOCH + 1, HERE, Repair.DOUBT),
        (TxnState.PREPARE_COMMIT, TV2, EPOCH - 1, HERE, Repair.LEAVE),
        (TxnState.PREPARE_COMMIT, TV2, EPOCH, HERE, Repair.DOUBT),
        (TxnState.PREPARE_COMMIT, TV2, EPOCH - 1, ELSEWHERE, Repair.DOUBT),
        (TxnState.PREPARE_COMMIT, TV0, EPOCH, HERE, Repair.LEAVE),
        (TxnState.PREPARE_COMMIT, TV0, EPOCH - 1, HERE, Repair.DOUBT),
        (TxnState.PREPARE_ABORT, TV0, EPOCH - 1, HERE, Repair.LEAVE),
        (TxnState.PREPARE_ABORT, TV0, EPOCH + 1, HERE, Repair.DOUBT),
        (TxnState.COMPLETE_COMMIT, TV2, EPOCH - 1, None, Repair.COMMIT),
        (TxnState.COMPLETE_ABORT, TV2, EPOCH - 1, None, Repair.ABORT),
        (TxnState.COMPLETE_COMMIT, TV2, EPOCH - 2, None, Repair.DOUBT),
        (TxnState.COMPLETE_COMMIT, TV2, EPOCH, None, Repair.DOUBT),
        (TxnState.COMPLETE_COMMIT, TV0, EPOCH, None, Repair.DOUBT),
        (TxnState.COMPLETE_ABORT, TV0, EPOCH, None, Repair.DOUBT),
        (TxnState.EMPTY, TV2, EPOCH - 1, None, Repair.DOUBT),
    ],
)
def test_a_transaction_that_is_open_on_a_partition(
    state: TxnState, version: TransactionVersion, epoch: int, partition: TopicPartition | None, expected: Repair
) -> None:
    partitions = frozenset() if partition is None else frozenset({partition})
    value = metadata(state, epoch=EPOCH, producer_id=PID, partitions=partitions, client_version=version)
    assert judge(value, opened(epoch)) is expected


@pytest.mark.parametrize(("last_marker_ms", "expected"), [(BEFORE, Repair.LEAVE), (AFTER, Repair.DOUBT)])
def test_a_transaction_that_began_after_the_marker_is_not_ended_by_it(last_marker_ms: int, expected: Repair) -> None:
    """The older protocol has one epoch for both: it shows by the marker that is there already.

    Only where records may be lost, for this depends on clocks.
    """
    value = metadata(TxnState.PREPARE_COMMIT, epoch=EPOCH, producer_id=PID, partitions=frozenset({HERE}))
    there = opened(EPOCH, last_marker_ms=last_marker_ms)
    assert judge(value, there, START_MS) is expected
    assert judge(value, there) is Repair.LEAVE
    for doubtful_below_offset, is_doubted in ((10, False), (11, expected is Repair.DOUBT)):
        entry = TxnEntry("a", value, record_offset=10, written_ms=START_MS)
        assert bool(recover([entry], {}, [there], doubtful_below_offset).missing) is is_doubted


def test_the_last_transaction_of_a_producer_id_that_is_used_up_is_known() -> None:
    value = metadata(TxnState.COMPLETE_COMMIT, epoch=0, producer_id=8, prev_producer_id=PID, client_version=TV2)
    assert judge(value, opened(32_766)) is Repair.COMMIT
    assert judge(value, opened(32_765)) is Repair.DOUBT


def entry_of(state: TxnState, *, record_offset: int = 10, **fields: object) -> TxnEntry:
    value = metadata(state, epoch=EPOCH, producer_id=PID, **fields)  # type: ignore[arg-type]
    return TxnEntry("a", value, record_offset=record_offset)


def test_markers_of_a_decision_go_above_an_epoch_that_partitions_have_seen() -> None:
    entry = entry_of(TxnState.PREPARE_COMMIT, partitions=frozenset({HERE}), client_version=TV2)
    recover([entry], {PID: EPOCH + 3}, [], 0)
    assert entry.metadata.producer_epoch == EPOCH + 4
    assert entry.is_doubtful


def test_an_id_at_rest_that_is_behind_is_doubtful() -> None:
    entry = entry_of(TxnState.COMPLETE_COMMIT)
    recover([entry], {PID: EPOCH}, [], 0)
    assert not entry.is_doubtful
    recover([entry], {PID: EPOCH + 1}, [], 0)
    assert entry.is_doubtful


@pytest.mark.parametrize(("record_offset", "expected"), [(9, True), (10, False)])
def test_an_id_without_a_record_since_the_machine_went_down_is_doubtful(record_offset: int, expected: bool) -> None:
    entry = entry_of(TxnState.COMPLETE_COMMIT, record_offset=record_offset)
    recover([entry], {}, [], 10)
    assert entry.is_doubtful is expected


def test_the_open_transaction_of_a_two_phase_commit_is_not_doubtful_for_that() -> None:
    entry = entry_of(TxnState.ONGOING, partitions=frozenset({HERE}), timeout_ms=TWO_PHASE_COMMIT_TIMEOUT_MS)
    recover([entry], {}, [opened(EPOCH)], 100)
    assert not entry.is_doubtful


def test_what_is_open_and_belongs_to_nobody_is_handed_back() -> None:
    entry = entry_of(TxnState.ONGOING, partitions=frozenset({HERE}))
    unknown = opened(0, producer_id=99)
    recovered = recover([entry], {}, [unknown, opened(EPOCH)], 0)
    assert recovered.unknown == [unknown]
    assert recovered.missing == []


def test_a_missing_marker_has_the_epoch_that_it_would_have_had() -> None:
    entry = entry_of(TxnState.COMPLETE_COMMIT, client_version=TV2)
    recovered = recover([entry], {}, [OpenTransaction(HERE, PID, EPOCH - 1, 9, -1)], 0)
    assert recovered.missing == [MissingMarker(OpenTransaction(HERE, PID, EPOCH - 1, 9, -1), "a", commit=True)]
    order = recovered.missing[0].order(CoordinatorEpoch(3))
    assert (order.producer_epoch, order.commit, order.partitions) == (EPOCH, True, {HERE})
    assert order.coordinator_epoch == 9, "a partition refuses one below the last it has seen"


@pytest.mark.parametrize("version", [TV0, TV2])
def test_whoever_comes_with_an_identity_of_a_doubtful_id_is_fenced_and_a_new_one_gets_a_new_id(
    version: TransactionVersion,
) -> None:
    harness = Harness()
    before = harness.init().identity
    harness.shard._entries[ID].is_doubtful = True
    for outcome in (
        harness.shard.add_partitions(ID, before, [HERE], version, START_MS),
        harness.shard.verify_partitions(ID, before, [HERE]),
        harness.shard.end_txn(ID, before, True, version, START_MS),
        harness.shard.init_producer_id(ID, TIMEOUT_MS, before, False, False, START_MS),
    ):
        assert outcome.response.error is ErrorCode.PRODUCER_FENCED
        assert "initialise the producer again" in outcome.response.reason
    after = harness.init().identity
    assert after.producer_id != before.producer_id
    assert after.epoch == 0
    again = harness.init().identity
    assert again == identity(after.producer_id, 1), "it is not doubtful any more"
