"""Aborted transactions as a fetch needs them: across segments, without a look at more than necessary, after damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from oncelog.core.steps import at_once
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.txn_index import AbortedTxn
from oncelog.storage.txn_index_keeper import SegmentGoneError
from tests.descriptors import open_descriptors_of_files
from tests.unit.storage.log_harness import (
    NOW_MS,
    SMALL,
    append,
    append_txn,
    copy_log,
    end_txn,
    new_log,
    reopen,
)


def test_abort_is_found_from_a_segment_that_does_not_hold_its_marker(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    append_txn(log, 1)
    while len(log.segments) < 4:
        append(log)
    end_txn(log, 1, commit=False)
    marker = log.log_end_offset - 1
    assert len(log.segments[0].txn_index) == 0
    assert log.aborted_transactions(0, 1) == [(1, 0, marker, marker + 1)]
    assert log.aborted_transactions(marker, marker + 1) == [(1, 0, marker, marker + 1)]
    assert log.aborted_transactions(marker + 1, marker + 2) == []


def test_only_overlapping_transactions_are_returned(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    for pid in (1, 2, 3):
        append_txn(log, pid)
        end_txn(log, pid, commit=False)
    append_txn(log, 4)
    end_txn(log, 4, commit=True)
    assert [txn.producer_id for txn in log.aborted_transactions(2, 4)] == [2]
    assert [txn.producer_id for txn in log.aborted_transactions(1, 3)] == [1, 2]
    assert [txn.producer_id for txn in log.aborted_transactions(6, 8)] == []


def test_hundred_thousand_aborts_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, LogConfig())
    index = log.segments[0].txn_index
    count = 100_000
    index.path.write_bytes(b"".join(AbortedTxn(7, 2 * i, 2 * i + 1, 2 * i + 2).encode() for i in range(count)))
    log.segments[0]._txn_index = None
    log.log_end_offset = 2 * count
    reads: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: reads.append(size) or real(fd, size, position))
    found = log.aborted_transactions(150_000, 150_010)
    assert [txn.first_offset for txn in found] == [150_000, 150_002, 150_004, 150_006, 150_008]
    assert sum(reads) < 10_000


def long_search(folder: Path) -> tuple[Log, Generator[None, None, None]]:
    """A log with many aborted transactions, of which some are found."""
    log = new_log(folder, LogConfig(segment_bytes=100_000))
    for number in range(800):
        append_txn(log, 1, number)
        end_txn(log, 1, commit=False)
    assert len(log.segments) > 1
    steps = log.collect_aborted(0, log.log_end_offset, [])
    next(steps)
    return log, steps


def remove_the_segment(log: Log) -> None:
    log.delete_records(log.log_end_offset)


def rebuild_the_index(log: Log) -> None:
    path = log.segments[0].txn_index.path
    path.write_bytes(path.read_bytes()[:-34])
    log.files.txn_indexes.rebuild(log.segments[0])


def cut_the_log(log: Log) -> None:
    log.truncate_to(log.log_end_offset - 1, now_ms=NOW_MS)


@pytest.mark.parametrize("change", [remove_the_segment, rebuild_the_index, cut_the_log])
def test_a_search_notices_that_what_it_is_about_has_changed(tmp_path: Path, change: Callable[[Log], None]) -> None:
    log, steps = long_search(tmp_path)
    change(log)
    with pytest.raises(SegmentGoneError):
        at_once(steps)


def test_a_search_does_not_mind_appends_and_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=100_000))
    for number in range(800):
        append_txn(log, 1, number)
        end_txn(log, 1, commit=False)
    expected, found = log.aborted_transactions(0, log.log_end_offset), list[AbortedTxn]()
    for number, _ in enumerate(log.collect_aborted(0, log.log_end_offset, found)):
        append_txn(log, 2, number)
        end_txn(log, 2, commit=False)
        log.roll(NOW_MS)
    assert (found, len(found)) == (expected, 800)


def test_a_search_for_some_producers(tmp_path: Path) -> None:
    log = aborted_log(tmp_path)
    found: list[AbortedTxn] = []
    at_once(log.collect_aborted(0, log.log_end_offset, found, {3, 103}))
    assert [txn.producer_id for txn in found] == [3, 103]


def aborted_log(folder: Path) -> Log:
    log = new_log(folder, SMALL)
    for pid in range(1, 12):
        append_txn(log, pid)
        append_txn(log, 100 + pid)
        end_txn(log, pid, commit=False)
        end_txn(log, 100 + pid, commit=pid % 2 == 0)
    assert len(log.segments) > 3
    return log


def test_damaged_transaction_index_is_rebuilt_when_it_is_read(tmp_path: Path) -> None:
    log = aborted_log(tmp_path)
    expected = log.aborted_transactions(0, log.log_end_offset)
    log.close()
    path = log.segments[1].txn_index.path
    good = path.read_bytes()
    path.write_bytes(b"\xff\xff" + good[2:])
    log = reopen(log)
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert path.read_bytes() == good


@pytest.mark.parametrize("damage", ["missing", "torn", "garbage"])
def test_damaged_transaction_index_is_rebuilt_by_recovery(tmp_path: Path, damage: str) -> None:
    log = aborted_log(tmp_path)
    expected = log.aborted_transactions(0, log.log_end_offset)
    for segment in log.segments:
        path = segment.txn_index.path
        if not path.exists():
            continue
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-5] if damage == "torn" else b"\x01" * 68)
    recovered = copy_log(log, tmp_path / "copy")
    assert recovered.aborted_transactions(0, recovered.log_end_offset) == expected


def test_open_transaction_survives_restarts(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    append(log)
    append_txn(log, 5)
    while len(log.segments) < 3:
        append(log)
    for clean in (True, False, True):
        log = reopen(log, clean=clean)
        assert log.producer_state.first_undecided_offset == 1
    append_txn(log, 5, 1)
    info = end_txn(log, 5, commit=False)
    assert info.completed == [(5, 1, info.last_offset, True)]
    assert log.producer_state.first_undecided_offset is None


def test_duplicate_is_recognised_after_restarts(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    for sequence in range(30):
        append(log, producer_id=9, producer_epoch=0, base_sequence=sequence)
    for clean in (True, False):
        log = reopen(log, clean=clean)
        info = append(log, producer_id=9, producer_epoch=0, base_sequence=29)
        assert info.duplicate
        assert info.first_offset == 29


def test_raising_the_log_start_does_not_forget_producers_over_a_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log, producer_id=9, producer_epoch=3, base_sequence=0)
    append(log, count=5)
    log.delete_records(4)
    log = reopen(log)
    log.delete_records(6)
    log = reopen(log, clean=False)
    assert [status.producer_id for status in log.producer_state.active_producers()] == [9]


def test_descriptors_of_transaction_indexes_are_bounded(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    log._place.files._open_files_max = 3
    before = open_descriptors_of_files()
    for pid in range(1, 40):
        append_txn(log, pid)
        end_txn(log, pid, commit=False)
    assert len(log.segments) > 6
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 39
    assert open_descriptors_of_files() - before <= 2 * 3
    log.close()
    assert open_descriptors_of_files() == before
    assert reopen(log).aborted_transactions(0, 1)[0] == (1, 0, 1, 2)
