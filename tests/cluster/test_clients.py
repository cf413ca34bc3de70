"""Clients of all kinds write through faults of both kinds of brokers: every acknowledged record is there once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from oncelog.client import Consumer, Producer
from peers.kafka.jars import java_command
from tests.cluster.clusters import Cluster, running_cluster
from tests.cluster.test_faults import CONTROLLER, JAVA, ONCELOG, kill_java, kill_oncelog, pause_oncelog, stop_oncelog
from tests.conformance.conftest import require
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("kafka")
    with running_cluster(tmp_path_factory.mktemp("clients")) as started:
        started.start_controller(node_id=CONTROLLER, roles="controller")
        started.start_java(JAVA)
        started.start_oncelog(ONCELOG)
        yield started


class Writer:
    """Writes numbers until it is told to end, and keeps those that were acknowledged."""

    def __init__(self, servers: str, topic: str, write: Callable[[Writer], None]) -> None:
        self.servers, self.topic = servers, topic
        self.acknowledged: list[str] = []
        self.ending = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(write,), daemon=True)
        self._thread.start()

    def _run(self, write: Callable[[Writer], None]) -> None:
        try:
            write(self)
        except Exception as error:  # noqa: BLE001  the test raises it
            self.failure = error

    def wait_for(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted or self.failure, timeout_s=120)
        assert self.failure is None, self.failure

    def end(self) -> None:
        self.ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the writer is stuck"
        assert self.failure is None, self.failure


def with_ours(writer: Writer) -> None:
    with Producer({"bootstrap.servers": writer.servers, "enable.idempotence": True}) as producer:
        while not writer.ending.is_set():
            value = str(len(writer.acknowledged))
            producer.send(writer.topic, value, partition=0).result(100)
            writer.acknowledged.append(value)


def with_aiokafka(writer: Writer) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=writer.servers, enable_idempotence=True, acks="all", request_timeout_ms=10_000
        )
        await producer.start()
        try:
            while not writer.ending.is_set():
                value = str(len(writer.acknowledged))
                await producer.send_and_wait(writer.topic, value.encode(), partition=0)
                writer.acknowledged.append(value)
        finally:
            await producer.stop()

    asyncio.run(run())


def with_java(writer: Writer) -> None:
    """Kafka's own VerifiableProducer, which prints what was acknowledged."""
    arguments = ("--bootstrap-server", writer.servers, "--topic", writer.topic, "--acks", "-1", "--throughput", "100")
    command = java_command("org.apache.kafka.tools.VerifiableProducer", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
            if told.get("name") == "producer_send_success":
                writer.acknowledged.append(told["value"])
            if writer.ending.is_set() and process.poll() is None:
                process.terminate()


@pytest.mark.parametrize("fault", [kill_oncelog, pause_oncelog, stop_oncelog, kill_java])
def test_every_acknowledged_record_is_there_once(cluster: Cluster, fault: Callable[..., None]) -> None:
    """The one who leads is the one who fails."""
    leader, follower = (JAVA, ONCELOG) if fault is kill_java else (ONCELOG, JAVA)
    writers = []
    for write in (with_ours, with_aiokafka, with_java):
        topic = f"{fault.__name__}-{write.__name__}"
        cluster.create_topic(topic, [leader, follower])
        writers.append(Writer(cluster.bootstrap_servers, topic, write))
    for writer in writers:
        writer.wait_for(20)
    fault(cluster, [writer.topic for writer in writers])
    for writer in writers:
        writer.wait_for(20)
        cluster.wait_for_isr(writer.topic, JAVA, ONCELOG)
    for writer in writers:
        writer.end()
        check(cluster, writer)


def check(cluster: Cluster, writer: Writer) -> None:
    found: Counter[str] = Counter()
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.assign([(writer.topic, 0)])
        wanted = set(writer.acknowledged)

        def has_all() -> bool:
            found.update((record.value or b"").decode() for record in consumer.poll(200))
            return wanted <= found.keys()

        wait_until(has_all)
    assert max(found.values()) == 1, f"doubled: {[value for value, count in found.items() if count > 1]}"
