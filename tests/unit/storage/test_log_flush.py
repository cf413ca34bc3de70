"""What a flush puts on disk, what it may then vouch for, and when one is due."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.log_config import LogConfig
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, append_txn, copy_log, end_txn, new_log, ranges


def test_flush_syncs_every_file_that_has_changed(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    append_txn(log, 1)
    end_txn(log, 1, commit=False)
    while len(log.segments) < 3:
        append(log)
    work = log.prepare_flush()
    assert work is not None
    on_disk = {path for path in log.folder.iterdir() if path.name not in ("partition.metadata", "oncelog-segments")}
    assert set(work.files) == on_disk
    assert work.folder == log.folder
    work.run()
    log.finish_flush(work)
    assert log.recovery_point == log.durable_offset == log.log_end_offset
    assert log.prepare_flush() is None


def test_next_flush_leaves_older_segments_alone(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    while len(log.segments) < 3:
        append(log)
    log.flush()
    append(log)
    work = log.prepare_flush()
    assert work is not None
    assert {path.stem for path in work.files} == {f"{log.segments[-1].base_offset:020d}"}
    assert work.folder is None


def test_what_is_appended_during_a_flush_is_not_vouched_for(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    work = log.prepare_flush()
    assert work is not None
    append(log)
    work.run()
    log.finish_flush(work)
    assert (log.recovery_point, log.log_end_offset) == (1, 2)


def test_batches_alone_can_be_made_durable(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    while len(log.segments) < 3:
        append(log)
    work = log.prepare_flush(batches_only=True)
    assert work is not None
    assert {path.suffix for path in work.files} == {".log"}
    assert len(work.files) == 3
    work.run()
    log.finish_flush(work)
    assert (log.durable_offset, log.recovery_point) == (log.log_end_offset, 0)
    assert log.prepare_flush(batches_only=True) is None
    append(log)
    again = log.prepare_flush(batches_only=True)
    assert again is not None
    assert len(again.files) == 1
    whole = log.prepare_flush()
    assert whole is not None
    assert {".index", ".timeindex", ".snapshot"} <= {path.suffix for path in whole.files}


def test_file_that_was_deleted_meanwhile_is_no_error(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    while len(log.segments) < 3:
        append(log)
    work = log.prepare_flush()
    assert work is not None
    log.delete_records(log.log_end_offset - 1)
    work.run()
    log.finish_flush(work)
    assert log.recovery_point == log.log_end_offset


def test_failed_fsync_stops_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    failpoints.arm("log.flush.before_fsync", fail)
    try:
        with pytest.raises(KafkaError) as raised:
            log.flush()
    finally:
        failpoints.disarm_all()
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0
    with pytest.raises(KafkaError, match="recovered"):
        append(log)
    assert ranges(copy_log(log, tmp_path / "copy")) == [(0, 0)]


def test_flush_ms_counts_from_the_first_batch_that_is_not_flushed(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(flush_ms=100))
    assert not log.is_flush_due(NOW_MS + 1000)
    append(log, now_ms=NOW_MS)
    append(log, now_ms=NOW_MS + 90)
    assert not log.is_flush_due(NOW_MS + 99)
    assert log.is_flush_due(NOW_MS + 100)
    log.flush()
    assert not log.is_flush_due(NOW_MS + 1000)


def test_indexes_are_complete_on_disk_after_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=200))
    for number in range(50):
        append(log, timestamp=NOW_MS + number)
    index = log.segments[0].log_file.path.with_suffix(".index")
    assert index.stat().st_size == 0, "entries wait in memory"
    synced: list[str] = []
    real = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())) or real(fd)
    )
    log.flush()
    assert index.stat().st_size == 8 * len(log.segments[0].offset_index) > 0
    assert str(index) in synced


def test_new_settings_apply_from_the_next_append_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log)
    log.reconfigure(LogConfig(max_message_bytes=10, producer_id_expiration_ms=7))
    assert log.producer_state.producer_expiration_ms == 7
    with pytest.raises(KafkaError) as raised:
        append(log)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
