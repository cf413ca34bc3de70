"""A blocking shell around the observer of the quorum and the life of a broker, for tests with real controllers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from oncelog.cluster.lifecycle import Lifecycle, SendToController
from oncelog.cluster.quorum_log import QuorumLog, Send, Update
from oncelog.core.address import Address
from oncelog.protocol.api import decode_response, encode_request, request_header_version, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from oncelog.protocol.messages.fetch import FetchResponse
from oncelog.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from oncelog.protocol.schema import Message

DEADLINE_S = 300.0


class Link:
    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=120)

    def call(self, request: Message) -> Message:
        key = request.API_KEY
        assert key is not None
        version = ApiKey(key).last
        header = struct.pack(">hhih", key, version, 7, -1) + b"\0" * (request_header_version(key, version) - 1)
        frame = header + b"".join(encode_request(key, version, request))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        return decode_response(key, version, answer, 4 + response_header_version(key, version))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


class Shell:
    def __init__(self, observer: QuorumLog, lifecycle: Lifecycle) -> None:
        self.observer = observer
        self.lifecycle = lifecycle
        self.updates: list[Update] = []
        self._links: dict[Any, Link] = {}
        self.answers: list[Message] = []

    def run_until(self, condition: Callable[[], bool], *, is_alive: bool = True) -> None:
        """An observer that is not alive registers no broker."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, (self.lifecycle.state, self.lifecycle.refusal, self.observer.leader)
            now_ms = monotonic_ms()
            send = self.observer.poll(now_ms)
            if send is not None:
                self._observe(send)
            if is_alive and self.observer.leader is not None and self.observer.last_offset >= 0:
                order = self.lifecycle.poll(now_ms, self.observer.last_offset)
                if order is not None:
                    self._live(order)

    def _observe(self, send: Send) -> None:
        try:
            answer = self._call(("quorum", send.connection), send.address, send.request)
        except OSError:
            self.observer.on_failure(send.number, monotonic_ms())
            return
        update = None
        if isinstance(answer, FetchResponse):
            update = self.observer.on_fetch(send.number, answer, monotonic_ms())
        elif isinstance(answer, FetchSnapshotResponse):
            update = self.observer.on_snapshot(send.number, answer, monotonic_ms())
        if update is not None:
            self.updates.append(update)

    def _live(self, order: SendToController) -> None:
        assert self.observer.leader is not None
        finalised = {**self.observer.image.features, "kraft.version": self.observer.quorum.kraft_version}
        try:
            answer = self._call("lifecycle", self.observer.leader.address, order.request)
        except OSError:
            self.lifecycle.on_failure(order.number, monotonic_ms())
            return
        if isinstance(order.request, BrokerRegistrationRequest):
            assert isinstance(answer, BrokerRegistrationResponse)
            self.lifecycle.on_registration(order.number, answer, monotonic_ms(), finalised)
        else:
            assert isinstance(answer, BrokerHeartbeatResponse)
            self.lifecycle.on_heartbeat(order.number, answer, monotonic_ms())

    def _call(self, key: object, address: Address, request: Message) -> Message:
        link = self._links.get(key) or self._links.setdefault(key, Link(address))
        answer = link.call(request)
        self.answers.append(answer)
        return answer

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def monotonic_ms() -> int:
    return int(time.monotonic() * 1000)
