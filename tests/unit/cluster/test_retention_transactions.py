"""Old segments go while transactions are open, aborted or decided across the new start of the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.cluster.partition import EndOfLog, Partition
from oncelog.cluster.partition_state import PartitionState
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.storage.log import Log
from oncelog.storage.retention import delete_old_segments
from tests.unit.storage.cleaner_harness import read_committed
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, append_txn, end_txn, files, new_log, reopen

OLD_MS = NOW_MS - 10_000_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A transaction of producer 5 is open since offset 0, in the first of several segments."""
    log = new_log(tmp_path, replace(SMALL, retention_ms=1000))
    append_txn(log, 5)
    for _ in range(30):
        append(log, timestamp=OLD_MS)
    return log


def delete_but_last(log: Log) -> int:
    """As DeleteRecords does: everything below the active segment."""
    return log.delete_records(log.segments[-1].base_offset)


def partition_of(log: Log) -> Partition:
    alone = (NodeId(1),)
    return Partition(log, PartitionState(NodeId(1), LeaderEpoch(0), alone, alone), NodeId(1), EndOfLog())


def test_an_open_transaction_does_not_hold_back_deletion(log: Log) -> None:
    start = delete_but_last(log)
    assert start > 0
    assert log.log_start_offset == log.segments[0].base_offset == start
    assert partition_of(log).last_stable_offset == start


def test_readers_of_what_is_deleted_are_told_and_others_go_on(log: Log) -> None:
    start = delete_but_last(log)
    with pytest.raises(KafkaError) as caught:
        log.read(start - 1, 1000, end_offset=log.log_end_offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(start, 1000, end_offset=log.log_end_offset).data


@pytest.mark.parametrize("clean", [True, False])
def test_the_transaction_is_still_open_after_a_restart_and_can_end(log: Log, clean: bool) -> None:
    delete_but_last(log)
    log.flush()
    log = reopen(log, clean=clean)
    assert log.producer_state.first_undecided_offset == 0
    marker = end_txn(log, 5, commit=False)
    assert log.producer_state.first_undecided_offset is None
    assert [(txn.first_offset, txn.last_offset) for txn in log.aborted_transactions(log.log_start_offset, 100)] == [
        (0, marker.last_offset)
    ]
    assert partition_of(log).last_stable_offset == log.log_end_offset


def test_an_abort_across_the_start_hides_what_is_left_of_it(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    append_txn(log, 5, 0)
    for _ in range(20):
        append(log)
    hidden = append_txn(log, 5, 1).first_offset
    end_txn(log, 5, commit=False)
    append(log)
    start = delete_but_last(log)
    assert start <= hidden
    assert hidden not in read_committed(log)
    log = reopen(log)
    assert hidden not in read_committed(log)


def test_snapshots_indexes_and_transaction_indexes_go_along(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    for number in range(6):
        append_txn(log, 5, number)
        end_txn(log, 5, commit=False)
        for _ in range(12):
            append(log)
    assert len(files(log.folder, ".txnindex")) > 2
    start = delete_but_last(log)
    kept = files(log.folder, ".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    assert {int(name.partition(".")[0]) for name in kept} == {start}


def test_retention_by_age_with_an_open_transaction_starts_a_new_segment(log: Log) -> None:
    """The records of the transaction are as old as the others: all go, and the transaction is still open."""
    deleted = delete_old_segments(log, OLD_MS + 2000 + 10_000_000, high_watermark=log.log_end_offset)
    assert deleted > 0
    assert log.log_start_offset == log.log_end_offset == log.segments[0].base_offset
    assert log.producer_state.first_undecided_offset == 0
    assert partition_of(log).last_stable_offset == log.log_end_offset
    append_txn(log, 5, 1)
    end_txn(log, 5, commit=True)
    assert log.producer_state.first_undecided_offset is None


def test_deletion_stops_at_the_high_watermark(log: Log) -> None:
    high_watermark = log.segments[1].base_offset
    delete_old_segments(log, NOW_MS + 10**9, high_watermark=high_watermark)
    assert log.log_start_offset == log.segments[0].base_offset == high_watermark
