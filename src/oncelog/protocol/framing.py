"""Frames and headers around messages.

A frame is an int32 size and that many bytes: a header, then the body.

    request header v1   int16 api key, int16 version, int32 correlation id, nullable string client id
    request header v2   the same and a tag section; the client id stays a string with an int16 length
    response header v0  int32 correlation id
    response header v1  the same and a tag section
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.api import request_header_version
from oncelog.protocol.decoder import skip_tags
from oncelog.protocol.primitives import MalformedRequest, Readable, read_uvarint

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""
RECEIVE_BUFFER_BYTES: Final = 64 * 1024
DIRECT_BYTES_MIN: Final = RECEIVE_BUFFER_BYTES // 4
"""When more than this is missing of a frame, it is worth memory of its own and one copy less."""
FIRST_STEP_BYTES: Final = 1024 * 1024
"""As much is set aside for a frame on its word alone; more only as its bytes arrive."""
STEP_FACTOR: Final = 4

_SIZE_BYTES: Final = 4
_SIZE: Final = struct.Struct(">i")
_read_size: Final = _SIZE.unpack_from
_REQUEST_HEAD: Final = struct.Struct(">hhih")
_FRAME_REQUEST_HEAD: Final = struct.Struct(">ihhih")
_INT32_PAIR: Final = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class FrameTooLarge(ValueError):
    def __init__(self, size: int) -> None:
        super().__init__(_describe_size(size))
        self.size = size


def _describe_size(size: int) -> str:
    start = size.to_bytes(4, "big", signed=True)
    if start[:2] == b"\x16\x03":
        return "this looks like TLS, on a port without it"
    if start in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return "this looks like HTTP, on a port for Kafka"
    return f"a frame claims {size} bytes; is the peer speaking Kafka, and without TLS?"


def parse_request_header(frame: Readable) -> tuple[RequestHeader, int]:
    """The header and the position of the body. Raises MalformedRequest."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEAD.unpack_from(frame)
        position = _REQUEST_HEAD.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                raise MalformedRequest(f"the client id claims {length} bytes, {len(frame) - position} are left")
            client_id = str(frame[position:end], "utf-8")
            position = end
        if request_header_version(api_key, api_version) >= 2:
            position = _after_tags(frame, position) if frame[position] else position + 1
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def parse_response_header(frame: Readable, header_version: int) -> tuple[int, int]:
    """Correlation id and the position of the body. Raises MalformedRequest."""
    try:
        correlation_id: int = _SIZE.unpack_from(frame)[0]
        position = _SIZE.size
        if header_version >= 1:
            position = _after_tags(frame, position)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"response header: {error}") from error
    return correlation_id, position


def _after_tags(frame: Readable, position: int) -> int:
    if not frame[position]:
        return position + 1
    count, position = read_uvarint(frame, position)
    return skip_tags(frame, position, count)


def frame_response(correlation_id: int, header_version: int, buffers: Sequence[Readable]) -> list[Readable]:
    """The buffers of a whole frame, the body's among them uncopied."""
    size = _SIZE_BYTES + sum(map(len, buffers))
    if header_version >= 1:
        return [_INT32_PAIR.pack(size + 1, correlation_id) + b"\0", *buffers]
    return [_INT32_PAIR.pack(size, correlation_id), *buffers]


def frame_whole(content: Readable) -> list[Readable]:
    """The buffers of a frame that has nothing but this content: a header of its own, or none at all."""
    return [_SIZE.pack(len(content)), content]


def encode_request_frame(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, buffers: Iterable[Readable]
) -> list[Readable]:
    body = list(buffers)
    name = b"" if client_id is None else client_id.encode()
    tags = b"\0" if request_header_version(api_key, api_version) >= 2 else b""
    size = _REQUEST_HEAD.size + len(name) + len(tags) + sum(map(len, body))
    length = -1 if client_id is None else len(name)
    head = _FRAME_REQUEST_HEAD.pack(size, api_key, api_version, correlation_id, length)
    return [head + name + tags, *body]


class FrameReader:
    """Cuts a stream into frames, with the two calls of `asyncio.BufferedProtocol` and no I/O of its own.

    Theory of operation. Bytes arrive in a small buffer that is used again and again; complete frames are copied out of
    it. When the rest of a frame is long, the frame gets memory of its own and its bytes are received straight into it.
    That memory starts small and grows with what has arrived, so that a size which is only claimed costs little. It is
    exchanged rather than resized, since the event loop may still hold the last buffer it was given.

    Thousands of the smallest frames fit into the small buffer, and take thirty times as much memory as objects. Whoever
    serves them one after the other, and receives nothing meanwhile, has so many cut at once: the others stay bytes.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        frames_at_once: int = sys.maxsize,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Without room nothing is set aside for a frame: thousands of connections may begin one with a few bytes."""
        self.max_frame_bytes = max_frame_bytes
        self._frames_at_once = frames_at_once
        self._has_room = has_room
        self.has_more = False
        """Whether `take_more` has further frames. Nothing may be received before they are taken."""
        self.needs_room = False
        """Whether a frame has begun without room for it. Nothing may be received before `take_more` finds some."""
        self._small = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._filled = 0
        self._frame: memoryview | None = None
        """Memory of the frame being received directly, if any; `_filled` counts in it then."""
        self._frame_size = 0
        self.frame_bytes = 0
        """Set aside for a frame that is being received, beside the small buffer."""

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes are to be received; never empty."""
        target = self._small if self._frame is None else self._frame
        return target[self._filled :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Take note of `count` received bytes. Returns the frames they complete, without sizes, each in its own memory.

        Raises FrameTooLarge for a size that is negative or beyond the bound: the stream cannot be followed any more.
        """
        self._filled += count
        if self._frame is None:
            return self._cut()
        if self._filled < len(self._frame):
            return []
        if self._filled < self._frame_size:
            self._frame = self._grown(self._frame)
            return []
        frame = self._frame.toreadonly()
        self._frame = None
        self._filled = self.frame_bytes = 0
        return [frame]

    def take_more(self) -> list[memoryview]:
        """Frames that have been received already. Raises FrameTooLarge."""
        self.has_more = self.needs_room = False
        return self._cut()

    def close(self) -> None:
        """Nothing comes any more: whatever keeps this object in memory keeps no buffer."""
        self._small, self._frame = memoryview(b""), None
        self._filled = self.frame_bytes = 0
        self.has_more = self.needs_room = False

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        small, filled, start = self._small, self._filled, 0
        while filled - start >= _SIZE_BYTES:
            (size,) = _read_size(small, start)
            if not 0 <= size <= self.max_frame_bytes:
                raise FrameTooLarge(size)
            body = start + _SIZE_BYTES
            end = body + size
            if end > filled:
                if end - filled > DIRECT_BYTES_MIN or end - start > RECEIVE_BUFFER_BYTES:
                    if self._has_room():
                        self._start_direct(size, small[body:filled])
                        return frames
                    self.needs_room = True
                break
            if len(frames) == self._frames_at_once:
                self.has_more = True
                break
            frames.append(memoryview(bytes(small[body:end])))
            start = end
        self._filled = rest = filled - start
        if rest and start:
            small[:rest] = small[start:filled]
        return frames

    def _start_direct(self, size: int, arrived: memoryview) -> None:
        self._frame_size = size
        self._filled = len(arrived)
        self._frame = memoryview(bytearray(min(size, FIRST_STEP_BYTES)))
        self._frame[: self._filled] = arrived
        self.frame_bytes = len(self._frame)

    def _grown(self, frame: memoryview) -> memoryview:
        larger = memoryview(bytearray(min(self._frame_size, len(frame) * STEP_FACTOR)))
        larger[: len(frame)] = frame
        self.frame_bytes = len(larger)
        return larger
