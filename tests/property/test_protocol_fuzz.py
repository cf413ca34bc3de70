"""Whatever bytes a peer sends, a decoder gives a message or says that they are malformed, within bounded memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog.core.codec import Codec
from oncelog.core.errors import KafkaError
from oncelog.protocol import batch, framing
from oncelog.protocol.batch import Record
from oncelog.protocol.compiler import decode, decoder, encode_bytes
from oncelog.protocol.framing import RECEIVE_BUFFER_BYTES, FrameReader, FrameTooLarge
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from tests.unit.protocol import strategies

MESSAGES = strategies.all_messages()
RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large]
# Values that look like null, like huge lengths, and like compact counts of one or two.
TELLING_BYTES = st.sampled_from([0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0xFF])


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                del data[position:]
            case 1:
                data[position:position] = draw(st.binary(min_size=1, max_size=5))
            case 2:
                data[position : position + draw(st.integers(1, 4))] = b""
            case _:
                data[position : position + 1] = bytes([draw(TELLING_BYTES | st.integers(0, 255))])
    return bytes(data)


def check_decoder(cls: type[Message], version: int, data: bytes) -> None:
    try:
        message, end = decoder(cls, version)(data, 0)
    except MalformedRequest:
        return
    assert type(message) is cls
    assert 0 <= end <= len(data)
    assert decode(cls, version, encode_bytes(message, version)) == message


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=15, suppress_health_check=RELAXED)
@given(data=st.data())
def test_damaged_messages_are_read_or_refused(cls: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(strategies.versions_of(cls)))
    original = encode_bytes(data.draw(strategies.message(cls, version)), version)
    check_decoder(cls, version, data.draw(mutated(original)))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=15, suppress_health_check=RELAXED)
@given(data=st.data())
def test_noise_is_read_or_refused(cls: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(strategies.versions_of(cls)))
    noise = data.draw(st.binary(max_size=200) | st.lists(TELLING_BYTES, max_size=200).map(bytes))
    check_decoder(cls, version, noise)


@pytest.mark.parametrize(
    "fill", [b"\x00", b"\x01", b"\x02", b"\x7f", b"\xff", b"\x00\x00\xff\xff", b"\xff\xff\xff\x0f"]
)
def test_memory_is_bounded_by_the_size_of_the_frame(fill: bytes) -> None:
    """A lying count may not allocate; what is allocated stays within a factor of the bytes that are really there."""
    frame = (fill * 65_536)[:65_536]
    for cls in MESSAGES:
        for version in strategies.versions_of(cls):
            decode_one = decoder(cls, version)
            tracemalloc.start()
            try:
                decode_one(frame, 0)
            except MalformedRequest:
                pass
            finally:
                peak_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert peak_bytes < 100 * len(frame), f"{cls.__name__} v{version} took {peak_bytes} bytes"


@settings(max_examples=200)
@given(noise=st.binary(max_size=60))
def test_headers_are_read_or_refused(noise: bytes) -> None:
    for parse in (framing.parse_request_header, lambda d: framing.parse_response_header(d, 1)):
        try:
            _, position = parse(noise)
        except MalformedRequest:
            continue
        assert 0 < position <= len(noise)


def feed(reader: FrameReader, stream: bytes, chunks: list[int]) -> list[bytes]:
    frames: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        buffer = reader.get_buffer(-1)
        assert 0 < len(buffer) <= max(RECEIVE_BUFFER_BYTES, framing.FIRST_STEP_BYTES, 4 * position)
        size = min(chunks[turn % len(chunks)], len(buffer), len(stream) - position)
        buffer[:size] = stream[position : position + size]
        frames += map(bytes, reader.buffer_updated(size))
        position += size
        turn += 1
    return frames


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 100) | st.integers(0, 200_000), max_size=8),
    chunks=st.lists(st.integers(1, 70_000) | st.integers(3_000, 5_000), min_size=1, max_size=5),
)
def test_any_cutting_of_a_stream_gives_the_same_frames(sizes: list[int], chunks: list[int]) -> None:
    bodies = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    if len(stream) // min(chunks) > 20_000:
        chunks = [*chunks, 1000]
    assert feed(FrameReader(), stream, chunks) == bodies


@settings(max_examples=200)
@given(stream=st.binary(max_size=300), chunks=st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_a_stream_of_noise_is_cut_or_refused(stream: bytes, chunks: list[int]) -> None:
    try:
        frames = feed(FrameReader(max_frame_bytes=1 << 20), stream, chunks)
    except FrameTooLarge as error:
        assert error.size < 0 or error.size > 1 << 20
        return
    assert sum(len(frame) + 4 for frame in frames) <= len(stream)


HEADERS = st.lists(st.tuples(strategies.SHORT_TEXT, st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record,
        offset_delta=st.integers(0, 2**31 - 1),
        timestamp_delta=st.integers(-(2**62), 2**62),
        key=st.none() | st.binary(max_size=8),
        value=st.none() | st.binary(max_size=200),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150)
@given(records=RECORDS, codec=st.sampled_from(Codec), base_sequence=st.integers(-1, 2**31 - 1))
def test_batches_round_trip(records: list[Record], codec: Codec, base_sequence: int) -> None:
    built = batch.build_batch(
        records, timestamp_ms=5, codec=codec, base_sequence=base_sequence, producer_id=3, max_timestamp_ms=9
    )
    ((position, header),) = batch.iter_headers(built)
    assert (position, header.size_bytes, header.codec) == (0, len(built), codec)
    assert header.crc == batch.crc_of(built, 0, len(built))
    assert 0 <= header.last_sequence < 2**31 or base_sequence == header.last_sequence == -1
    assert batch.decode_records(built) == records


@settings(max_examples=300, suppress_health_check=RELAXED)
@given(data=st.data(), codec=st.sampled_from(Codec))
def test_damaged_batches_are_read_or_refused(data: st.DataObject, codec: Codec) -> None:
    built = batch.build_batch(data.draw(RECORDS), timestamp_ms=5, codec=codec, max_timestamp_ms=9)
    damaged = data.draw(mutated(built))
    for read in (lambda d: list(batch.iter_headers(d)), batch.decode_records, batch.parse_control):
        try:
            read(damaged)
        except KafkaError:
            continue
