"""Deleting from the start of a log while transactions are open there and readers are in the middle of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.deletions import DeletionQueue
from oncelog.storage.file_cache import FileCache
from oncelog.storage.log import SEGMENTS_DELETED_AT_ONCE_MAX, Log, LogPlace
from oncelog.storage.log_config import LogConfig
from oncelog.storage.retention import delete_old_segments
from tests.unit.storage.cleaner_harness import read_committed
from tests.unit.storage.log_harness import (
    NOW_MS,
    ORDERS,
    TOPIC_ID,
    append,
    append_txn,
    copy_log,
    delete_old,
    end_txn,
    headers_in,
    new_log,
    ranges,
    reopen,
)

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, retention_bytes=2000)


def with_a_transaction_across_the_log(folder: Path) -> Log:
    """Producer 5 writes into every segment; producer 6 into the first only."""
    log = new_log(folder, CONFIG)
    append_txn(log, 6)
    for number in range(12):
        append_txn(log, 5, number)
        append(log)
        append(log)
    assert len(log.segments) > 3
    return log


def delete(log: Log, how: str) -> None:
    if how == "by size":
        assert delete_old(log, NOW_MS) > 0
    else:
        log.delete_records(log.segments[2].base_offset + 1)


@pytest.mark.parametrize("how", ["by size", "by DeleteRecords"])
@pytest.mark.parametrize("restart", ["none", "clean", "kill"])
def test_a_transaction_that_began_below_the_log_start_can_still_be_ended(
    tmp_path: Path, how: str, restart: str
) -> None:
    log = with_a_transaction_across_the_log(tmp_path)
    delete(log, how)
    start = log.log_start_offset
    assert start > 0
    if restart != "none":
        log = reopen(log, clean=restart == "clean")
        assert log.log_start_offset == start
    assert log.producer_state.first_undecided_offset is not None
    shown_before = read_committed(log)
    assert not shown_before, "records are shown behind an open transaction"
    aborted = end_txn(log, 5, commit=False)
    assert [txn.aborted for txn in aborted.completed] == [True]
    end_txn(log, 6, commit=True)
    shown = read_committed(log)
    written_by_5 = {
        header.base_offset
        for header in headers_in(log.read(start, 1 << 20, end_offset=log.log_end_offset).data)
        if header.producer_id == 5
    }
    assert shown
    assert not written_by_5 & shown.keys()
    assert min(shown) >= start
    assert log.producer_state.first_undecided_offset is None
    again = reopen(log, clean=False)
    assert read_committed(again) == shown
    again.close(clean=False)


@pytest.mark.parametrize("how", ["by size", "by DeleteRecords"])
@pytest.mark.parametrize("point", ["log.delete.before_rename", "segment.delete.before_rename"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_kill_at_any_step_of_a_deletion_leaves_no_gap(tmp_path: Path, how: str, point: str, flushed: bool) -> None:
    """The folder as it is at each hit of the failpoint, opened with the log start of before and of after."""
    log = with_a_transaction_across_the_log(tmp_path)
    for _ in range(40):
        append(log)
    if flushed:
        log.flush()
    before, start_before, size_before = ranges(log), log.log_start_offset, log.size_bytes
    left: list[Log] = []

    def kill() -> None:
        for log_start_offset in (start_before, log.log_start_offset):
            left.append(copy_log(log, tmp_path / f"killed-{len(left)}", log_start_offset))

    failpoints.arm(point, kill)
    try:
        delete(log, how)
    finally:
        failpoints.disarm_all()
    assert len(left) >= 4
    for killed in left:
        kept = ranges(killed)
        assert kept == before[-len(kept) :], "a gap, or the end is gone"
        assert kept[0][0] <= log.log_start_offset, "more was deleted than was to be"
        assert killed.size_bytes >= log.size_bytes
        killed.close(clean=False)
    assert log.size_bytes < size_before
    log.close(clean=False)


@pytest.mark.parametrize("how", ["by size", "by DeleteRecords"])
def test_indexes_and_snapshots_go_with_their_segments(tmp_path: Path, how: str) -> None:
    log = with_a_transaction_across_the_log(tmp_path)
    delete(log, how)
    log.flush()
    bases = {segment.base_offset for segment in log.segments}
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        found = {int(path.stem) for path in log.folder.glob(f"*{suffix}")}
        assert min(found, default=min(bases)) >= min(bases), suffix
    noted = (log.folder / "oncelog-segments").read_text().splitlines()[2:]
    assert {int(line.split()[0]) for line in noted} == bases
    log.close(clean=False)


def test_a_reader_in_the_middle_of_a_deleted_segment_is_told_where_the_log_begins(tmp_path: Path) -> None:
    """Even while its files are still there, and although its place in them is remembered."""
    queue = DeletionQueue()
    place = LogPlace(tmp_path / str(ORDERS), ORDERS, NOW_MS, FileCache(), queue.add)
    log = Log.create(place, CONFIG, TOPIC_ID)
    for _ in range(40):
        append(log)
    first = log.read(0, 200, end_offset=log.log_end_offset)
    middle = headers_in(first.data)[-1].next_offset
    assert 0 < middle < log.segments[1].base_offset
    delete_old(log, NOW_MS)
    assert len(queue) > 0
    with pytest.raises(KafkaError) as refused:
        log.read(middle, 200, end_offset=log.log_end_offset)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.available_bytes(middle, end_offset=log.log_end_offset) == 0
    assert ranges(log)[0][0] == log.log_start_offset
    # What was read before is the reader's own.
    assert [header.base_offset for header in headers_in(first.data)] == list(range(middle))
    log.close(clean=False)


def test_deleted_records_within_a_segment_are_not_shown_but_their_batch_is_whole(tmp_path: Path) -> None:
    log = new_log(tmp_path, CONFIG)
    append(log, count=10)
    append(log)
    log.delete_records(4)
    with pytest.raises(KafkaError):
        log.read(3, 1000, end_offset=11)
    (first, _) = headers_in(log.read(4, 1000, end_offset=11).data)
    assert (first.base_offset, first.last_offset) == (0, 9)
    log.close(clean=False)


OLD = LogConfig(segment_bytes=900, retention_ms=1000)
LATER_MS = NOW_MS + 10_000


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("point", ["log.roll.before", "log.snapshot.before_write", "segment.create.after_log_file"])
def test_disk_that_is_too_full_to_roll_is_freed_up_to_the_active_segment(tmp_path: Path, point: str) -> None:
    log = new_log(tmp_path, OLD)
    for _ in range(30):
        append(log)
    active = log.segments[-1].base_offset
    failpoints.arm(point, full_disk)
    try:
        assert delete_old(log, LATER_MS) > 2
    finally:
        failpoints.disarm_all()
    assert [segment.base_offset for segment in log.segments] == [active]
    assert (log.log_start_offset, log.log_end_offset) == (active, 30)
    log = reopen(log, clean=False)
    assert ranges(log)[0][0] == active
    assert delete_old(log, LATER_MS) == 1
    assert log.log_start_offset == 30
    assert append(log).first_offset == 30


@pytest.mark.parametrize("how", ["by size", "by DeleteRecords"])
def test_leader_epochs_that_cannot_be_written_hold_nothing_back(tmp_path: Path, how: str) -> None:
    log = new_log(tmp_path, CONFIG)
    for _ in range(40):
        append(log)
    failpoints.arm("checkpoint.before_rename", full_disk)
    try:
        delete(log, how)
    finally:
        failpoints.disarm_all()
    assert 0 < log.log_start_offset <= log.segments[0].base_offset + 1
    log = reopen(log)
    assert [header.base_offset for header in headers_in(log.read(log.log_start_offset, 1, end_offset=40).data)]
    assert log.leader_epochs.earliest == (0, log.log_start_offset)


def test_log_that_must_be_recovered_is_not_rolled(tmp_path: Path) -> None:
    """The new segment would begin at an offset that the old one has already."""
    log = new_log(tmp_path, LogConfig(retention_ms=1000))
    append(log)
    append_txn(log, 7)
    failpoints.arm("log.append.before_txn_index", failpoints.on_nth_hit(1, full_disk))
    try:
        with pytest.raises(KafkaError):
            end_txn(log, 7, commit=False)
    finally:
        failpoints.disarm_all()
    assert delete_old(log, LATER_MS) == 0
    assert append(log, now_ms=LATER_MS).first_offset == 3
    assert ranges(log) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_many_segments_are_deleted_in_parts(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=100))
    count = 2 * SEGMENTS_DELETED_AT_ONCE_MAX + 10
    while len(log.segments) <= count:
        append(log)
    assert log.delete_records(log.log_end_offset) == log.log_end_offset, "the records are gone at once"
    assert len(log.segments) == count + 1 - SEGMENTS_DELETED_AT_ONCE_MAX
    assert ranges(log) == []
    log = reopen(log, clean=False)
    assert delete_old(log, NOW_MS) == SEGMENTS_DELETED_AT_ONCE_MAX
    assert delete_old(log, NOW_MS) == 10
    assert len(log.segments) == 1
    assert append(log).first_offset == log.log_start_offset


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("before", [4, 5, 7, 9])
def test_leader_epochs_fit_a_log_whose_records_were_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int, clean: bool
) -> None:
    """At the start of a batch, within one, and to the end. The last epoch has no batch yet."""
    log = new_log(tmp_path)
    append(log, count=5, epoch=1)
    append(log, count=4, epoch=3)
    log.begin_epoch(4)
    log.delete_records(before)
    log.flush()
    log = reopen(log, clean=clean)
    assert log.log_start_offset == before
    assert log.leader_epochs.entries == ([(1, 4), (3, 5)] if before == 4 else [(3, before)])
    assert [record.message for record in caplog.records if "leader epochs" in record.message] == []
    assert append(log, epoch=5).first_offset == 9


def test_segments_that_reach_beyond_the_high_watermark_stay(tmp_path: Path) -> None:
    """With followers, or with the disk waited for, it trails the end. The log start must never pass it."""
    log = new_log(tmp_path, CONFIG)
    while len(log.segments) < 8:
        append(log)
    committed = log.segments[2].base_offset + 1
    assert delete_old_segments(log, NOW_MS, high_watermark=committed) == 2
    assert log.segments[0].base_offset == log.log_start_offset < committed
    assert delete_old_segments(log, NOW_MS, high_watermark=committed) == 0
    assert delete_old_segments(log, NOW_MS, high_watermark=log.log_end_offset) > 0
