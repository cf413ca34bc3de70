"""What a log accepts, what it makes of it on disk, and what is left after an append that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.batch import Record, build_batch, build_control_batch, crc_of
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_config import LogConfig
from tests.unit.storage.log_harness import (
    NOW_MS,
    SMALL,
    VALUE,
    append,
    append_txn,
    batch,
    copy_log,
    end_txn,
    files,
    headers,
    new_log,
    ranges,
    read_all,
    reopen,
    values,
)


def refused(log: Log, data: bytes, **options: Any) -> ErrorCode:
    before = (log.log_end_offset, read_all(log))
    with pytest.raises(KafkaError) as raised:
        append(log, data, **options)
    assert (log.log_end_offset, read_all(log)) == before, "a refused append changed the log"
    assert raised.value.message, "an error without a text helps nobody"
    return raised.value.code


def changed(data: bytes, position: int, replacement: bytes) -> bytes:
    """With other bytes in the header and the CRC made right again."""
    out = bytearray(data)
    out[position : position + len(replacement)] = replacement
    out[17:21] = crc_of(out, 0, len(out)).to_bytes(4, "big")
    return bytes(out)


def test_appended_batches_get_the_next_offsets_and_the_leader_epoch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    first = append(log, count=3, epoch=7)
    second = append(log, count=2, epoch=7)
    assert (first.first_offset, first.last_offset, second.first_offset, second.last_offset) == (0, 2, 3, 4)
    assert log.log_end_offset == 5
    assert ranges(log) == [(0, 2), (3, 4)]
    assert {header.leader_epoch for header in headers(log)} == {7}
    assert log.leader_epochs.entries == [(7, 0)]


def test_bytes_behind_the_prefix_are_written_as_they_came(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    sent = batch(5, producer_id=9, producer_epoch=1, base_sequence=0)
    append(log, memoryview(sent))
    written = read_all(log, start=1)
    assert written[16:] == sent[16:]
    assert written[:16] == bytes.fromhex("0000000000000001") + sent[8:12] + bytes(4)


def test_log_append_time_restamps_the_batch_and_its_crc(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    info = append(log, count=2, timestamp=1, now_ms=NOW_MS + 5)
    (header,) = headers(log)
    data = read_all(log)
    assert info.log_append_time == info.max_timestamp == header.max_timestamp == NOW_MS + 5
    assert header.timestamp_type_append
    assert header.crc == crc_of(data, 0, len(data))
    assert values(log) == [VALUE, VALUE]


def test_topic_codec_compresses_anew(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(compression_type="zstd"))
    append(log, count=20, producer_id=3, producer_epoch=0, base_sequence=0)
    end_txn(log, 3, commit=True)
    data_header, marker_header = headers(log)
    assert data_header.codec == 4
    assert (data_header.producer_id, data_header.records_count, data_header.max_timestamp) == (3, 20, NOW_MS)
    assert marker_header.codec == 0, "markers are never compressed"
    assert values(log)[:20] == [VALUE] * 20


def test_uncompressed_topic_unfolds_what_clients_compressed(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(compression_type="uncompressed"))
    append(log, count=3, codec=1)
    assert [header.codec for header in headers(log)] == [0]
    assert values(log) == [VALUE] * 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:40], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch() + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch()[:-1] + b"\x07", ErrorCode.CORRUPT_MESSAGE),
        (changed(batch(), 8, (10).to_bytes(4, "big")), ErrorCode.CORRUPT_MESSAGE),
        (changed(batch(), 16, b"\x01"), ErrorCode.INVALID_RECORD),
        (changed(batch(), 16, b"\x03"), ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (changed(batch(2), 57, (3).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
        (changed(batch(), 57, (0).to_bytes(4, "big")), ErrorCode.INVALID_RECORD),
        (changed(batch(), 23, (-1).to_bytes(4, "big", signed=True)), ErrorCode.INVALID_RECORD),
        (batch(control=True), ErrorCode.INVALID_RECORD),
        (batch(producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (batch(append_time=True), ErrorCode.INVALID_TIMESTAMP),
        (changed(batch(), 21, b"\0\x05"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(value=bytes(3000)), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(timestamp=NOW_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (batch(3, timestamp=NOW_MS, step_ms=3_000_000), ErrorCode.INVALID_TIMESTAMP),
        (batch(timestamp=NOW_MS - 1001), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_clients_batch_is_refused(tmp_path: Path, data: bytes, code: ErrorCode) -> None:
    log = new_log(tmp_path, LogConfig(max_message_bytes=2000, message_timestamp_before_max_ms=1000))
    append(log)
    assert refused(log, data) is code


@pytest.mark.parametrize("position", range(21, 61))
def test_a_batch_that_was_damaged_on_its_way_is_corrupt_whatever_else_is_wrong_with_it(
    tmp_path: Path, position: int
) -> None:
    """Its client sends it again then. Anything else it takes for the last word."""
    log = new_log(tmp_path)
    for bit in (0x01, 0x20, 0x80):
        data = bytearray(batch(2, producer_id=5, producer_epoch=0, base_sequence=0))
        data[position] ^= bit
        assert refused(log, bytes(data)) is ErrorCode.CORRUPT_MESSAGE


def test_a_negative_epoch_is_refused_and_a_producer_id_without_an_epoch_is_not(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert refused(log, batch(producer_id=5, producer_epoch=-2, base_sequence=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, producer_id=5, producer_epoch=-1, base_sequence=0)
    assert log.log_end_offset == 1


def test_batch_without_timestamp_passes_the_timestamp_limits(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_before_max_ms=1000))
    append(log, timestamp=-1)
    assert log.log_end_offset == 1


def test_compacted_topic_needs_keys(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(cleanup_policy=("compact",)))
    assert refused(log, batch(key=None)) is ErrorCode.INVALID_RECORD
    mixed = build_batch([Record(0, 0, b"k", b"v"), Record(1, 0, None, b"v")], timestamp_ms=NOW_MS)
    assert refused(log, mixed) is ErrorCode.INVALID_RECORD
    append(log, key=b"")
    assert log.log_end_offset == 1


def test_append_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=300))
    assert refused(log, batch(10)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_duplicate_is_answered_with_the_old_offsets_and_not_written(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    first = append(log, count=2, producer_id=8, producer_epoch=0, base_sequence=0, timestamp=NOW_MS - 3)
    size = log.size_bytes
    again = append(log, count=2, producer_id=8, producer_epoch=0, base_sequence=0, timestamp=NOW_MS - 3)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset) == (1, 2)
    assert again.log_append_time == NOW_MS - 3
    assert (log.size_bytes, log.log_end_offset) == (size, 3)


def test_sequence_gap_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, producer_id=8, producer_epoch=0, base_sequence=0)
    gap = batch(producer_id=8, producer_epoch=0, base_sequence=5)
    assert refused(log, gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_marker_ends_a_transaction_and_an_abort_is_indexed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append_txn(log, 1)
    append_txn(log, 2)
    assert log.producer_state.first_undecided_offset == 0
    info = end_txn(log, 1, commit=False)
    assert info.completed == [(1, 0, 2, True)]
    assert log.aborted_transactions(0, 3) == [(1, 0, 2, 1)], "the LSO stays at the first offset of producer 2"
    assert end_txn(log, 2, commit=True).completed == [(2, 1, 3, False)]
    assert len(log.segments[0].txn_index) == 1


def test_clients_may_not_write_markers_but_coordinators_may(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    marker = build_control_batch(True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS)
    assert refused(log, marker) is ErrorCode.INVALID_RECORD
    append(log, marker, origin=Origin.COORDINATOR)
    assert headers(log)[0].is_control


def test_replicated_batches_keep_offsets_and_epochs(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = batch(2, base_offset=10, leader_epoch=3) + batch(1, base_offset=20, leader_epoch=4)
    info = append(log, data, epoch=4, origin=Origin.REPLICATION)
    assert (info.first_offset, info.last_offset, log.log_end_offset) == (10, 20, 21)
    assert log.leader_epochs.entries == [(3, 10), (4, 20)]
    assert read_all(log, start=10) == data


def test_replicated_batches_of_a_later_epoch_are_left_out(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = batch(base_offset=0, leader_epoch=3) + batch(base_offset=1, leader_epoch=5)
    assert append(log, data, epoch=3, origin=Origin.REPLICATION).last_offset == 0
    assert append(log, batch(base_offset=1, leader_epoch=5), epoch=3, origin=Origin.REPLICATION).last_offset == 0
    assert log.log_end_offset == 1


def test_replicated_offsets_may_not_go_back(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, count=3)
    assert refused(log, batch(base_offset=2), origin=Origin.REPLICATION) is ErrorCode.UNKNOWN_SERVER_ERROR
    twice = batch(2, base_offset=3) + batch(2, base_offset=4)
    assert refused(log, twice, origin=Origin.REPLICATION) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_all_batches_are_checked_before_any_is_written(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    good = batch(producer_id=1, producer_epoch=5, base_sequence=0)
    old_epoch = batch(producer_id=1, producer_epoch=4, base_sequence=0)
    assert refused(log, good + old_epoch, origin=Origin.COORDINATOR) is ErrorCode.INVALID_PRODUCER_EPOCH
    corrupt = bytearray(good)
    corrupt[-1] ^= 1
    assert refused(log, good + bytes(corrupt), origin=Origin.REPLICATION) is ErrorCode.CORRUPT_MESSAGE
    assert len(log.producer_state) == 0


def test_more_batches_than_one_system_call_takes(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log, batch() * 1100, origin=Origin.COORDINATOR)
    assert ranges(log) == [(offset, offset) for offset in range(1100)]


class BrokenDisk:
    """Replaces a system call: lets some bytes through, then fails in a chosen way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, let_through: int, *, short: bool) -> None:
        self._real = os.pwritev
        self._let_through = let_through
        self._short = short
        monkeypatch.setattr(os, "pwritev", self)

    def __call__(self, descriptor: int, buffers: list[bytes], position: int) -> int:
        data = b"".join(buffers)[: self._let_through]
        os.pwrite(descriptor, data, position)
        if not self._short:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("let_through", [0, 5, 70])
def test_failed_write_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, let_through: int, short: bool
) -> None:
    log = new_log(tmp_path)
    append(log, producer_id=1, producer_epoch=0, base_sequence=0)
    before = files(log.folder, ".log")
    with monkeypatch.context() as broken:
        BrokenDisk(broken, let_through, short=short)
        with pytest.raises(KafkaError) as raised:
            append(log, producer_id=1, producer_epoch=0, base_sequence=1)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert files(log.folder, ".log") == before
    assert append(log, producer_id=1, producer_epoch=0, base_sequence=1).first_offset == 1, "the retry is no duplicate"
    assert ranges(reopen(log, clean=False)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("point", ["log.append.after_write", "log.append.after_indexes", "log.append.before_txn_index"])
def test_log_that_failed_after_a_write_goes_on_only_after_recovery(tmp_path: Path, point: str) -> None:
    log = new_log(tmp_path)
    append_txn(log, 1)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    failpoints.arm(point, fail)
    try:
        with pytest.raises(KafkaError) as raised:
            end_txn(log, 1, commit=False)
    finally:
        failpoints.disarm_all()
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.has_failed
    with pytest.raises(KafkaError, match="recovered"):
        append(log)
    assert log.close() is False
    again = reopen(log, clean=False)
    assert ranges(again) == [(0, 0), (1, 1)]
    assert again.aborted_transactions(0, 2) == [(1, 0, 1, 2)]
    assert append(again).first_offset == 2


def test_failed_epoch_file_fails_the_append_and_is_tried_again(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, epoch=1)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    failpoints.arm("checkpoint.before_rename", fail)
    try:
        with pytest.raises(KafkaError):
            append(log, epoch=2)
    finally:
        failpoints.disarm_all()
    assert log.log_end_offset == 1
    append(log, epoch=2)
    assert copy_log(log, tmp_path / "copy").leader_epochs.entries == [(1, 0), (2, 1)]


def test_flush_messages_flushes_within_the_append(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(flush_messages=3))
    append(log, count=2)
    assert log.recovery_point == 0
    append(log)
    assert log.recovery_point == 3


def test_small_segments_hold_whole_batches_only(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    for _ in range(40):
        append(log)
    assert len(log.segments) > 3
    assert ranges(log) == [(offset, offset) for offset in range(40)]
    assert all(segment.size_bytes <= SMALL.segment_bytes for segment in log.segments)
