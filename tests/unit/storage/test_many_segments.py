"""Thousands of segments in one log: what is done with some of them does not take longer for the others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from oncelog.storage.batch_times import BatchTimesCache, LongLookup, TimesReader
from oncelog.storage.durability import ROLLED_SEGMENTS_MAX
from oncelog.storage.indexed_batches import IndexedBatches
from oncelog.storage.log import SEGMENTS_DELETED_AT_ONCE_MAX, Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment import Segment
from oncelog.storage.segment_notes import FILE_NAME, SegmentNote, decode_notes
from oncelog.storage.time_lookup import first_record_from, latest_record
from tests.unit.storage.log_harness import NOW_MS, append, append_txn, delete_old, end_txn, new_log, reopen

LATER_MS = NOW_MS + 20_000
CONFIG = LogConfig(segment_bytes=1_000, retention_ms=10_000)


def log_of(folder: Path, segments: int) -> Log:
    log = new_log(folder, CONFIG)
    while len(log.segments) < segments:
        append(log)
        log.roll(NOW_MS)
    return log


def notes_on_disk(log: Log) -> dict[int, SegmentNote]:
    return decode_notes((log.folder / FILE_NAME).read_bytes())


def notes_of_files(log: Log) -> dict[int, SegmentNote]:
    """Of those that are known."""
    last = log.segments[-1]
    notes = {segment.base_offset: segment.take_note(is_growing=segment is last) for segment in log.segments}
    return {base_offset: note for base_offset, note in notes.items() if note is not None}


def test_rolls_and_flushes_look_at_segments_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, 100)
    log.flush()
    taken: list[Segment] = []
    take_note = Segment.take_note

    def counted(segment: Segment, *, is_growing: bool) -> SegmentNote | None:
        taken.append(segment)
        return take_note(segment, is_growing=is_growing)

    monkeypatch.setattr(Segment, "take_note", counted)
    for _ in range(5):
        append(log)
        log.roll(NOW_MS)
    assert len(taken) == 0
    log.flush()
    assert len(taken) == 6, "the five that were rolled, and the active one"
    append(log)
    log.flush()
    assert len(taken) == 7
    assert notes_on_disk(log) == notes_of_files(log)


@pytest.mark.parametrize("seed", range(8))
def test_notes_on_disk_say_what_is_in_the_files(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    log, sequence = new_log(tmp_path, CONFIG), 0
    for _ in range(60):
        match chosen.randrange(11):
            case 0 | 1 | 2:
                append_txn(log, 1, sequence)
                end_txn(log, 1, commit=chosen.random() < 0.3)
                sequence += 1
            case 3 | 4:
                append(log)
                log.roll(NOW_MS)
            case 5:
                log.delete_records(chosen.randrange(log.log_start_offset, log.log_end_offset + 1))
            case 6:
                victim = chosen.choice(log.segments).base_offset
                log.files.txn_indexes.rebuild_at(victim)
            case 7:
                log.close()
                if chosen.random() < 0.5:
                    (log.folder / FILE_NAME).unlink()  # as in a folder that Kafka has left
                log = reopen(log)
            case 8:
                log.aborted_transactions(log.log_start_offset, log.log_end_offset)
            case 9 | 10:
                log.truncate_to(chosen.randrange(log.log_start_offset, log.log_end_offset + 1), now_ms=NOW_MS)
                sequence = next((producer.last_sequence + 1 for producer in log.producer_state.active_producers()), 0)
        append(log)
        log.flush()
        assert notes_on_disk(log) == notes_of_files(log)


def test_segments_that_take_the_place_of_others_are_noted(tmp_path: Path) -> None:
    log = log_of(tmp_path, 10)
    log.flush()
    log.truncate_to(3, now_ms=NOW_MS)
    for _ in range(3):
        append(log)
        log.roll(NOW_MS)
    log.flush()
    assert notes_on_disk(log) == notes_of_files(log)
    assert len(notes_on_disk(log)) == len(log.segments)


def test_retention_opens_no_more_indexes_than_it_deletes_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path, 5 * SEGMENTS_DELETED_AT_ONCE_MAX)
    log.close()
    log, opened = reopen(log), list[object]()
    open_indexes = IndexedBatches.open_indexes
    monkeypatch.setattr(IndexedBatches, "open_indexes", lambda segment: opened.append(segment) or open_indexes(segment))
    assert delete_old(log, LATER_MS) == SEGMENTS_DELETED_AT_ONCE_MAX
    assert len(opened) <= SEGMENTS_DELETED_AT_ONCE_MAX + 1, "and the active one's"
    deleted = SEGMENTS_DELETED_AT_ONCE_MAX
    while count := delete_old(log, LATER_MS):
        deleted += count
    assert deleted == 5 * SEGMENTS_DELETED_AT_ONCE_MAX - 1
    assert len(log.segments) == 1


def test_many_segments_that_wait_for_a_flush_make_it_due(tmp_path: Path) -> None:
    log = log_of(tmp_path, ROLLED_SEGMENTS_MAX)
    assert not log.is_flush_due(NOW_MS)
    append(log)
    log.roll(NOW_MS)
    assert log.is_flush_due(NOW_MS)
    log.flush()
    assert not log.is_flush_due(NOW_MS)


@pytest.mark.parametrize("settings", [{"segment_ms": 1}, {"segment_bytes": 120}])
def test_small_segments_are_rolled_up_to_a_number_and_large_ones_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    monkeypatch.setattr("oncelog.storage.log.SMALL_SEGMENTS_MAX", 10)
    monkeypatch.setattr("oncelog.storage.log.SMALL_SEGMENT_BYTES", 1_000)
    log = new_log(tmp_path, LogConfig(**settings))
    for number in range(100):
        append(log, timestamp=NOW_MS + 10 * number)
    sizes = [segment.size_bytes for segment in log.segments]
    assert len(sizes) > 12
    assert max(sizes[:9]) < 150
    assert min(sizes[9:-1]) >= 1_000
    assert log.log_end_offset == 100


def test_segment_whose_index_is_full_is_rolled_whatever_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.storage.log.SMALL_SEGMENTS_MAX", 1)
    log = new_log(tmp_path, LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    for number in range(12):
        append(log, timestamp=NOW_MS + number)
    assert len(log.segments) > 3


@pytest.mark.parametrize("timestamp", [None, NOW_MS, NOW_MS + 1])
def test_time_indexes_of_many_segments_are_opened_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp: int | None
) -> None:
    monkeypatch.setattr("oncelog.storage.batch_times.SHORT_INDEXES_MAX", 10)
    log = new_log(tmp_path, CONFIG)
    for number in range(60):
        append(log, timestamp=NOW_MS - 1_000 + number)
        log.roll(NOW_MS)
    append(log, timestamp=NOW_MS)
    log.close()
    log, opened, breaks = reopen(log), list[object](), 0
    _ = log.segments[-1].largest
    open_indexes = IndexedBatches.open_indexes
    monkeypatch.setattr(IndexedBatches, "open_indexes", lambda segment: opened.append(segment) or open_indexes(segment))
    while True:
        before = len(opened)
        reader = TimesReader(log.topic_partition, BatchTimesCache())
        try:
            if timestamp is None:
                found = latest_record(log, reader)
            else:
                found = first_record_from(log, timestamp, end_offset=log.log_end_offset, reader=reader)
            break
        except LongLookup as long:
            assert not long.batch
            assert len(opened) - before == 10
            breaks += 1
    assert breaks == 5, "the active one's is open"
    assert (found and found.offset) == (None if timestamp == NOW_MS + 1 else 60)
