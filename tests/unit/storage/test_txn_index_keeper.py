"""Transaction indexes without a note, as in a folder that Kafka has left, are compared with the markers in steps."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from oncelog.core.errors import KafkaError
from oncelog.core.steps import at_once
from oncelog.storage import producer_replay, recovery, segment_batches, txn_index_keeper
from oncelog.storage.cleaner import CleaningPass, DamagedTxnIndexError
from oncelog.storage.cleaner_plan import Cleanable
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment_notes import FILE_NAME as NOTES
from oncelog.storage.txn_index import ENTRY_SIZE_BYTES, AbortedTxn, TxnIndex
from oncelog.storage.txn_index_keeper import SegmentGoneError
from tests.unit.storage.faulty_disk import FaultyDisk
from tests.unit.storage.log_harness import NOW_MS, append_txn, end_txn, new_log, reopen

TRANSACTIONS = 40
Steps = Generator[None, None, None]


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_batches, "_MARKERS_PER_STEP", 2)
    monkeypatch.setattr(txn_index_keeper, "_ENTRIES_PER_STEP", 2)
    monkeypatch.setattr(recovery, "CHECKED_WHEN_OPENED_BYTES_MAX", 0)
    for module in (producer_replay, txn_index_keeper):
        monkeypatch.setattr(module, "BATCHES_PER_STEP", 2)


def abort(log: Log, producer_id: int, sequence: int = 0) -> None:
    append_txn(log, producer_id, sequence)
    end_txn(log, producer_id, commit=False)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Opened again, without notes."""
    log = new_log(tmp_path, LogConfig())
    for producer_id in range(TRANSACTIONS):
        abort(log, producer_id)
    log.close()
    (log.folder / NOTES).unlink()
    return reopen(log)


def entries_on_disk(log: Log) -> list[AbortedTxn]:
    return list(log.segments[0].txn_index.entries())


def search(log: Log, found: list[AbortedTxn]) -> Steps:
    return log.collect_aborted(0, log.log_end_offset, found)


def damage(log: Log) -> None:
    path = log.segments[0].txn_index.path
    path.write_bytes(path.read_bytes()[:-34])
    log.segments[0].close_txn_index()


def leave(log: Log) -> None:
    """It is right already."""


def test_opening_a_long_segment_looks_for_no_markers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.close(clean=False)
    monkeypatch.setattr("oncelog.storage.segment.Segment.abort_markers", lambda _: pytest.fail("looked for markers"))
    reopen(log).load()


@pytest.mark.parametrize("change", [leave, damage])
def test_a_long_check_lets_others_have_their_turn(log: Log, change: Callable[[Log], None]) -> None:
    change(log)
    found: list[AbortedTxn] = []
    assert sum(1 for _ in search(log, found)) > TRANSACTIONS
    assert [txn.producer_id for txn in found] == list(range(TRANSACTIONS))
    assert sum(1 for _ in search(log, [])) < 5, "it is checked once"


@pytest.mark.parametrize("change", [leave, damage])
def test_what_is_aborted_during_a_check_is_not_lost(
    log: Log, change: Callable[[Log], None], caplog: pytest.LogCaptureFixture
) -> None:
    change(log)
    steps = search(log, [])
    with caplog.at_level(logging.WARNING):
        for number, _ in enumerate(steps):
            if number < 2 * TRANSACTIONS and number % 7 == 0:
                abort(log, TRANSACTIONS + number)
    assert len(entries_on_disk(log)) > TRANSACTIONS + 5
    assert bool(caplog.messages) == (change is damage), "what is right is not written again"
    expected = entries_on_disk(log)
    log.files.txn_indexes.rebuild(log.segments[0])
    assert entries_on_disk(log) == expected


def test_a_check_goes_on_where_one_that_has_left_it_was(log: Log) -> None:
    alone = sum(1 for _ in search(log, []))
    log.close(clean=False)
    log = reopen(log)
    first = search(log, [])
    for _ in range(alone // 2):
        next(first)
    first.close()
    assert sum(1 for _ in search(log, [])) < alone * 2 // 3


def test_two_searches_share_a_check(log: Log) -> None:
    first, second = list[AbortedTxn](), list[AbortedTxn]()
    both = [search(log, first), search(log, second)]
    while both:
        for steps in list(both):
            try:
                next(steps)
            except StopIteration:
                both.remove(steps)
    assert first == second == entries_on_disk(log)


def test_a_check_of_a_log_that_is_cut_begins_anew(log: Log) -> None:
    steps = search(log, [])
    for _ in range(TRANSACTIONS // 2):
        next(steps)
    log.truncate_to(log.log_end_offset - 4, now_ms=NOW_MS)
    with pytest.raises(SegmentGoneError):
        at_once(steps)
    found: list[AbortedTxn] = []
    at_once(search(log, found))
    assert [txn.producer_id for txn in found] == list(range(TRANSACTIONS - 2))


def cleaning_of(log: Log) -> CleaningPass:
    log.roll(NOW_MS)
    bound = log.segments[-1].base_offset
    return CleaningPass(Cleanable(log, 0, bound, 0, 1, True), map_memory_bytes=1 << 16, now_ms=NOW_MS)


def test_a_cleaning_that_begins_lets_others_have_their_turn(log: Log) -> None:
    assert sum(1 for _ in cleaning_of(log).prepare()) > TRANSACTIONS


def test_a_cleaning_does_not_begin_in_a_log_that_was_cut(log: Log) -> None:
    steps = cleaning_of(log).prepare()
    next(steps)
    log.truncate_to(1, now_ms=NOW_MS)
    with pytest.raises(SegmentGoneError):
        at_once(steps)


def log_of_segments(tmp_path: Path, count: int) -> Log:
    """Opened again, without notes and snapshots but the last: checks replay segments from the first on."""
    log = new_log(tmp_path, LogConfig())
    for producer_id in range(count * TRANSACTIONS):
        if producer_id and producer_id % TRANSACTIONS == 0:
            log.roll(NOW_MS)
        abort(log, producer_id)
    log.close()
    (log.folder / NOTES).unlink()
    for path in sorted(log.folder.glob("*.snapshot"))[:-1]:
        path.unlink()
    return reopen(log)


def delete_first(log: Log) -> None:
    log.delete_records(log.segments[1].base_offset)


def compact_two(log: Log) -> None:
    bound = log.segments[2].base_offset
    cleaning = CleaningPass(Cleanable(log, 0, bound, 0, 1, True), map_memory_bytes=1 << 16, now_ms=NOW_MS)
    at_once(cleaning.prepare())
    cleaning.build_map()
    for group in cleaning.groups:
        assert log.replace_segments(cleaning.clean(group))


@pytest.mark.parametrize("change", [delete_first, compact_two])
@pytest.mark.parametrize("steps_before", [42, 70, 110])
def test_a_check_whose_earlier_segments_are_changed_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Log], None], steps_before: int
) -> None:
    monkeypatch.setattr(segment_batches, "HEADER_CHUNK_BYTES", 300)
    log = log_of_segments(tmp_path, 4)
    last = log.segments[-1]
    path = last.txn_index.path
    path.write_bytes(path.read_bytes()[:-ENTRY_SIZE_BYTES])
    last.close_txn_index()
    found: list[AbortedTxn] = []
    steps = log.collect_aborted(last.base_offset, log.log_end_offset, found)
    for _ in range(steps_before):
        next(steps)
    change(log)
    at_once(steps)
    assert [txn.producer_id for txn in found] == list(range(3 * TRANSACTIONS, 4 * TRANSACTIONS))


def test_a_search_ends_when_the_segment_that_was_read_goes(tmp_path: Path) -> None:
    """What is found out anew of a later segment leaves out transactions whose batches were in it."""
    log = new_log(tmp_path, LogConfig())
    append_txn(log, 1)
    end = log.log_end_offset
    for producer_id in range(2, 5):
        log.roll(NOW_MS)
        end_txn(log, producer_id - 1, commit=False)
        append_txn(log, producer_id)
    end_txn(log, producer_id, commit=False)
    log.close()
    for path in (log.folder / NOTES, log.segments[1].txn_index.path, *sorted(log.folder.glob("*.snapshot"))[:-1]):
        path.unlink()
    log = reopen(log)
    found: list[AbortedTxn] = []
    steps = log.collect_aborted(0, end, found)
    next(steps)
    delete_first(log)
    with pytest.raises(SegmentGoneError):
        at_once(steps)


def test_an_index_that_could_not_be_rebuilt_is_not_used(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(search(log, []))
    path = log.segments[0].txn_index.path
    path.write_bytes(b"\1" * path.stat().st_size)

    def enospc(index: TxnIndex, entries: bytes) -> None:
        raise OSError(errno.ENOSPC, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(TxnIndex, "fill", enospc)
        with pytest.raises(KafkaError, match="injected"):
            at_once(search(log, []))
    found: list[AbortedTxn] = []
    at_once(search(log, found))
    assert [txn.producer_id for txn in found] == list(range(TRANSACTIONS))


def test_an_index_that_could_not_be_rebuilt_is_not_empty_for_a_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads the file. Without entries it would take what was aborted for committed, for ever."""
    log = new_log(tmp_path, LogConfig())
    for producer_id in range(TRANSACTIONS):
        abort(log, producer_id)
    cleaning = cleaning_of(log)
    at_once(cleaning.prepare())
    path = log.segments[0].txn_index.path
    path.write_bytes(b"\1" * path.stat().st_size)
    disk = FaultyDisk(monkeypatch, tmp_path)
    disk.fail(1)
    with pytest.raises(KafkaError, match="injected"):
        at_once(search(log, []))
    disk.heal()
    with pytest.raises(DamagedTxnIndexError):
        cleaning.build_map()


@pytest.mark.parametrize("bytes_left", [0, 5, 8 * ENTRY_SIZE_BYTES])
@pytest.mark.parametrize("filler", [b"", b"\1"])
def test_a_cut_leaves_what_was_aborted_below_it_also_in_an_index_that_is_damaged(
    log: Log, bytes_left: int, filler: bytes
) -> None:
    at_once(search(log, []))
    path = log.segments[0].txn_index.path
    content = path.read_bytes()
    path.write_bytes(content[:bytes_left] + filler * (len(content) - bytes_left))
    log.truncate_to(log.log_end_offset - 4, now_ms=NOW_MS)
    found: list[AbortedTxn] = []
    at_once(search(log, found))
    assert [txn.producer_id for txn in found] == list(range(TRANSACTIONS - 2))
