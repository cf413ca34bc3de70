"""A broker as a process, a connection to it that speaks in raw frames, and what the process has spent."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.testing import BrokerProcess

ANSWER_TIMEOUT_S = 120.0
PING_INTERVAL_S = 0.01


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    memory_bytes: int
    log_bytes: int
    descriptors: int

    def __sub__(self, before: Cost) -> Cost:
        return Cost(
            self.cpu_s - before.cpu_s,
            self.memory_bytes - before.memory_bytes,
            self.log_bytes - before.log_bytes,
            self.descriptors - before.descriptors,
        )


def cost_of(broker: BrokerProcess) -> Cost:
    """What the process has spent since its start. On Linux."""
    process = Path("/proc") / str(broker.pid)
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident_pages = int((process / "statm").read_text().split()[1])
    return Cost(
        ticks / os.sysconf("SC_CLK_TCK"),
        resident_pages * os.sysconf("SC_PAGE_SIZE"),
        broker.log_path.stat().st_size,
        len(list((process / "fd").iterdir())),
    )


class Attacker:
    """One connection. `ask` sends a request and waits for its answer."""

    def __init__(self, broker: BrokerProcess) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)
        self.sent_bytes = 0

    def ask(self, request: Any, version: int, client_id: str = "hostile") -> tuple[Any, int]:
        """The answer, and its size."""
        key = type(request).API_KEY
        frame = b"".join(encode_request_frame(key, version, 1, client_id, encode_request(key, version, request)))
        self._socket.sendall(frame)
        self.sent_bytes += len(frame)
        (size,) = struct.unpack(">i", self._receive(4))
        body = memoryview(self._receive(size))
        _, position = parse_response_header(body, response_header_version(key, version))
        return decode_response(key, version, body[position:]), size

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            received += part
        return bytes(received)

    def close(self) -> None:
        self._socket.close()


class Bystander:
    """A client that asks for little all the time, and how long it waits for it meanwhile."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = Attacker(broker)
        self._stopping = threading.Event()
        self._waits_s: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._connection.close()

    def _ask(self) -> None:
        while not self._stopping.wait(PING_INTERVAL_S):
            asked_s = time.monotonic()
            self._connection.ask(ApiVersionsRequest(), 0)
            self._waits_s.append(time.monotonic() - asked_s)

    def p99_s(self) -> float:
        """After the end. 0 if there was no time to ask."""
        waits_s = sorted(self._waits_s)
        return waits_s[len(waits_s) * 99 // 100] if waits_s else 0.0
