"""A tiny blocking Kafka client that sends exact requests at exact versions and returns the answers as plain dicts.

The message schemas are kio's, so that neither Oncelog's codec nor a client library's retries stand between a test and
the broker. Fields are named as in kio; durations and timestamps are milliseconds, ids are text, error codes are ints,
and a request field that is left out takes its protocol default, or zero.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import io
import itertools
import socket
import struct
import types
import typing
import uuid
from typing import Any, Final

from kio.index import load_entity_schema, load_response_from_request
from kio.serial import entity_writer
from kio.static.constants import EntityType

Fields = dict[str, Any]
TIMEOUT_S: Final = 120.0
IN_FLIGHT: Final = 100
_EPOCH: Final = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
_ZERO: Final[dict[str, Any]] = {
    "string": "",
    "bool": False,
    "bytes": b"",
    "records": None,
    "uuid": uuid.UUID(int=0),
    "float64": 0.0,
}


class Disconnected(Exception):
    """The broker closed the connection instead of answering."""


class Wire:
    """One connection to one broker."""

    def __init__(self, bootstrap_servers: str, client_id: str = "wire") -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._address = (host, int(port))
        self._client_id = client_id
        self._correlation = itertools.count(1)
        self._socket: socket.socket | None = None

    def call(self, api: str, version: int, **fields: Any) -> Fields:
        """Send one request and return its answer."""
        request_type = load_entity_schema(api, version, EntityType.request)
        correlation = self.send(request_type, fields)
        response_type = load_response_from_request(request_type)  # type: ignore[arg-type]
        return self._receive(response_type, correlation)

    def log_in(self, user: str, password: str) -> None:
        """With PLAIN."""
        self.call("sasl_handshake", 1, mechanism="PLAIN")
        answer = self.call("sasl_authenticate", 2, auth_bytes=f"\0{user}\0{password}".encode())
        if answer["error_code"] != 0:
            raise AssertionError(f"{user} cannot log in: {answer}")

    def call_many(self, api: str, version: int, count: int, **fields: Any) -> None:
        """Send the same request many times, several at once, and leave the answers unread."""
        frame = self._frame(load_entity_schema(api, version, EntityType.request), fields, 0)
        for start in range(0, count, IN_FLIGHT):
            some = min(IN_FLIGHT, count - start)
            self.send_bytes((struct.pack(">i", len(frame)) + frame) * some)
            for _ in range(some):
                self.receive_frame()

    def send_only(self, api: str, version: int, **fields: Any) -> None:
        """Send a request that is not answered (Produce with acks=0)."""
        self.send(load_entity_schema(api, version, EntityType.request), fields)

    def send(self, request_type: Any, fields: Fields) -> int:
        correlation = next(self._correlation)
        self.send_frame(self._frame(request_type, fields, correlation))
        return correlation

    def _frame(self, request_type: Any, fields: Fields, correlation: int) -> bytes:
        body = io.BytesIO()
        header_type = request_type.__header_schema__
        header_fields: dict[str, Any] = {
            "request_api_key": request_type.__api_key__,
            "request_api_version": request_type.__version__,
            "correlation_id": correlation,
            "client_id": self._client_id,
        }
        entity_writer(header_type)(body, header_type(**header_fields))
        entity_writer(request_type)(body, build(request_type, fields))
        return body.getvalue()

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        self._connection().sendall(data)

    def finish(self) -> None:
        """Say that nothing more will be sent; answers can still be read."""
        with contextlib.suppress(OSError):
            self._connection().shutdown(socket.SHUT_WR)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._connection().recv(size - len(data))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.close()
                raise Disconnected(f"after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)

    def _receive(self, response_type: Any, correlation: int) -> Fields:
        reader = Reader(self.receive_frame())
        header = reader.message(response_type.__header_schema__)
        if header["correlation_id"] != correlation:
            raise AssertionError(f"answer {header['correlation_id']} to request {correlation}")
        return reader.message(response_type)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build(message_type: Any, fields: Fields) -> Any:
    """A kio message from plain values."""
    hints = typing.get_type_hints(message_type)
    unknown = fields.keys() - {field.name for field in dataclasses.fields(message_type)}
    if unknown:
        raise TypeError(f"{message_type.__name__} v{message_type.__version__} has no {sorted(unknown)}")
    values = {}
    for field in dataclasses.fields(message_type):
        if field.name in fields:
            values[field.name] = _from_plain(hints[field.name], field, fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _from_plain(hints[field.name], field, _zero(hints[field.name], field))
    return message_type(**values)


def _zero(hint: Any, field: Any) -> Any:
    if typing.get_origin(hint) is tuple or any(typing.get_origin(part) is tuple for part in typing.get_args(hint)):
        return ()
    kind = field.metadata.get("kafka_type")
    return _ZERO.get(kind, 0) if kind is not None else {}


def _from_plain(hint: Any, field: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, types.UnionType):
        return _from_plain(next(part for part in typing.get_args(hint) if part is not types.NoneType), field, value)
    if typing.get_origin(hint) is tuple:
        return tuple(_from_plain(typing.get_args(hint)[0], field, item) for item in value)
    kind = field.metadata.get("kafka_type")
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return _EPOCH + datetime.timedelta(milliseconds=value)
    if kind == "uuid" and isinstance(value, str):
        return uuid.UUID(value)
    return build(hint, value) if dataclasses.is_dataclass(hint) else value


class Reader:
    """Decodes messages by kio's schemas. kio's own reader refuses the timestamp -1 that Kafka sends for "none"."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def message(self, message_type: Any) -> Fields:
        flexible: bool = message_type.__flexible__
        found: Fields = {}
        tagged = {}
        for field, hint in _fields(message_type):
            if "tag" in field.metadata:
                tagged[field.metadata["tag"]] = (field, hint)
                found[field.name] = _default(field)
            else:
                found[field.name] = self._value(field, hint, flexible)
        if flexible:
            for _ in range(self._uvarint()):
                tag, size = self._uvarint(), self._uvarint()
                end = self._position + size
                if tag in tagged:
                    field, hint = tagged[tag]
                    found[field.name] = self._value(field, hint, flexible)
                self._position = end
        return found

    def _value(self, field: Any, hint: Any, flexible: bool) -> Any:
        kind = field.metadata.get("kafka_type")
        inner, nullable = _without_none(hint)
        if typing.get_origin(inner) is tuple:
            count = self._uvarint() - 1 if flexible else self._unpack("i")
            if count < 0:
                return None
            item = typing.get_args(inner)[0]
            return [self._value(field, item, flexible) for _ in range(count)]
        if kind is None or dataclasses.is_dataclass(inner):
            if nullable and self._unpack("b") < 0:
                return None
            return self.message(inner)
        if kind in ("string", "bytes", "records"):
            return self._sized(kind, flexible)
        if kind == "uuid":
            return str(uuid.UUID(bytes=self._take(16)))
        return self._unpack(_FORMATS[kind])

    def _sized(self, kind: str, flexible: bool) -> Any:
        size = self._uvarint() - 1 if flexible else self._unpack("h" if kind == "string" else "i")
        if size < 0:
            return None
        data = self._take(size)
        return data.decode() if kind == "string" else data

    def _take(self, size: int) -> bytes:
        if self._position + size > len(self._data):
            raise AssertionError(f"the answer ends at {len(self._data)}, a field wants {self._position + size}")
        self._position += size
        return self._data[self._position - size : self._position]

    def _unpack(self, code: str) -> Any:
        return struct.unpack(f">{code}", self._take(struct.calcsize(f">{code}")))[0]

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "timedelta_i32": "i",
    "int64": "q",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "float64": "d",
}


@functools.cache
def _fields(message_type: Any) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(message_type)
    return [(field, hints[field.name]) for field in dataclasses.fields(message_type)]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not types.NoneType), True
    return hint, False


def _default(field: Any) -> Any:
    value = field.default
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)  # type: ignore[arg-type]
    return list(value) if isinstance(value, tuple) else value


def header_bytes(api_key: int, version: int, correlation: int = 1, client_id: str | None = None) -> bytes:
    """A request header v1 by hand, for requests that no library would build."""
    name = b"" if client_id is None else client_id.encode()
    return struct.pack(">hhih", api_key, version, correlation, -1 if client_id is None else len(name)) + name
