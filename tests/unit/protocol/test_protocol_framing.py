from __future__ import annotations

import io
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_writer

from oncelog.protocol import framing
from oncelog.protocol.api import response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import FrameReader, FrameTooLarge, RequestHeader
from oncelog.protocol.primitives import MalformedRequest


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(reader: FrameReader, data: bytes, chunk: int) -> list[bytes]:
    """Hand over `data` like an event loop would, in pieces of at most `chunk` bytes."""
    frames: list[bytes] = []
    position = 0
    while position < len(data):
        buffer = reader.get_buffer(-1)
        assert len(buffer) > 0
        piece = data[position : position + min(chunk, len(buffer))]
        buffer[: len(piece)] = piece
        # The loop's reference to the buffer is alive during the call, as it is in asyncio and uvloop.
        frames += [bytes(f) for f in reader.buffer_updated(len(piece))]
        position += len(piece)
    return frames


@pytest.mark.parametrize("client_id", ["producer-1", "", None, "é"])
@pytest.mark.parametrize(("version", "kio"), [(2, KioHeaderV1), (3, KioHeaderV2)])
def test_request_header_as_kio_writes_it(client_id: str | None, version: int, kio: type) -> None:
    out = io.BytesIO()
    header = kio(request_api_key=26, request_api_version=version, correlation_id=77, client_id=client_id)
    entity_writer(kio)(out, header)
    data = memoryview(out.getvalue() + b"body")
    parsed, position = framing.parse_request_header(data)
    assert parsed == RequestHeader(26, version, 77, client_id)
    assert data[position:] == b"body"
    (request,) = framing.encode_request_frame(26, version, 77, client_id, [])
    assert bytes(request) == frame(out.getvalue())


def test_tags_of_a_request_header_are_skipped() -> None:
    data = struct.pack(">hhih", 18, 3, 1, -1) + b"\x02\x00\x01a\x81\x01\x02bb" + b"body"
    header, position = framing.parse_request_header(data)
    assert (header.client_id, data[position:]) == (None, b"body")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\x12\0\0\0\0\0\1",
        struct.pack(">hhih", 18, 0, 1, 5) + b"abc",
        struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xff",
        struct.pack(">hhih", 18, 3, 1, -1),
        struct.pack(">hhih", 18, 3, 1, -1) + b"\x01\x00\x7f",
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xff" * 6,
    ],
)
def test_malformed_request_headers(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        framing.parse_request_header(data)


@pytest.mark.parametrize("header_version", [0, 1])
def test_response_frame(header_version: int) -> None:
    records = bytes(50)
    buffers = framing.frame_response(9, header_version, [b"abc", records, b""])
    assert any(buffer is records for buffer in buffers)
    data = b"".join(buffers)
    assert data[:4] == struct.pack(">i", len(data) - 4)
    correlation_id, position = framing.parse_response_header(data[4:], header_version)
    assert (correlation_id, data[4 + position :]) == (9, b"abc" + records)


@pytest.mark.parametrize(("data", "version"), [(b"\0\0\0", 0), (b"\0\0\0\1", 1), (b"\0\0\0\1\1\0\7", 1)])
def test_malformed_response_headers(data: bytes, version: int) -> None:
    with pytest.raises(MalformedRequest):
        framing.parse_response_header(data, version)


def test_api_versions_is_answered_with_the_oldest_header() -> None:
    assert response_header_version(ApiKey.API_VERSIONS, 4) == 0
    assert response_header_version(ApiKey.METADATA, 12) == 1


BODIES = [b"", b"a", b"b" * 1000, b"c" * 65_532, b"d" * 65_533, b"e" * 70_000, b"f", b"g" * 3_000_000, b"h" * 20_000]


@pytest.mark.parametrize("chunk", [1 << 30, 65_536, 65_535, 10_007, 1_000])
def test_frames_come_out_whole_and_in_order(chunk: int) -> None:
    assert feed(FrameReader(), b"".join(map(frame, BODIES)), chunk) == BODIES


def test_frames_come_out_whole_byte_by_byte() -> None:
    bodies = [b"", b"x", b"y" * 300]
    assert feed(FrameReader(), b"".join(map(frame, bodies)), 1) == bodies


def test_frames_stay_valid_while_the_buffer_is_used_again() -> None:
    reader = FrameReader()
    first = b"1" * 100
    buffer = reader.get_buffer(-1)
    buffer[:104] = frame(first)
    (view,) = reader.buffer_updated(104)
    feed(reader, frame(b"2" * 100), 1000)
    assert view == first
    assert view.readonly


def test_a_large_frame_is_received_into_its_own_memory() -> None:
    reader = FrameReader()
    size = 500_000
    head = reader.get_buffer(-1)
    head[:14] = struct.pack(">i", size) + b"0123456789"
    assert reader.buffer_updated(14) == []
    rest = reader.get_buffer(-1)
    assert len(rest) == size - 10
    rest[:] = bytes(size - 10)
    (view,) = reader.buffer_updated(size - 10)
    assert rest.obj is view.obj
    assert view[:11] == b"0123456789\0"


def test_a_claimed_size_is_not_allocated_before_bytes_arrive() -> None:
    reader = FrameReader(max_frame_bytes=30 << 20)
    reader.get_buffer(-1)[:4] = struct.pack(">i", 30 << 20)
    reader.buffer_updated(4)
    assert len(reader.get_buffer(-1)) == framing.FIRST_STEP_BYTES
    received = 0
    while received < 30 << 20:
        free = len(reader.get_buffer(-1))
        assert free <= max(framing.FIRST_STEP_BYTES, received * framing.STEP_FACTOR)
        frames = reader.buffer_updated(free)
        received += free
    assert [len(f) for f in frames] == [30 << 20]


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_sizes_out_of_bounds_are_refused(size: int) -> None:
    reader = FrameReader(max_frame_bytes=1000)
    with pytest.raises(FrameTooLarge) as raised:
        feed(reader, frame(b"x" * 1000) + struct.pack(">i", size), 1 << 20)
    assert raised.value.size == size


def test_many_frames_that_came_together_are_cut_when_they_are_asked_for() -> None:
    reader, sent = FrameReader(frames_at_once=3), [b"%d" % number for number in range(8)]
    long = frame(b"x" * 100_000)
    frames = feed(reader, b"".join(map(frame, sent)) + long[:2], 1 << 16)
    assert frames == sent[:3]
    while reader.has_more:
        more = [bytes(each) for each in reader.take_more()]
        assert 0 < len(more) <= 3
        frames += more
    assert frames == sent
    assert feed(reader, long[2:], 1 << 16) == [b"x" * 100_000]
    assert not reader.has_more


def test_a_frame_too_large_behind_others_is_refused_when_it_is_cut() -> None:
    reader = FrameReader(max_frame_bytes=10, frames_at_once=1)
    assert feed(reader, frame(b"a") + frame(b"b") + frame(bytes(11)), 100) == [b"a"]
    assert reader.has_more
    with pytest.raises(FrameTooLarge):
        reader.take_more()
