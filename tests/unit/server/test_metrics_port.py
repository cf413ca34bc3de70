"""The port for Prometheus: bounded in connections, bytes and time, whatever its clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.worker import InlineWorker
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.server import metrics_page, metrics_port
from oncelog.server.context import Peer
from oncelog.server.metrics_port import CONNECTIONS_MAX, REQUEST_BYTES_MAX, MetricsPort
from tests.unit.server.harness import BrokerInProcess

Test = Callable[["Scrape"], Awaitable[None]]
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Scrape:
    def __init__(self, port: MetricsPort, number: int) -> None:
        self.port = port
        self._number = number

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._number)

    async def ask(self, request: bytes = GET) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


def run(folder: Path, test: Test) -> None:
    async def body() -> None:
        node = BrokerInProcess(folder / "data")
        node.create("orders")
        assert node.produce("orders", [b"a"]).error_code == 0
        broker = node.broker
        read = partial(broker.turns.begin, peer=Peer("", ""))
        port = MetricsPort(lambda: read(metrics_page.read_metrics(broker)), InlineWorker())
        number = await port.open("127.0.0.1", 0)
        try:
            await test(Scrape(port, number))
        finally:
            port.close()
            node.broker.stop(clean=False)

    asyncio.run(asyncio.wait_for(body(), 180))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_metrics_are_told(tmp_path: Path) -> None:
    async def test(scrape: Scrape) -> None:
        head, _, body = (await scrape.ask()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        assert b'kafka_log_end_offset{partition="0",topic="orders"} 1.0' in body
        assert f"Content-Length: {len(body)}".encode() in head
        assert (await scrape.ask(b"HEAD / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2 * REQUEST_BYTES_MAX, b"431"),
    ],
)
def test_other_requests_are_refused(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async def test(scrape: Scrape) -> None:
        assert (await scrape.ask(request_bytes)).startswith(b"HTTP/1.1 " + status)

    run(tmp_path, test)


def test_slow_clients_do_not_keep_others_out_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "LIFETIME_S", 5.0)

    async def test(scrape: Scrape) -> None:
        slow: list[Any] = [await scrape.connect() for _ in range(CONNECTIONS_MAX)]
        await until(lambda: len(scrape.port.clients) == CONNECTIONS_MAX)
        assert await scrape.ask() == b"", "there is no room"
        await until(lambda: not scrape.port.clients)
        assert (await scrape.ask()).startswith(b"HTTP/1.1 200")
        for _, writer in slow:
            writer.close()

    run(tmp_path, test)


def test_a_client_that_reads_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "LIFETIME_S", 5.0)
    monkeypatch.setattr(metrics_port, "generate_latest", lambda _: bytes(32 << 20))

    async def test(scrape: Scrape) -> None:
        _, writer = await scrape.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a Transport
        writer.write(GET)
        await until(lambda: len(scrape.port.clients) == 1)
        await until(lambda: not scrape.port.clients)
        writer.close()

    run(tmp_path, test)


def test_many_partitions_are_read_in_steps(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path)
    node.create("wide", 250)
    node.create("gone")
    for topic, index in [*(("wide", index) for index in range(250)), ("gone", 0)]:
        assert node.produce(topic, [b"v"], partition=index).error_code == 0
    steps = metrics_page.read_metrics(node.broker)
    next(steps)
    node.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1_000), 5)
    count = 1
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as done:
            reading = done.value
            break
    assert {partition.topic for partition, _ in reading.partitions} == {"wide"}
    assert len(reading.partitions) == 250
    assert count >= 3


def test_the_state_is_read_once_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "PAGE_AGE_S", 1e9)
    reads: list[int] = []
    read = metrics_page.read_metrics

    def counting(broker: Any) -> Any:
        reads.append(1)
        return read(broker)

    monkeypatch.setattr(metrics_page, "read_metrics", counting)

    async def test(scrape: Scrape) -> None:
        answers = [await scrape.ask() for _ in range(50)]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        assert len(reads) == 1

    run(tmp_path, test)
