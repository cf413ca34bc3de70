"""A clean stop while workers are at it: what they have in hand ends first, and nothing of theirs is the last word."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core import failpoints
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.cluster_metadata import RemoveTopicRecord
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server import turns
from oncelog.server.broker import Broker
from oncelog.server.server import Server
from oncelog.storage.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.test_flusher import SETTINGS, commit_offset

LAST_APPENDS_S = 0.3


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm_all()


class SlowDisk:
    """One fsync on a worker takes until the test says so, and may fail then. Those of the metadata go on."""

    def __init__(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken
        self.entered = threading.Event()
        self.answered = threading.Event()
        failpoints.arm("log.flush.before_fsync", self._wait)

    def _wait(self) -> None:
        if threading.current_thread() is not threading.main_thread() and not self.entered.is_set():
            self.entered.set()
            self.answered.wait(60)
            if self._is_broken:
                raise OSError(errno.EIO, "injected")

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 60), "nothing was flushed"

    def answer_when_stopping(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the turn of the event loop after the one in which the stop has begun: it waits, or it does not."""
        end_work = broker.end_work

        def end_work_first() -> None:
            end_work()
            asyncio.get_running_loop().call_soon(self.answered.set)

        monkeypatch.setattr(broker, "end_work", end_work_first)


async def settled(promise: Promise[Any]) -> None:
    while not promise.done:
        await asyncio.sleep(0.001)
    assert not isinstance(promise.value, KafkaError)


async def delete(broker: Broker, topic: str) -> None:
    assert broker.own_controller is not None
    removal = RemoveTopicRecord(topic_id=broker.metadata.topics[topic].topic_id)
    await settled(broker.own_controller.node.add(lambda _: [removal]))
    while topic in broker.metadata.topics:
        await asyncio.sleep(0.001)
    await settled(broker.removals.settled)


def write(broker: Broker, count: int) -> Partition:
    partition = broker.partitions.get("t", 0)
    now_ms = broker.now_ms()
    for _ in range(count):
        batch = build_batch([Record(0, 0, None, b"x")], timestamp_ms=now_ms)
        partition.append_as_leader(batch, now_ms=now_ms)
    return partition


async def stop_during_a_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, recreate: bool = False, is_broken: bool = False
) -> None:
    settings = BROKER_CONFIG.parse(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.flush.offset.checkpoint.interval.ms": "10"}
    )
    server = Server(folder, settings)
    await server.start()
    broker = server.broker
    await settled(broker.auto_create_topic("t"))
    write(broker, 10).log.delete_records(4)
    disk = SlowDisk(is_broken=is_broken)
    write(broker, 1)
    await disk.until_entered()
    if recreate:
        await delete(broker, "t")
        await settled(broker.auto_create_topic("t"))
        write(broker, 3)
    else:
        write(broker, 4).log.delete_records(12)
    is_over: list[bool] = []
    failpoints.arm("log_dir.close.before_marker", lambda: is_over.append(disk.answered.is_set()))
    disk.answer_when_stopping(broker, monkeypatch)
    await server.stop()
    assert is_over == [True], "the folder was closed while a worker was at it"


@pytest.mark.parametrize(("recreate", "start", "end"), [(False, 12, 15), (True, 0, 3)])
def test_checkpoint_that_is_under_way_does_not_replace_that_of_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recreate: bool, start: int, end: int
) -> None:
    asyncio.run(stop_during_a_checkpoint(tmp_path, monkeypatch, recreate=recreate))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert set(read_offsets(tmp_path / RECOVERY_POINTS).values()) == {end}
    assert set(read_offsets(tmp_path / LOG_START_OFFSETS).values()) == {start}


def test_fsync_that_fails_while_the_broker_stops_makes_no_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells one of those who ask: the stop's own fsync of the same file might succeed."""
    asyncio.run(stop_during_a_checkpoint(tmp_path, monkeypatch, is_broken=True))
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


async def stop_while_appends_follow_from_one_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> list[bool]:
    """As a marker follows when a decision is on disk. Says for each whether the broker had stopped."""
    settings = BROKER_CONFIG.parse({"listeners": "PLAINTEXT://127.0.0.1:0", "oncelog.acks.fsync": "true"})
    server = Server(folder, settings)
    await server.start()
    broker = server.broker
    await settled(broker.auto_create_topic("t"))
    disk = SlowDisk(is_broken=False)
    partition = write(broker, 1)
    after_the_stop: list[bool] = []

    def follow() -> None:
        if len(after_the_stop) < count:
            write(broker, 1)
            after_the_stop.append(broker.stopped)
            partition.committed(partition.log.log_end_offset - 1).then(follow_in_next_turn)

    def follow_in_next_turn(_: KafkaError | None) -> None:
        broker.scheduler.call_later_ms(0, follow)

    partition.committed(0).then(follow_in_next_turn)
    await disk.until_entered()
    disk.answer_when_stopping(broker, monkeypatch)
    await asyncio.wait_for(server.stop(), 180)
    # Workers have ended, so whatever may still follow is in the queue of the event loop.
    for _ in range(10):
        await asyncio.sleep(0)
    return after_the_stop


def test_appends_that_follow_from_an_fsync_are_done_before_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.server.server._LAST_APPENDS_S", 120)
    assert asyncio.run(stop_while_appends_follow_from_one_another(tmp_path, monkeypatch, 4)) == [False] * 4
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert set(read_offsets(tmp_path / RECOVERY_POINTS).values()) == {5}


def test_appends_without_end_do_not_keep_the_broker_from_its_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.server.server._LAST_APPENDS_S", LAST_APPENDS_S)
    after_the_stop = asyncio.run(stop_while_appends_follow_from_one_another(tmp_path, monkeypatch, 1_000_000))
    assert after_the_stop == [False] * len(after_the_stop)
    assert set(read_offsets(tmp_path / RECOVERY_POINTS).values()) == {1 + len(after_the_stop)}


def test_a_coordinator_that_is_loading_does_not_go_on_after_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("t")
    commit_offset(node)
    node.clock.advance_ms(1)
    monkeypatch.setattr("oncelog.server.shard_log.LOAD_SLICE_RECORDS", 1)
    node.restart()
    assert not node.broker.groups.is_ready(0)
    node.broker.stop()
    node.clock.advance_ms(1000)
    assert not node.broker.groups.is_ready(0)


def test_a_request_in_pieces_ends_with_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    node = BrokerInProcess(tmp_path)
    node.create("t", 4)
    data = batch_of([b"a"], timestamp_ms=node.clock.now_ms())
    partitions = [PartitionProduceData(index=index, records=data) for index in range(4)]
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=partitions)]
    )
    answer = node.send(request, 9)
    node.broker.stop()
    before = sorted(tmp_path.rglob("*"))
    node.clock.advance_ms(10)
    assert sorted(tmp_path.rglob("*")) == before
    assert not answer.done
