"""Records out of lines: plain, with keys, or JSON.

A line of JSON is an object with any of: key, value, headers, partition, timestamp. Text is taken as UTF-8, null as
null, anything else as JSON text; bytes that are no text come as key_base64 and value_base64. `oncelog consume -o json`
writes the same form, so that one can be piped into the other.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import json
import os
import select
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncelog.cli.content_types import AS_THEY_ARE, ContentType, ContentTypes
from oncelog.cli.interruption import await_readable

BLOCK_BYTES: Final = 4 * 1024 * 1024
PIPE_BYTES: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A line that is longer is a mistake, and would fill the memory."""
_JSON_FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp", "topic", "offset", "time"}
)


class InvalidLine(Exception):
    """A line that is no record. `number` counts from 1, in the file called `source`."""

    def __init__(self, number: int, problem: str, source: str = "") -> None:
        super().__init__(problem)
        self.number = number
        self.problem = problem
        self.source = source

    def __str__(self) -> str:
        place = f" of {self.source}" if self.source else ""
        return f"line {self.number}{place}: {self.problem}"


class InputRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Block(NamedTuple):
    """Whole lines, each with its newline, and the number of the first one."""

    data: bytes
    first_line: int
    source: str


@dataclass(frozen=True, slots=True)
class LineFormat:
    is_json: bool = False
    key_delimiter: bytes | None = None
    null_text: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    types: ContentTypes = AS_THEY_ARE

    @property
    def has_columns(self) -> bool:
        """Lines whose parts are the bytes of keys and values, which can be cut in columns."""
        return not self.is_json and self.types == AS_THEY_ARE

    def parse(self, line: bytes, number: int, source: str) -> InputRecord:
        try:
            return self._from_json(line) if self.is_json else self._from_text(line)
        except ValueError as error:
            raise InvalidLine(number, str(error), source) from error
        except RecursionError as error:
            raise InvalidLine(number, f"it is nested too deeply: {_start(line)}", source) from error

    def _from_text(self, line: bytes) -> InputRecord:
        key: bytes | None = None
        value: bytes | None = line
        if self.key_delimiter is not None:
            key, found, value = line.partition(self.key_delimiter)
            if not found:
                delimiter = self.key_delimiter.decode(errors="replace")
                raise ValueError(f"there is no {delimiter!r} between a key and a value: {_start(line)}")
        return InputRecord(self._typed("key", self._null(key)), self._typed("value", self._null(value)), self.headers)

    def _typed(self, name: str, data: bytes | None) -> bytes | None:
        kind = self.types.of(name)
        if kind is None or data is None:
            return data
        try:
            return kind.encode(data.decode())
        except ValueError as error:
            raise ValueError(f"the {name} {error}") from error

    def _null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null_text else data

    def _from_json(self, line: bytes) -> InputRecord:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ValueError(f"it is not JSON ({error}): {_start(line)}") from error
        if not isinstance(found, dict):
            raise ValueError(f"expected a JSON object, found {type(found).__name__}: {_start(line)}")
        unknown = found.keys() - _JSON_FIELDS
        if unknown:
            raise ValueError(
                f"unknown field {sorted(unknown)[0]!r}; known are key, value, headers, partition, timestamp"
            )
        return InputRecord(
            _content(found, "key", self.types.key),
            _content(found, "value", self.types.value),
            (*self.headers, *_headers(found.get("headers"))),
            _number(found, "partition"),
            _number(found, "timestamp"),
        )


def _content(found: dict[str, Any], name: str, kind: ContentType | None = None) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{name}_base64 is not base64: {error}") from error
    value = found.get(name)
    if value is None:
        return None
    if kind is not None:
        return _of_type(name, kind, value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _encoded(text, f"the {name}")


def _of_type(name: str, kind: ContentType, value: Any) -> bytes:
    """A string is JSON too: `--value-type json` writes it with its quotes, as consume has read it."""
    try:
        return kind.encode(json.dumps(value) if kind.takes_json and isinstance(value, str) else value)
    except ValueError as error:
        raise ValueError(f"the {name} {error}") from error


def _headers(found: Any) -> Iterator[tuple[str, bytes | None]]:
    """An object, or a list of objects with name and value, which keeps names that occur twice."""
    if found is None:
        return
    if isinstance(found, dict):
        pairs = [{"name": name, "value": value} for name, value in found.items()]
    elif isinstance(found, list) and all(
        isinstance(pair, dict) and isinstance(pair.get("name"), str) for pair in found
    ):
        pairs = found
    else:
        raise ValueError("headers must be an object, or a list of objects with name and value")
    for pair in pairs:
        _encoded(pair["name"], "the name of a header")
        yield pair["name"], _content(pair, "value")


def _encoded(text: str, what: str) -> bytes:
    """JSON can escape halves of letters."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not UTF-8: {text[error.start : error.end]!a}") from None


def _number(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number, found {value!r}")
    return value


def _start(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:60] + "...")


def blocks(descriptor: int, source: str) -> Iterator[Block]:
    """Whole lines as they arrive: what is there is passed on, and nothing waits for a block to be full."""
    _widen_pipe(descriptor)
    rest, number, is_open = b"", 1, True
    while is_open:
        data, is_open = _read_ready(descriptor)
        if not data:
            break
        end = data.rfind(b"\n") + 1
        if end == 0:
            rest += data
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidLine(number, f"it is longer than {LINE_BYTES_MAX} bytes", source)
            continue
        block = Block(rest + data[:end], number, source)
        rest = data[end:]
        yield block
        number += block.data.count(b"\n")
    if rest:
        yield Block(rest + b"\n", number, source)


def _read_ready(descriptor: int) -> tuple[bytes, bool]:
    """Waits for the first bytes, and takes along what is there besides: pipes are emptied in small portions.

    Whether more may come is part of the answer: a terminal says only once that Ctrl-D was typed.
    """
    await_readable(descriptor)
    parts = [os.read(descriptor, BLOCK_BYTES)]
    size = len(parts[0])
    while parts[-1] and size < BLOCK_BYTES and select.select([descriptor], [], [], 0)[0]:
        parts.append(os.read(descriptor, BLOCK_BYTES))
        size += len(parts[-1])
    return b"".join(parts), bool(parts[-1])


def _widen_pipe(descriptor: int) -> None:
    """Linux gives a pipe 64 kB; more of it means fewer turns between the two processes."""
    if hasattr(fcntl, "F_SETPIPE_SZ") and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def file_blocks(path: Path) -> Iterator[Block]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield from blocks(descriptor, str(path))
    finally:
        os.close(descriptor)
