"""Controllers' logs on the event loop of a thread, connected to a real ZooKeeper by kazoo."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from oncelog.cluster.zookeeper_log import ZooKeeperMetadataLog
from oncelog.core.address import Address
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.server.loop import LoopScheduler
from oncelog.server.zookeeper_client import ZooKeeperClient, ZooKeeperConfig
from tests.unit.cluster.metadata_log import ImageKeeper, setting, snapshot_of, voters

T = TypeVar("T")
ANSWER_S = 180


class LoopThread:
    """Everything of a node happens on this loop, as in a broker."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except Exception as error:  # noqa: BLE001  raised in the thread that asked
                result.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return result.result(ANSWER_S)

    def wait_for(self, begin: Callable[[], Promise[T]]) -> T:
        result: Future[T] = Future()
        self.loop.call_soon_threadsafe(lambda: begin().then(result.set_result))
        return result.result(ANSWER_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class LogNode:
    """One controller as the log sees it."""

    def __init__(self, thread: LoopThread, node_id: int, config: ZooKeeperConfig) -> None:
        self.thread = thread
        self.node_id = node_id
        self.follower = ImageKeeper()
        self.faults: list[str] = []
        self.client = ZooKeeperClient(config, thread.loop.call_soon_threadsafe)
        self.log = ZooKeeperMetadataLog(
            self.client,
            node_id=node_id,
            address=Address("127.0.0.1", 9000 + node_id),
            scheduler=LoopScheduler(thread.loop),
            voters=voters(1, 2, 3),
            on_fault=self.faults.append,
        )

    def start(self, *, campaigns: bool = True) -> LogNode:
        def begin() -> None:
            self.log.start(self.follower)
            if campaigns:
                self.log.campaign()

        self.thread.call(begin)
        return self

    def begin_append(self, *values: str) -> Future[int | KafkaError]:
        result: Future[int | KafkaError] = Future()
        records = [setting(value) for value in values]
        self.thread.loop.call_soon_threadsafe(lambda: self.log.append(records).then(result.set_result))
        return result

    def append(self, *values: str) -> int | KafkaError:
        return self.begin_append(*values).result(ANSWER_S)

    def snapshot(self) -> KafkaError | None:
        return self.thread.wait_for(
            lambda: self.log.write_snapshot(snapshot_of(self.log.committed, self.follower.image))
        )

    @property
    def retention(self) -> str | None:
        image = self.thread.call(lambda: self.follower.image)
        return next((values.get("retention.ms") for values in image.settings.values()), None)

    def close(self) -> None:
        self.thread.call(self.log.close)


@contextmanager
def log_nodes(*configs: ZooKeeperConfig) -> Iterator[list[LogNode]]:
    thread = LoopThread()
    nodes = [LogNode(thread, number, config) for number, config in enumerate(configs, 1)]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
        thread.stop()
