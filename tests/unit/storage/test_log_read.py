"""Reading: whole batches, from the right place, never past the bound, and fast when it goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_reader import READ_POSITIONS_MAX
from tests.unit.storage.log_harness import (
    NOW_MS,
    SMALL,
    append,
    batch,
    headers_in,
    new_log,
    read_all,
    reopen,
)

BATCH_BYTES = len(batch(3))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Forty batches of three records in several segments."""
    log = new_log(tmp_path, SMALL)
    for _ in range(40):
        append(log, count=3)
    assert len(log.segments) > 4
    return log


def read_ranges(log: Log, offset: int, max_bytes: int, end_offset: int, **options: bool) -> list[tuple[int, int]]:
    data = log.read(offset, max_bytes, end_offset=end_offset, **options).data
    return [(header.base_offset, header.last_offset) for header in headers_in(data)]


@pytest.mark.parametrize("max_bytes", [1, 60, 61, BATCH_BYTES, 2 * BATCH_BYTES - 1, 500, 1 << 20])
def test_consecutive_reads_give_every_byte_once(log: Log, max_bytes: int) -> None:
    everything = b"".join(segment.log_file.path.read_bytes() for segment in log.segments)
    assert read_all(log, max_bytes=max_bytes) == everything


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_upper_bounds_lead_through_the_log_as_well(log: Log, max_bytes: int) -> None:
    offset, data = 0, b""
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes, end_offset=log.log_end_offset)
        assert result.start_offset == offset
        assert headers_in(result.data)[-1].last_offset < result.upper_bound_offset
        data += bytes(result.data)
        offset = result.upper_bound_offset
    assert data == read_all(log)


def test_every_offset_is_found_in_its_batch(log: Log) -> None:
    for offset in range(log.log_end_offset):
        first = read_ranges(log, offset, 1, log.log_end_offset)
        base = offset - offset % 3
        assert first == [(base, base + 2)]


def test_read_never_passes_the_end_offset(log: Log) -> None:
    for end_offset in range(0, log.log_end_offset + 1, 3):
        for offset in (0, max(0, end_offset - 4), end_offset):
            found = read_ranges(log, offset, 1 << 20, end_offset)
            assert all(last < end_offset for _, last in found)
            assert bool(found) == (offset < end_offset)


def test_batch_that_holds_the_end_offset_is_not_read(log: Log) -> None:
    assert read_ranges(log, 3, 1 << 20, 5) == []
    assert read_ranges(log, 0, 1 << 20, 5) == [(0, 2)]


def test_maximum_of_bytes_is_kept_except_for_the_first_batch(log: Log) -> None:
    assert read_ranges(log, 0, 3 * BATCH_BYTES, 120) == [(0, 2), (3, 5), (6, 8)]
    assert read_ranges(log, 0, 3 * BATCH_BYTES - 1, 120) == [(0, 2), (3, 5)]
    assert read_ranges(log, 0, BATCH_BYTES - 1, 120) == [(0, 2)]
    assert read_ranges(log, 0, BATCH_BYTES - 1, 120, min_one_batch=False) == []
    assert read_ranges(log, 0, 0, 120, min_one_batch=False) == []


def test_one_read_stays_in_one_segment(log: Log) -> None:
    second = log.segments[1]
    result = log.read(second.base_offset, 1 << 20, end_offset=log.log_end_offset)
    assert len(result.data) == second.size_bytes
    assert result.upper_bound_offset == log.segments[2].base_offset


@pytest.mark.parametrize("offset", [-1, 121])
def test_offset_outside_of_the_log_is_refused(log: Log, offset: int) -> None:
    with pytest.raises(KafkaError) as raised:
        log.read(offset, 100, end_offset=120)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(120, 100, end_offset=120).data == b""


def test_offset_below_the_log_start_is_refused(log: Log) -> None:
    log.delete_records(7)
    with pytest.raises(KafkaError) as raised:
        log.read(6, 100, end_offset=120)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read_ranges(log, 7, 1, 120) == [(6, 8)]


def test_gap_at_the_end_of_a_segment_leads_to_the_next(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=500))
    append(log, batch(2, base_offset=0), origin=Origin.REPLICATION)
    append(log, batch(10, base_offset=50), origin=Origin.REPLICATION)
    assert [segment.base_offset for segment in log.segments] == [0, 50]
    for offset in (2, 30, 49, 50):
        assert read_ranges(log, offset, 1, 60) == [(50, 59)]
    assert read_ranges(log, 10, 1, 40) == []


def test_gap_within_a_segment_is_skipped(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=0))
    for base_offset in (0, 10, 30):
        append(log, batch(2, base_offset=base_offset), origin=Origin.REPLICATION)
    assert read_ranges(log, 2, 1, 32) == [(10, 11)]
    assert read_ranges(log, 29, 1, 32) == [(30, 31)]
    assert read_ranges(log, 0, 1 << 20, 20) == [(0, 1), (10, 11)]


def test_reader_at_the_end_sees_what_is_appended_next(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    offset = 0
    for number in range(60):
        append(log, count=3)
        result = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
        (header,) = headers_in(result.data)
        assert header.base_offset == offset == 3 * number
        offset = header.next_offset


def test_going_on_reads_the_data_and_nothing_else(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    middle = log.segments[2]
    end = log.segments[3].base_offset
    log.read(middle.base_offset, BATCH_BYTES, end_offset=end)
    reads: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: reads.append(size) or real(fd, size, position))
    result = log.read(middle.base_offset + 3, 1 << 20, end_offset=end)
    assert reads == [len(result.data)]


def test_remembered_positions_are_bounded_and_dropped_when_the_log_is_cut(log: Log) -> None:
    for offset in range(log.log_end_offset):
        log.read(offset, 1, end_offset=log.log_end_offset)
    assert len(log.files.reader._positions) <= READ_POSITIONS_MAX
    log.truncate_to(60, now_ms=NOW_MS)
    append(log, count=1)
    append(log, count=7)
    assert read_ranges(log, 60, 1, 68) == [(60, 60)]
    assert read_ranges(log, 63, 1, 68) == [(61, 67)]


def test_position_found_through_a_bound_is_not_mistaken_for_another_segments(log: Log) -> None:
    boundary = log.segments[2].base_offset
    assert read_ranges(log, boundary - 3, 1 << 20, boundary) == [(boundary - 3, boundary - 1)]
    assert read_ranges(log, boundary, 1, log.log_end_offset) == [(boundary, boundary + 2)]


def test_large_batches_without_index_entries(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=1 << 30))
    for _ in range(30):
        append(log, value=bytes(5000))
    assert read_all(log, max_bytes=12_000) == log.segments[0].log_file.path.read_bytes()
    assert read_ranges(log, 17, 12_000, 30) == [(17, 17), (18, 18)]


def test_index_that_points_to_the_wrong_place_is_rebuilt(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.flush()
    segment = log.segments[1]
    index = segment.log_file.path.with_suffix(".index")
    entries = bytearray(index.read_bytes())
    entries[7] ^= 0x10
    index.write_bytes(entries)
    for offset in range(segment.base_offset, log.segments[2].base_offset):
        assert read_ranges(log, offset, 1, 120) == [(offset - offset % 3, offset - offset % 3 + 2)]
    assert "rebuilding the indexes" in caplog.text


@pytest.mark.parametrize("how", ["stop", "kill", "cut"])
def test_an_index_goes_on_where_it_was_before_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """What was appended before counts: else a log that grows little between starts has no entry, as if it were lost."""
    config = LogConfig(index_interval_bytes=300)
    whole = new_log(tmp_path, config, TopicPartition("whole", 0))
    log = new_log(tmp_path, config)
    for _ in range(12):
        append(whole)
        append(log)
        if how == "cut":
            append(log)
            log.truncate_to(whole.log_end_offset, now_ms=NOW_MS)
        else:
            log.flush()
            log = reopen(log, clean=how == "stop")
        assert read_ranges(log, log.log_end_offset - 1, 1, log.log_end_offset)
    entries = whole.segments[0].offset_index.entries()
    assert entries
    assert log.segments[0].offset_index.entries() == entries
    assert "rebuilding the indexes" not in caplog.text


def test_missing_log_file_is_a_storage_error(log: Log) -> None:
    log.close(clean=False)
    log.segments[1].log_file.path.unlink()
    with pytest.raises(KafkaError) as raised:
        log.read(log.segments[1].base_offset, 100, end_offset=120)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_reads_with_one_descriptor_at_a_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    log._place.files._open_files_max = 1
    for number in range(40):
        append(log, count=3, timestamp=NOW_MS + number)
    assert len(log._place.files) == 1
    assert len(headers_in(read_all(log))) == 40


@pytest.mark.parametrize("length", [-12, -13, -200, 0])
def test_a_damaged_length_does_not_lead_a_read_round_in_circles(tmp_path: Path, length: int) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=100_000, index_interval_bytes=100_000))
    for _ in range(5):
        append(log)
    size = len(batch())
    with log.segments[-1].log_file.path.open("r+b") as file:
        file.seek(2 * size + 8)
        file.write(length.to_bytes(4, "big", signed=True))
    with pytest.raises(KafkaError) as caught:
        log.read(0, 4 * size, end_offset=5)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
