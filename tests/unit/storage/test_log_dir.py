"""A data folder from start to stop: lock, identity, laziness, checkpoints, deletion, crashes in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.steps import at_once
from oncelog.protocol.batch import HEADER_BYTES
from oncelog.storage.checkpoints import RECOVERY_POINTS, read_offsets
from oncelog.storage.deletions import unlink_all
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import CheckpointResult, LogDir, LogDirError
from tests.descriptors import open_descriptors_of_files
from tests.unit.storage.log_harness import (
    NOW_MS,
    SMALL,
    TOPIC_ID,
    append,
    append_txn,
    batch,
    end_txn,
    ranges,
    read_all,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b.x-y", 0)


def start(path: Path, **options: Any) -> LogDir:
    return LogDir.open(path, **({"node_id": 1, "config_for": lambda _: SMALL, "now_ms": NOW_MS} | options))


def filled(path: Path, *partitions: TopicPartition, count: int = 15) -> LogDir:
    log_dir = start(path)
    for partition in partitions or (A0, A1, B0):
        log = log_dir.create_log(partition, TOPIC_ID, SMALL, now_ms=NOW_MS)
        for number in range(count):
            append(log, producer_id=3, producer_epoch=0, base_sequence=number)
    return log_dir


def high_watermarks(log_dir: LogDir) -> dict[TopicPartition, int]:
    return {partition: log.log_end_offset for partition, log in log_dir.logs.items()}


def contents(log_dir: LogDir) -> dict[TopicPartition, bytes]:
    return {partition: read_all(log) for partition, log in log_dir.logs.items()}


def test_clean_stop_and_start_keeps_everything_and_reads_nothing(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    before = contents(log_dir)
    assert log_dir.close(high_watermarks(log_dir)) is True
    log_dir = start(tmp_path)
    assert log_dir.was_clean
    assert not any(log.is_loaded for log in log_dir.logs.values())
    assert {log.log_end_offset for log in log_dir.logs.values()} == {15}
    assert log_dir.high_watermarks == {A0: 15, A1: 15, B0: 15}
    assert contents(log_dir) == before
    assert log_dir.logs[B0].topic_id == TOPIC_ID


def test_start_after_a_clean_stop_does_not_list_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = filled(tmp_path)
    log_dir.close(high_watermarks(log_dir))
    touched: list[str] = []
    for name in ("scandir", "listdir", "open", "stat"):
        real = getattr(os, name)

        def spy(path: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            touched.append(str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, spy)
    start(tmp_path)
    assert touched
    assert not [path for path in touched if "/a-" in path or "/b.x-y" in path]


def test_untouched_logs_go_through_stop_and_start_untouched(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.close(high_watermarks(log_dir))
    log_dir = start(tmp_path)
    append(log_dir.logs[A0])
    log_dir.checkpoint({A0: 16})
    assert not log_dir.logs[A1].is_loaded
    log_dir.close({A0: 16})
    log_dir = start(tmp_path)
    assert [log_dir.logs[partition].log_end_offset for partition in (A0, A1, B0)] == [16, 15, 15]
    assert log_dir.high_watermarks == {A0: 16, A1: 15, B0: 15}


def test_crash_recovers_every_log(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.checkpoint(high_watermarks(log_dir))
    append_txn(log_dir.logs[A0], 9)
    before = contents(log_dir)
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert not log_dir.was_clean
    assert contents(log_dir) == before
    assert log_dir.logs[A0].producer_state.first_undecided_offset == 15


def test_marker_is_gone_while_the_folder_is_in_use(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.close(high_watermarks(log_dir))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    start(tmp_path).abandon()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert not start(tmp_path).was_clean


def test_second_broker_is_turned_away_and_told_who_is_there(tmp_path: Path) -> None:
    log_dir = start(tmp_path)
    with pytest.raises(LogDirError, match=rf"process {os.getpid()}\b.*stop it, or use another folder"):
        start(tmp_path)
    log_dir.abandon()
    start(tmp_path).abandon()


def test_lock_is_given_back_when_the_start_fails(tmp_path: Path) -> None:
    start(tmp_path).abandon()
    with pytest.raises(LogDirError, match="node 1"):
        start(tmp_path, node_id=2)
    start(tmp_path)


def test_descriptors_are_given_back_when_a_log_cannot_be_opened(tmp_path: Path) -> None:
    filled(tmp_path).abandon()

    def config_for(name: str) -> LogConfig:
        if name == B0.topic:
            raise RuntimeError("this log cannot be opened")
        return SMALL

    before = open_descriptors_of_files()
    with pytest.raises(RuntimeError, match="cannot be opened"):
        start(tmp_path, config_for=config_for)
    assert open_descriptors_of_files() == before
    start(tmp_path).abandon()


def test_checkpoint_moves_the_recovery_points(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A1].delete_records(4)
    log_dir.checkpoint({A0: 7})
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 15, B0: 15}
    assert read_offsets(tmp_path / "log-start-offset-checkpoint") == {A0: 0, A1: 4, B0: 0}
    assert read_offsets(tmp_path / "replication-offset-checkpoint") == {A0: 7}
    assert {log.recovery_point for log in log_dir.logs.values()} == {15}


def test_log_start_survives_a_crash_after_a_checkpoint(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A1].delete_records(4)
    log_dir.checkpoint({})
    log_dir.abandon()
    assert start(tmp_path).logs[A1].log_start_offset == 4


def test_data_is_synced_before_the_checkpoint_vouches_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = filled(tmp_path, A0)
    events: list[str] = []
    real_sync, real_rename = os.fdatasync, Path.rename

    def sync(descriptor: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real_sync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append(str(target))
        return real_rename(self, target)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    log_dir.checkpoint({})
    written = events.index(str(tmp_path / "recovery-point-offset-checkpoint"))
    for segment in log_dir.logs[A0].segments:
        for path in segment.paths():
            assert events.index(str(path)) < written
    assert events.index(str(tmp_path / "a-0" / "leader-epoch-checkpoint")) < written


def test_failed_fsync_moves_no_recovery_point_and_stops_the_log(tmp_path: Path) -> None:
    log_dir = filled(tmp_path, A0)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    failpoints.arm("log.flush.before_fsync", fail)
    try:
        with pytest.raises(KafkaError) as raised:
            log_dir.checkpoint({})
    finally:
        failpoints.disarm_all()
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 0}
    with pytest.raises(KafkaError, match="recovered"):
        append(log_dir.logs[A0])
    assert log_dir.close({}) is False
    again = start(tmp_path)
    assert not again.was_clean
    assert again.logs[A0].log_end_offset == 15


def test_failed_fsync_of_one_log_is_no_matter_to_the_others(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    failpoints.arm("log.flush.before_fsync", failpoints.on_nth_hit(2, fail))
    try:
        with pytest.raises(KafkaError):
            log_dir.checkpoint({})
    finally:
        failpoints.disarm_all()
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 0, B0: 15}
    assert [log.has_failed for log in log_dir.logs.values()] == [False, True, False]
    assert [log.recovery_point for log in log_dir.logs.values()] == [15, 0, 15]


def test_want_of_a_descriptor_puts_a_flush_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = filled(tmp_path, A0, A1)
    log = log_dir.logs[A1]
    log.roll(NOW_MS)
    work = log_dir.prepare_checkpoint({})
    whole = work.flushes[1][1]
    real_open = os.open

    def too_many(path: Any, *args: Any, **kwargs: Any) -> int:
        if Path(path) == whole.files[0]:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        log_dir.finish_checkpoint(work, work.run())
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 0}
    assert not log.has_failed
    append(log)
    again = log.prepare_flush()
    assert again is not None
    assert set(whole.files) <= set(again.files), "what was not fsynced is forgotten"
    log_dir.checkpoint({})
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 16}


def test_index_that_cannot_be_written_keeps_no_other_log_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = filled(tmp_path, A0, A1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_disk)
        log_dir.checkpoint({})
    assert [(log.durable_offset, log.recovery_point) for log in log_dir.logs.values()] == [(15, 0), (15, 0)]
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 0, A1: 0}
    log_dir.checkpoint({})
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 15}


def full_disk(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_crash_between_checkpoint_files_is_harmless(tmp_path: Path) -> None:
    log_dir = filled(tmp_path, A0)
    log_dir.checkpoint({A0: 15})
    append(log_dir.logs[A0])

    def crash() -> None:
        raise RuntimeError("killed")

    failpoints.arm("checkpoint.log-start-offset-checkpoint", crash)
    try:
        with pytest.raises(RuntimeError):
            log_dir.checkpoint({A0: 16})
    finally:
        failpoints.disarm_all()
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert log_dir.logs[A0].log_end_offset == 16
    assert log_dir.high_watermarks == {A0: 15}


def test_crash_before_the_marker_makes_an_unclean_stop_that_loses_nothing(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    before = contents(log_dir)

    def crash() -> None:
        raise RuntimeError("killed")

    failpoints.arm("log_dir.close.before_marker", crash)
    try:
        with pytest.raises(RuntimeError):
            log_dir.close({})
    finally:
        failpoints.disarm_all()
    log_dir = start(tmp_path)
    assert not log_dir.was_clean
    assert contents(log_dir) == before


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_damaged_checkpoint_costs_a_look_at_the_logs(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = filled(tmp_path)
    before = contents(log_dir)
    log_dir.close(high_watermarks(log_dir))
    (tmp_path / name).write_text("0\n7\n")
    log_dir = start(tmp_path)
    assert name in caplog.text
    assert contents(log_dir) == before


def test_truncation_writes_the_lower_recovery_point_at_once(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.checkpoint({})
    log_dir.logs[A1].truncate_to(6, now_ms=NOW_MS)
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 6, B0: 15}


def test_truncation_is_not_undone_by_a_checkpoint_that_was_under_way(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.checkpoint({})
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    log_dir.logs[A1].truncate_to(6, now_ms=NOW_MS)
    result = work.run()
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 6, B0: 15}
    assert read_offsets(tmp_path / "replication-offset-checkpoint") == {A0: 15, A1: 15, B0: 15}
    log_dir.finish_checkpoint(work, result)
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 6, B0: 15}


def test_log_that_is_cut_while_a_checkpoint_flushes_it_is_not_noted_beyond_its_end(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    log_dir.logs[A1].truncate_to(6, now_ms=NOW_MS)
    log_dir.finish_checkpoint(work, work.run())
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint")[A1] == 0
    log_dir.checkpoint({})
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 6, B0: 15}


def test_log_that_is_cut_after_its_turn_in_a_checkpoint_is_not_noted_beyond_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.storage.log_dir._LOGS_PER_STEP", 1)
    log_dir = filled(tmp_path)
    log_dir.checkpoint({})
    steps = log_dir.prepare_in_steps(high_watermarks(log_dir).get, ())
    for _ in range(2):
        next(steps)
    log_dir.logs[A1].truncate_to(6, now_ms=NOW_MS)
    work = at_once(steps)
    log_dir.finish_checkpoint(work, work.run())
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 15, A1: 6, B0: 15}


@pytest.mark.parametrize("steps_before", range(7))
def test_log_that_is_deleted_while_a_checkpoint_is_prepared_leaves_nothing_to_the_next_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_before: int
) -> None:
    monkeypatch.setattr("oncelog.storage.log_dir._LOGS_PER_STEP", 1)
    log_dir = filled(tmp_path)
    log_dir.logs[A1].delete_records(9)
    steps = log_dir.prepare_in_steps(high_watermarks(log_dir).get)
    for _ in range(steps_before):
        next(steps)
    delete(log_dir, A1)
    work = at_once(steps)
    log_dir.finish_checkpoint(work, work.run())
    append(log_dir.create_log(A1, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    for name in ("recovery-point-offset", "log-start-offset", "replication-offset"):
        assert read_offsets(tmp_path / f"{name}-checkpoint").get(A1, 0) == 0, name
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert (log_dir.logs[A1].log_start_offset, ranges(log_dir.logs[A1])) == (0, [(0, 1)])


def test_checkpoints_are_prepared_and_finished_in_steps(tmp_path: Path) -> None:
    log_dir = start(tmp_path)
    for number in range(450):
        partition = TopicPartition("many", number)
        log_dir.create_log(partition, TOPIC_ID, SMALL, now_ms=NOW_MS)
    steps = log_dir.prepare_in_steps({}.get, ())
    assert len(list(steps)) == 4, "no flushes: a step for each hundred"
    work = log_dir.prepare_checkpoint({})
    assert len(work.flushes) == 450
    assert len(list(log_dir.finish_in_steps(work, work.run()))) == 4
    assert len(read_offsets(tmp_path / "recovery-point-offset-checkpoint")) == 450


def test_logs_are_out_of_use_before_they_are_closed(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    logs = [log_dir.logs[partition] for partition in (A0, A1)]
    steps = log_dir.close_deleted([*log_dir.take_out(A0), *log_dir.take_out(A1)])
    assert A0 not in log_dir.logs
    assert all(log.has_failed for log in logs), "nothing can be appended"
    at_once(steps).run()
    assert not (tmp_path / str(A0)).exists()


def delete(log_dir: LogDir, partition: TopicPartition) -> None:
    renames = at_once(log_dir.close_deleted(log_dir.take_out(partition)))
    renames.run()
    log_dir.deletions.add_renamed(renames)


def test_deleted_log_is_renamed_at_once_and_unlinked_later(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    delete(log_dir, A0)
    delete(log_dir, A0)
    (renamed,) = tmp_path.glob("a-0.*-delete")
    assert renamed.is_dir()
    assert A0 not in log_dir.logs
    assert log_dir.deletions.take_due(NOW_MS) == []
    due = log_dir.deletions.take_due(NOW_MS + 60_000)
    assert due == [renamed]
    unlink_all(due)
    assert not renamed.exists()
    again = log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    assert append(again).first_offset == 0


def test_deleted_log_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    delete(log_dir, A0)
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert set(log_dir.logs) == {A1, B0}
    unlink_all(log_dir.deletions.take_due(NOW_MS))
    assert not list(tmp_path.glob("*-delete"))


def test_new_log_does_not_inherit_the_offsets_of_a_deleted_one(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A0].delete_records(9)
    log_dir.checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert (log_dir.logs[A0].log_start_offset, ranges(log_dir.logs[A0])) == (0, [(0, 1)])
    assert log_dir.high_watermarks == {A1: 15, B0: 15}


def test_new_log_does_not_inherit_offsets_from_a_checkpoint_that_was_under_way(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A0].delete_records(9)
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    log_dir.finish_checkpoint(work, work.run())
    assert log_dir.logs[A0].recovery_point == 0
    log_dir.abandon()
    assert ranges(start(tmp_path).logs[A0]) == [(0, 1)]


def test_new_log_does_not_inherit_offsets_if_it_is_killed_before_a_checkpoint_is_finished(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A0].delete_records(9)
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    work.run()
    log_dir.abandon()
    log_dir = start(tmp_path)
    assert (log_dir.logs[A0].log_start_offset, ranges(log_dir.logs[A0])) == (0, [(0, 1)])


def test_checkpoint_that_was_overtaken_is_made_up_for(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    log_dir.finish_checkpoint(work, work.run())
    log_dir.finish_checkpoint(work := at_once(log_dir.prepare_in_steps({}.get, ())), work.run())
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A0: 0, A1: 15, B0: 15}


def test_failed_fsync_of_a_deleted_log_does_not_stop_the_one_that_follows_it(tmp_path: Path) -> None:
    log_dir = filled(tmp_path, A0)
    work = log_dir.prepare_checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    again = log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    log_dir.finish_checkpoint(work, CheckpointResult({A0: OSError(errno.EIO, "Input/output error")}, None))
    assert append(again).first_offset == 0


def test_deleted_log_is_remembered_when_a_checkpoint_without_it_is_not_written(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A0].delete_records(9)
    log_dir.checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    with failing_checkpoints(), pytest.raises(KafkaError):
        log_dir.checkpoint(high_watermarks(log_dir))
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    log_dir.abandon()
    assert ranges(start(tmp_path).logs[A0]) == [(0, 1)]


@contextmanager
def failing_checkpoints() -> Iterator[None]:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    failpoints.arm("checkpoint.recovery-point-offset-checkpoint", fail)
    try:
        yield
    finally:
        failpoints.disarm_all()


def test_log_of_a_deleted_name_is_refused_while_checkpoints_cannot_be_written(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    with failing_checkpoints(), pytest.raises(KafkaError) as refused:
        log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS))
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {A1: 15, B0: 15}


def test_new_log_does_not_inherit_offsets_of_one_deleted_before_a_restart(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    log_dir.logs[A0].delete_records(9)
    log_dir.checkpoint(high_watermarks(log_dir))
    delete(log_dir, A0)
    log_dir.abandon()
    log_dir = start(tmp_path)
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS), count=2)
    log_dir.abandon()
    assert ranges(start(tmp_path).logs[A0]) == [(0, 1)]


def test_log_whose_folder_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    log_dir = start(tmp_path)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    failpoints.arm("segment.create.after_log_file", fail)
    try:
        with pytest.raises(KafkaError) as raised:
            log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    finally:
        failpoints.disarm_all()
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    append(log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS))


def test_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    partition = TopicPartition("t" * 249, 12345)
    log_dir = start(tmp_path)
    log_dir.create_log(partition, TOPIC_ID, SMALL, now_ms=NOW_MS)
    delete(log_dir, partition)
    (renamed,) = tmp_path.glob("*-delete")
    assert len(renamed.name) == 255


def test_log_cannot_be_created_twice(tmp_path: Path) -> None:
    log_dir = filled(tmp_path)
    with pytest.raises(KafkaError) as raised:
        log_dir.create_log(A0, TOPIC_ID, SMALL, now_ms=NOW_MS)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_foreign_folders_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["__cluster_metadata-0", "lost+found", "notes", f"a-0.{7:032x}-stray", f"a-0.{7:032x}-future"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    log_dir = start(tmp_path)
    assert log_dir.logs == {}
    log_dir.close({})
    assert all((tmp_path / name / "file").exists() for name in names)
    assert "notes" in caplog.text


def test_thousand_writes_to_many_partitions_need_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors_of_files()
    log_dir = start(tmp_path, open_files_max=16)
    logs: list[Log] = []
    for number in range(60):
        logs.append(log_dir.create_log(TopicPartition("many", number), TOPIC_ID, LogConfig(), now_ms=NOW_MS))
    data = batch(2)
    for _ in range(3):
        for log in logs:
            log.append(data, leader_epoch=0, origin=Origin.CLIENT, now_ms=NOW_MS)
    assert open_descriptors_of_files() <= before + 16 + 2
    assert all(ranges(log) == [(0, 1), (2, 3), (4, 5)] for log in logs)
    log_dir.close({})
    assert open_descriptors_of_files() == before


def test_transaction_indexes_count_among_the_open_files(tmp_path: Path) -> None:
    """Connections get what these leave: together they must keep to it."""
    before = open_descriptors_of_files()
    log_dir = start(tmp_path, open_files_max=16)
    logs: list[Log] = []
    for number in range(40):
        logs.append(log_dir.create_log(TopicPartition("many", number), TOPIC_ID, LogConfig(), now_ms=NOW_MS))
    for sequence in range(2):
        for log in logs:
            append_txn(log, 7, sequence)
            end_txn(log, 7, commit=False)
            assert len(log.aborted_transactions(0, log.log_end_offset)) == sequence + 1
            assert open_descriptors_of_files() <= before + 16 + 2
    log_dir.checkpoint({})
    assert open_descriptors_of_files() <= before + 16 + 2
    log_dir.close({})
    assert open_descriptors_of_files() == before


def test_a_second_broker_is_turned_away_although_the_lock_file_was_removed(tmp_path: Path) -> None:
    log_dir = start(tmp_path)
    (tmp_path / ".lock").unlink()
    with pytest.raises(LogDirError, match="is in use"):
        start(tmp_path)
    log_dir.abandon()
    start(tmp_path).abandon()


def test_a_partition_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    log_dir = filled(tmp_path / "data")
    log_dir.close(high_watermarks(log_dir))
    (tmp_path / "data" / str(A0)).rename(tmp_path / "elsewhere")
    (tmp_path / "data" / str(A0)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirError, match="is a symbolic link"):
        start(tmp_path / "data")
    (tmp_path / "data" / str(A0)).unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "data" / str(A0))
    start(tmp_path / "data").abandon()


@pytest.mark.parametrize(("damage", "byte"), [("length", 8), ("offset", 0), ("marker", HEADER_BYTES)])
def test_damage_that_hides_producers_refuses_a_start_after_a_kill_and_says_what_to_do(
    tmp_path: Path, damage: str, byte: int
) -> None:
    config = LogConfig(index_interval_bytes=100)
    log_dir = start(tmp_path, config_for=lambda _: config)
    log = log_dir.create_log(A0, TOPIC_ID, config, now_ms=NOW_MS)
    append_txn(log, 5, 0)
    marker_position = log.segments[-1].size_bytes
    end_txn(log, 5, commit=True)
    position = marker_position if damage == "marker" else log.segments[-1].size_bytes
    for sequence in range(1, 6):
        append_txn(log, 5, sequence)
    log_dir.checkpoint({})
    append(log)
    path = log.segments[-1].log_file.path
    log_dir.abandon()
    content = bytearray(path.read_bytes())
    content[position + byte] ^= 0x80
    path.write_bytes(content)
    with pytest.raises(LogDirError) as raised:
        start(tmp_path, config_for=lambda _: config)
    message = str(raised.value)
    assert str(path) in message
    assert f"byte {position}" in message
    assert f"oncelog log verify {tmp_path}" in message
    assert RECOVERY_POINTS in message
    (tmp_path / RECOVERY_POINTS).unlink()
    again = start(tmp_path, config_for=lambda _: config)
    assert again.logs[A0].log_end_offset == (1 if damage == "marker" else 2)
    again.abandon()
