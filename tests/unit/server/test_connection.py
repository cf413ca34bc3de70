"""One connection, its broker, and a transport whose client takes nothing until it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server.connection import Connection
from oncelog.server.descriptors import RESERVED, share
from oncelog.server.unsent import SMALL_ANSWER_BYTES
from tests.unit.server.harness import BrokerInProcess, batch_of

FETCH_VERSION = 11
BATCH_BYTES = 40_000


class StuckTransport:
    def __init__(self) -> None:
        self.connection: Connection
        self.unsent = bytearray()
        self.high_bytes = 0
        self.aborted = False
        self._paused = False

    def get_extra_info(self, _: str) -> Any:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, *, high: int) -> None:
        self.high_bytes = high

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def writelines(self, buffers: list[Any]) -> None:
        self.unsent += b"".join(buffers)
        if len(self.unsent) > self.high_bytes and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def take(self) -> bytes:
        taken = bytes(self.unsent)
        self.unsent.clear()
        if self._paused:
            self._paused = False
            self.connection.resume_writing()
        return taken

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.fixture
def running(tmp_path: Path) -> BrokerInProcess:
    limits = {"oncelog.connection.unsent.max.bytes": "65536", "oncelog.unsent.max.bytes": "300000"}
    running = BrokerInProcess(tmp_path, limits)
    running.create("t")
    for _ in range(20):
        running.produce("t", [bytes(BATCH_BYTES)])
    return running


def connect(running: BrokerInProcess) -> StuckTransport:
    transport = StuckTransport()
    transport.connection = Connection(
        running.broker.dispatcher,
        frame_max_bytes=1 << 20,
        unsent=running.broker.unsent,
        accept=lambda _: True,
        forget=lambda _: None,
    )
    transport.connection.connection_made(cast(Any, transport))
    return transport


def send(transport: StuckTransport, request: Any, version: int) -> None:
    body = encode_request(request.API_KEY, version, request)
    frame = b"".join(encode_request_frame(request.API_KEY, version, 1, "test", body))
    buffer = transport.connection.get_buffer(len(frame))
    buffer[: len(frame)] = frame
    transport.connection.buffer_updated(len(frame))


def fetch(transport: StuckTransport) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=topics)
    send(transport, request, FETCH_VERSION)


def fetched_bytes(answer: bytes) -> int:
    _, position = parse_response_header(memoryview(answer)[4:], response_header_version(1, FETCH_VERSION))
    response = decode_response(1, FETCH_VERSION, memoryview(answer)[4 + position :])
    return len(response.responses[0].partitions[0].records)


def test_many_slow_readers_get_little_until_somebody_reads(running: BrokerInProcess) -> None:
    greedy, late = connect(running), connect(running)
    fetch(greedy)
    assert running.broker.unsent.held_bytes == len(greedy.unsent) > 200_000
    fetch(late)
    assert BATCH_BYTES < fetched_bytes(late.take()) <= SMALL_ANSWER_BYTES
    greedy.take()
    assert running.broker.unsent.held_bytes == 0
    fetch(late)
    assert fetched_bytes(late.take()) > 200_000


def test_what_a_lost_client_did_not_take_is_forgotten(running: BrokerInProcess) -> None:
    transport = connect(running)
    fetch(transport)
    assert running.broker.unsent.held_bytes > 0
    transport.connection.connection_lost(None)
    assert running.broker.unsent.held_bytes == 0


def test_a_client_that_does_not_read_is_not_served_on(running: BrokerInProcess) -> None:
    transport = connect(running)
    fetch(transport)
    held = len(transport.unsent)
    fetch(transport)
    assert len(transport.unsent) == held
    transport.take()
    assert len(transport.unsent) > 0


def produce(topic: str) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of([b"v"], timestamp_ms=1))
    return ProduceRequest(acks=0, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def test_a_failed_request_without_an_answer_closes_its_connection(running: BrokerInProcess) -> None:
    transport = connect(running)
    send(transport, produce("t"), 9)
    assert not transport.aborted
    send(transport, produce("nowhere"), 9)
    assert transport.aborted
    assert not transport.unsent


def test_connections_leave_descriptors_to_the_log_files() -> None:
    assert share(10_000, 512) == (512, 10_000 - 512 - RESERVED)
    assert share(256, 512) == (96, 96), "half of what there is, so that clients are not kept out"
    assert share(256, 20) == (20, 256 - 20 - RESERVED)
    assert share(32, 512) == (16, 1)
