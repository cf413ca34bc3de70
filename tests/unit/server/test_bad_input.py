"""Sockets: what a client can do wrong, and that everybody else lives on."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from oncelog.testing import BrokerProcess, broker

HELD_BACK_S = 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("bad-input") / "data"
    with broker({"socket.request.max.bytes": 1_000_000}, data_dir=folder) as process:
        yield process


def connect(server: BrokerProcess) -> socket.socket:
    host, _, port = server.bootstrap_servers.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request(api_key: int, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    frame = struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test" + body
    return struct.pack(">i", len(frame)) + frame


def read_frame(connection: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = connection.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def still_serves(server: BrokerProcess) -> bool:
    with connect(server) as connection:
        connection.sendall(request(18, 0, b""))
        return read_frame(connection)[:6] == struct.pack(">ih", 7, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative frame size"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="frame of 2 GB"),
        pytest.param(struct.pack(">i", 1_000_001), id="frame above the limit"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(bytes.fromhex("16030100c8010000c40303"), id="TLS hello"),
        pytest.param(request(999, 0, b""), id="unknown API key"),
        pytest.param(request(-1, 0, b""), id="negative API key"),
        pytest.param(request(3, 99, b""), id="unknown version"),
        pytest.param(request(0, 2, b"\0" * 20), id="produce version that is advertised but not served"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="frame shorter than a header"),
        pytest.param(request(3, 1, struct.pack(">i", 2**31 - 1)), id="absurd array count"),
        pytest.param(request(3, 1, struct.pack(">ih", 1, 30_000)), id="string longer than the frame"),
        pytest.param(request(0, 3, b"\xff" * 40), id="random body"),
        pytest.param(request(3, 9, b"\0" + b"\xff" * 12), id="endless varint"),
    ],
)
def test_malformed_input_closes_that_connection_only(server: BrokerProcess, data: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(data)
        assert is_closed(connection)
    assert still_serves(server)


def test_bytes_one_by_one_are_a_request_too(server: BrokerProcess) -> None:
    with connect(server) as connection:
        for byte in request(18, 0, b""):
            connection.sendall(bytes([byte]))
        assert read_frame(connection)[:6] == struct.pack(">ih", 7, 0)


def test_many_requests_in_one_packet_are_answered_in_order(server: BrokerProcess) -> None:
    with connect(server) as connection:
        connection.sendall(b"".join(request(18, 0, b"", n) for n in range(200)))
        assert [struct.unpack(">i", read_frame(connection)[:4])[0] for _ in range(200)] == list(range(200))


def test_a_half_closed_connection_still_gets_its_answers(server: BrokerProcess) -> None:
    with connect(server) as connection:
        connection.sendall(request(18, 0, b"", 1) + request(18, 0, b"", 2))
        connection.shutdown(socket.SHUT_WR)
        assert [struct.unpack(">i", read_frame(connection)[:4])[0] for _ in range(2)] == [1, 2]
        assert is_closed(connection)


def test_an_unknown_version_of_api_versions_gets_the_one_entry_it_needs(server: BrokerProcess) -> None:
    with connect(server) as connection:
        connection.sendall(request(18, 99, b"\0garbage"))
        assert read_frame(connection) == struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4)


def test_a_torn_frame_and_a_vanished_client_harm_nobody(server: BrokerProcess) -> None:
    for cut in (1, 3, 4, 10):
        with connect(server) as connection:
            connection.sendall(request(18, 0, b"")[:cut])
    assert still_serves(server)


def is_held_back(connection: socket.socket) -> bool:
    """Whether the broker has stopped reading from it: nothing more can be sent."""
    return not select.select([], [connection], [], HELD_BACK_S)[1]


def test_a_client_that_never_reads_is_held_back_and_blocks_nobody(server: BrokerProcess) -> None:
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        flood = request(18, 0, b"") * 1000
        sent = 0
        while not is_held_back(connection):
            sent += connection.send(flood)
            assert sent < 400_000_000, "it is not held back"
        assert still_serves(server)
        status = open(f"/proc/{server.pid}/status").read()  # noqa: PTH123, SIM115
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kb < 300_000


def test_answers_to_a_client_that_is_slow_to_read_come_whole_and_in_order(server: BrokerProcess) -> None:
    count = 20_000
    with connect(server) as connection:
        connection.settimeout(60)

        def ask() -> None:
            for number in range(count):
                connection.sendall(request(18, 0, b"", correlation_id=number))

        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive() and not is_held_back(connection):
            asking.join(HELD_BACK_S)
        answers = [read_frame(connection) for _ in range(count)]
        asking.join()
    assert [struct.unpack_from(">ih", answer) for answer in answers] == [(number, 0) for number in range(count)]
    assert len(set(map(len, answers))) == 1
