"""Input that no client should send: answered as Apache Kafka answers it, or the connection is closed, and the broker
lives on.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.conformance.brokers import Broker
from tests.conformance.wire import Disconnected, Wire, header_bytes

API_VERSIONS, METADATA, PRODUCE, CREATE_TOPICS = 18, 3, 0, 19
UNSUPPORTED_VERSION = 35
UNKNOWN_KEY = 12_345


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as wire:
        yield wire
    with Wire(broker.bootstrap_servers) as after:
        assert after.call("api_versions", 0)["error_code"] == 0, "the broker lives on"


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


CLOSED = {
    "negative size": struct.pack(">i", -1),
    "size of two gigabytes": struct.pack(">i", 2**31 - 1),
    "larger than socket.request.max.bytes": struct.pack(">i", 100 * 1024 * 1024 + 1),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303"),
    "empty frame": frame(b""),
    "header cut short": frame(b"\0\x12\0"),
    "unknown api key": frame(header_bytes(UNKNOWN_KEY, 0)),
    "negative api key": frame(header_bytes(-1, 0)),
    "unsupported version": frame(header_bytes(METADATA, 99)),
    "negative version": frame(header_bytes(METADATA, -1)),
    "removed version": frame(header_bytes(PRODUCE, 1)),
    "body cut short": frame(header_bytes(METADATA, 4) + struct.pack(">i", 1)),
    "absurd count": frame(header_bytes(METADATA, 4) + struct.pack(">i", 2**31 - 1) + b"\0\x01t"),
    "string past the end": frame(header_bytes(METADATA, 4) + struct.pack(">ih", 1, 30_000) + b"t"),
    "not utf-8": frame(header_bytes(CREATE_TOPICS, 2) + struct.pack(">ih", 1, 2) + b"\xff\xfe" + b"\0" * 3),
    "client id past the end": frame(struct.pack(">hhih", METADATA, 4, 1, 500) + b"x"),
}


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED.keys())
def test_the_connection_is_closed(wire: Wire, data: bytes) -> None:
    wire.send_bytes(data)
    with pytest.raises(Disconnected):
        # A server that waits for more is told that there is none.
        wire.finish()
        wire.receive_frame()


def test_a_write_without_acknowledgement_that_fails_closes_the_connection(wire: Wire) -> None:
    partition = {"index": 0, "records": b"no batch"}
    topics = ({"name": "no-such-topic", "partition_data": (partition,)},)
    wire.send_only("produce", 9, transactional_id=None, acks=0, timeout=1_000, topic_data=topics)
    with pytest.raises(Disconnected):
        wire.receive_frame()


def test_an_unsupported_version_of_api_versions_is_answered_with_the_supported_one(wire: Wire) -> None:
    no_tags = b"\0"
    wire.send_bytes(frame(header_bytes(API_VERSIONS, 99, correlation=7) + no_tags))
    answer = wire.receive_frame()
    correlation, error, count = struct.unpack_from(">ihi", answer)
    keys = [struct.unpack_from(">hhh", answer, 10 + 6 * number) for number in range(count)]
    assert (correlation, error) == (7, UNSUPPORTED_VERSION)
    assert keys == [(API_VERSIONS, 0, 4)]


def test_bytes_that_come_one_by_one_are_a_request_all_the_same(wire: Wire) -> None:
    for byte in frame(header_bytes(API_VERSIONS, 0, correlation=3, client_id="slow")):
        wire.send_bytes(bytes([byte]))
    assert struct.unpack_from(">ih", wire.receive_frame()) == (3, 0)


def test_trailing_bytes_of_a_request_are_ignored(wire: Wire) -> None:
    wire.send_bytes(frame(header_bytes(METADATA, 4) + struct.pack(">i?", 0, False) + b"more"))
    assert struct.unpack_from(">i", wire.receive_frame()) == (1,)


def test_requests_sent_together_are_answered_in_order(wire: Wire) -> None:
    requests = [frame(header_bytes(API_VERSIONS, 0, correlation=number)) for number in range(50)]
    wire.send_bytes(b"".join(requests))
    assert [struct.unpack_from(">i", wire.receive_frame())[0] for _ in requests] == list(range(50))


def test_a_client_that_goes_away_in_mid_request_does_no_harm(broker: Broker, wire: Wire) -> None:
    host, _, port = broker.bootstrap_servers.partition(":")
    for size in (2, 6, 12):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(frame(header_bytes(METADATA, 4) + b"\0" * 100)[:size])
    assert wire.call("api_versions", 0)["error_code"] == 0
