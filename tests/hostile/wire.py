"""A connection that speaks in raw frames, and requests from plain values."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from oncelog.protocol.api import decode_response, encode_request, messages, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.schema import Message

ANSWER_TIMEOUT_S = 120.0


class Client:
    def __init__(self, address: str, timeout_s: float = ANSWER_TIMEOUT_S, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self.sent_bytes = 0

    def ask(self, request: Message, version: int) -> tuple[Any, int]:
        """The answer, and its size."""
        self.send(frame_of(request, version))
        return self.answer(type(request).API_KEY, version)

    def answer(self, key: int, version: int) -> tuple[Any, int]:
        """The next one, and its size."""
        body = memoryview(self.receive())
        _, position = parse_response_header(body, response_header_version(key, version))
        return decode_response(key, version, body[position:]), len(body)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)
        self.sent_bytes += len(data)

    def receive(self) -> bytes:
        """The next frame, without its size."""
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            received += part
        return bytes(received)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def frame_of(request: Message, version: int) -> bytes:
    key = type(request).API_KEY
    return b"".join(encode_request_frame(key, version, 1, "hostile", encode_request(key, version, request)))


def request_of(api: ApiKey, values: Mapping[str, Any]) -> Message:
    return _message(messages(api).request, values)


def _message(cls: type[Message], values: Mapping[str, Any]) -> Message:
    """Mappings inside become the structs that the fields have."""

    def value(name: str, given: Any) -> Any:
        field = cls.FIELDS[name]
        struct_class = field.struct if field.element is None else field.element.struct
        if struct_class is None or given is None:
            return given
        if isinstance(given, list):
            return [_message(struct_class, each) for each in given]
        return _message(struct_class, given)

    return cls(**{name: value(name, given) for name, given in values.items()})
