"""Checkpoints, retention and flushes that recur: trouble with one log is no matter to the others, and is got over."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.storage.checkpoints import RECOVERY_POINTS, read_offsets
from oncelog.storage.log import Log
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import hold_worker

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "300000",
}
CHECKPOINT_INTERVAL_MS = 60_000
RETENTION_INTERVAL_MS = 300_000


def log_of(node: BrokerInProcess, topic: str) -> Log:
    return node.broker.partitions.get(topic, 0).log


def fill(node: BrokerInProcess, *topics: str, count: int = 5, **configs: str) -> None:
    for topic in topics:
        node.create(topic, **configs)
        for _ in range(count):
            assert node.produce(topic, [b"x" * 100]).error_code == 0


def fail_index_writes(patch: pytest.MonkeyPatch, folder: Path) -> None:
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, position: int) -> int:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.parent == folder and path.name.endswith("index"):
            raise OSError(errno.ENOSPC, "injected", str(path))
        return real(descriptor, data, position)

    patch.setattr(os, "pwrite", pwrite)


def test_checkpoints_go_on_after_an_index_could_not_be_written(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, "full", "other", index_interval_bytes="1")
    with monkeypatch.context() as patch:
        fail_index_writes(patch, node.folder / "full-0")
        node.clock.advance_ms(CHECKPOINT_INTERVAL_MS + 1)
    full, other = log_of(node, "full"), log_of(node, "other")
    assert (full.durable_offset, full.recovery_point, other.recovery_point) == (5, 0, 5)
    node.clock.advance_ms(CHECKPOINT_INTERVAL_MS)
    assert full.recovery_point == 5


def test_checkpoints_go_on_after_one_that_could_not_be_prepared(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, "t")

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(node.broker.log_dir, "prepare_in_steps", fail)
        node.clock.advance_ms(CHECKPOINT_INTERVAL_MS + 1)
    node.clock.advance_ms(CHECKPOINT_INTERVAL_MS)
    assert log_of(node, "t").recovery_point == 5


def test_checkpoint_without_a_deleted_topic_does_not_wait_for_the_next_of_its_name(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundred thousand partitions, to write one takes half a second, in which nobody would be served."""
    fill(node, "t", "other")
    node.clock.advance_ms(CHECKPOINT_INTERVAL_MS + 1)
    path = node.broker.log_dir.path / RECOVERY_POINTS
    assert read_offsets(path)[TopicPartition("t", 0)] == 5
    node.delete("t")
    named = read_offsets(path)
    assert TopicPartition("t", 0) not in named
    assert named[TopicPartition("other", 0)] == 5
    with monkeypatch.context() as patch:
        patch.setattr(node.broker.log_dir, "_write_checkpoints", lambda: pytest.fail("it is written already"))
        fill(node, "t")


def test_fsync_that_fails_in_a_checkpoint_stops_its_log_only(node: BrokerInProcess) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    fill(node, "broken", "other")
    failpoints.arm("log.flush.before_fsync", failpoints.on_nth_hit(1, fail))
    node.clock.advance_ms(CHECKPOINT_INTERVAL_MS + 1)
    assert node.produce("broken", [b"x"]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.produce("other", [b"x"]).error_code == 0
    assert log_of(node, "other").recovery_point == 5


def test_checkpoint_whose_result_comes_after_the_stop_leaves_the_folder_alone(node: BrokerInProcess) -> None:
    """It belongs to the next process by then."""
    fill(node, "t")
    worker = hold_worker(node)
    node.clock.advance_ms(CHECKPOINT_INTERVAL_MS + 1)
    log_of(node, "t").delete_records(3)
    node.broker.stop()
    checkpoint = node.folder / "log-start-offset-checkpoint"
    worker.work()
    assert b"t 0 3" in checkpoint.read_bytes()
    checkpoint.write_text("of the next process")
    worker.deliver()
    assert checkpoint.read_text() == "of the next process"


def test_full_disk_does_not_keep_retention_from_freeing_it(node: BrokerInProcess) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    fill(node, "aa", "bb", count=20, internal_segment_bytes="300", retention_ms="1000")
    failpoints.arm("log.snapshot.before_write", fail)
    node.clock.advance_ms(RETENTION_INTERVAL_MS + 1)
    assert [len(log_of(node, topic).segments) for topic in ("aa", "bb")] == [1, 1]


def test_damaged_log_does_not_keep_others_from_retention_and_is_told_once(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    fill(node, "aa", "bb", count=20, internal_segment_bytes="300", retention_ms="1000")
    node.broker.stop()
    damaged = min((node.folder / "aa-0").glob("*.log"))
    content = bytearray(damaged.read_bytes())
    content[16] = 77
    damaged.write_bytes(content)
    damaged.with_suffix(".timeindex").unlink()
    node.broker = node._new()
    with caplog.at_level(logging.ERROR):
        node.clock.advance_ms(3 * RETENTION_INTERVAL_MS + 1)
    assert len(log_of(node, "bb").segments) == 1
    told = [record.getMessage() for record in caplog.records if "retention" in record.getMessage()]
    assert len(told) == 1
    assert "aa-0" in told[0]


def test_log_that_cannot_be_flushed_does_not_keep_others_from_it(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, "aa", "bb", flush_ms="1000")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(log_of(node, "aa"), "prepare_flush", fail)
    node.clock.advance_ms(3_000)
    assert log_of(node, "bb").recovery_point == 5


def test_flush_that_is_due_goes_on_without_indexes(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(node, "aa", "bb", flush_ms="1000", index_interval_bytes="1")
    fail_index_writes(monkeypatch, node.folder / "aa-0")
    node.clock.advance_ms(3_000)
    assert [log_of(node, topic).durable_offset for topic in ("aa", "bb")] == [5, 5]
