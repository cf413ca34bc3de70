"""What a flush puts on disk, what it may then vouch for, and when one is due."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.durability import Durability
from oncelog.storage.flush_work import FileNotOpened
from oncelog.storage.log import Log, LogPlace
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
    assert {path for path in work.files if path.exists()} == on_disk
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


def test_the_last_entry_of_a_time_index_is_synced_though_its_batches_were_before(tmp_path: Path) -> None:
    log = new_log(tmp_path, SMALL)
    append(log)
    flush_during_roll = log.prepare_flush()
    assert flush_during_roll is not None
    log.roll(NOW_MS)
    flush_during_roll.run()
    log.finish_flush(flush_during_roll)
    names = log.prepare_flush(batches_only=True)
    assert names is not None
    names.run()
    log.finish_flush(names)
    work = log.prepare_flush()
    assert work is not None
    assert log.folder / "00000000000000000000.timeindex" in work.files
    work.run()
    log.finish_flush(work)
    assert log.prepare_flush() is None
    append(log)
    after = log.prepare_flush()
    assert after is not None
    assert {path.stem for path in after.files} == {f"{log.segments[-1].base_offset:020d}"}


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


def test_folder_that_was_renamed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)
    work = log.prepare_flush()
    assert work is not None
    real_open = os.open

    def open_late(path: Path, *args: int) -> int:
        if Path(path) == log.folder:
            log.folder.rename(tmp_path / "deleted")
        return real_open(path, *args)

    monkeypatch.setattr(os, "open", open_late)
    work.run()
    assert (tmp_path / "deleted").exists()


def test_file_that_cannot_be_opened_is_no_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, LogConfig(flush_ms=1000))
    append(log)
    work = log.prepare_flush()
    assert work is not None
    assert not log.is_flush_due(NOW_MS + 1000)

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        with pytest.raises(FileNotOpened) as raised:
            work.run()
    assert raised.value.errno == errno.EMFILE
    log.finish_flush(work, raised.value)
    assert log.is_flush_due(NOW_MS)
    log.flush()
    assert log.recovery_point == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_flush_for_an_acknowledgement_goes_on_without_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    log = new_log(tmp_path, LogConfig(flush_messages=1, index_interval_bytes=1))

    def fail(*_: object) -> int:
        raise OSError(code, "injected")

    append(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        append(log)
        append(log)
    assert (log.durable_offset, log.recovery_point) == (3, 1)
    assert ranges(copy_log(log, tmp_path / "killed")) == [(0, 0), (1, 1), (2, 2)]
    append(log)
    assert (log.durable_offset, log.recovery_point) == (4, 4)


def test_retry_of_what_was_written_and_refused_is_acknowledged_when_it_is_on_disk(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(flush_messages=1))
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    failpoints.arm("log.append.after_indexes", failpoints.on_nth_hit(1, fail))
    try:
        with pytest.raises(KafkaError):
            append(log, **sequence)
    finally:
        failpoints.disarm_all()
    assert append(log, **sequence).duplicate
    assert log.durable_offset == log.recovery_point == 1


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


def test_where_there_is_no_fdatasync_fsync_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path)
    append(log)
    synced: list[str] = []
    real = os.fsync
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())) or real(fd))
    log.flush()
    assert str(log.segments[0].log_file.path) in synced
    assert log.recovery_point == 1


def test_new_settings_apply_from_the_next_append_on(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log)
    log.reconfigure(LogConfig(max_message_bytes=10, producer_id_expiration_ms=7))
    assert log.producer_state.producer_expiration_ms == 7
    with pytest.raises(KafkaError) as raised:
        append(log)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_append_without_a_descriptor_for_its_fsync_is_refused_and_the_log_goes_on_when_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is in the log. Nobody reads it, and nothing is written behind it, before it is on disk."""
    log = new_log(tmp_path, LogConfig(flush_messages=1))
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    def too_many(*_: object) -> bool:
        raise FileNotOpened(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("oncelog.storage.flush_work._sync", too_many)
        with pytest.raises(KafkaError) as raised:
            append(log, **sequence)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.can_be_repaired
        with pytest.raises(KafkaError):
            append(log)
        assert (log.log_end_offset, log.recovery_point, log.can_be_repaired) == (1, 0, True)
    log.repair()
    assert (log.has_failed, log.recovery_point) == (False, 1)
    assert append(log, **sequence).duplicate


def test_file_that_the_disk_does_not_let_open_is_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    append(log)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(KafkaError):
            log.flush()
    assert log.has_failed


def test_snapshots_are_synced_by_the_next_flush_if_this_one_does_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path, SMALL)
    while len(log.segments) < 3:
        append(log)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    with monkeypatch.context() as patch:
        patch.setattr("oncelog.storage.segment_notes.SegmentNotes.write", no_space)
        log.flush()
    assert log.recovery_point == 0
    work = log.prepare_flush()
    assert work is not None
    assert {path for path in work.files if path.suffix == ".snapshot"} == set(log.folder.glob("*.snapshot")) != set()


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_closed_log_refuses_appends(tmp_path: Path, is_clean: bool, is_used: bool) -> None:
    log = new_log(tmp_path)
    append(log)
    log.close()
    again = Log(
        LogPlace(log.folder, log.topic_partition, NOW_MS), SMALL, clean=True, log_start_offset=0, recovery_point=1
    )
    if is_used:
        append(again)
    again.close(clean=is_clean)
    with pytest.raises(KafkaError) as raised:
        append(again)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(ranges(again)) == 1 + is_used


def test_log_that_was_closed_without_its_indexes_was_not_closed_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    append(log)

    def no_space(*_: object) -> list[Path]:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(Durability, "_write_all", no_space)
    assert log.close() is False
    assert (log.durable_offset, log.recovery_point) == (1, 0)


def test_a_flush_that_was_overtaken_by_a_cut_vouches_for_nothing(tmp_path: Path) -> None:
    """What is appended after the cut was not there when the files were synced."""
    log = new_log(tmp_path, SMALL)
    for _ in range(9):
        append(log)
    work = log.prepare_flush()
    assert work is not None
    log.truncate_to(4, now_ms=NOW_MS)
    for _ in range(9):
        append(log)
    work.run()
    log.finish_flush(work)
    assert log.recovery_point <= 4
    assert log.durable_offset <= 4
