from __future__ import annotations

import struct as std_struct
import uuid as std_uuid

import pytest

from oncelog.core.invariant import InvariantError
from oncelog.protocol.api import decode_request, encode_request
from oncelog.protocol.compiler import decode, decoder, encode, encode_bytes
from oncelog.protocol.decoder import REQUEST_ELEMENTS_MAX
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.primitives import MalformedRequest, Readable
from oncelog.protocol.schema import (
    Message,
    array,
    boolean,
    byte_string,
    int8,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct,
    uuid,
)


class Point(Message):
    x: int = int32(default=-1)
    y: int = int32(default=-1)


class Shape(Message):
    name: str = string()
    points: list[Point] = array(Point)


class Sample(Message, versions=(1, 4), flexible=3):
    count: int = int64()
    flag: bool = boolean(default=True)
    title: str | None = string(nullable_since=2)
    old: int = int16(until=2)
    new: int = int8(since=3, default=7)
    blob: bytes | None = byte_string(nullable=True)
    shapes: list[Shape] | None = array(Shape, nullable=True)
    numbers: list[int] = array(int16)
    ratio: int = int64(since=4)
    extra: Point | None = struct(Point, since=3, nullable=True)
    late: Point = struct(Point, since=3, tag=5)
    note: str = string(since=3, tag=0)
    id: std_uuid.UUID = uuid(since=3, tag=1)
    more: list[Shape] = array(Shape, since=3, tag=300)


class Carrier(Message, versions=(0, 1), flexible=1):
    topic: str = string()
    data: Readable | None = record_batches()
    after: int = int32()


FULL = {
    "count": -5,
    "flag": False,
    "title": "t",
    "old": 3,
    "new": 9,
    "blob": b"\0\1",
    "shapes": [Shape(name="a", points=[Point(x=1, y=2), Point(x=3)]), Shape()],
    "numbers": list(range(-9, 11)),
    "ratio": 5,
    "extra": Point(y=4),
    "late": Point(x=8, y=9),
    "note": "n",
    "id": std_uuid.UUID(int=77),
    "more": [Shape(name="z" * 200)],
}


def full(version: int) -> Sample:
    """A sample with every field that this version carries."""
    present = {name: value for name, value in FULL.items() if Sample.FIELDS[name].is_in(version)}
    return Sample(**present)  # type: ignore[arg-type]


def test_fields_have_kafkas_defaults_and_lists_are_not_shared() -> None:
    first, second = Sample(), Sample()
    assert (first.count, first.flag, first.title, first.new, first.numbers) == (0, True, "", 7, [])
    assert first == second
    first.numbers.append(1)
    assert second.numbers == []
    assert first != second


def test_only_keywords_of_the_table_are_accepted() -> None:
    with pytest.raises(TypeError):
        Sample(3)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Sample(unknown=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Sample().unknown = 3  # type: ignore[attr-defined]


def test_the_shared_default_of_a_struct_cannot_be_changed() -> None:
    sample = Sample()
    assert sample.late is Sample().late
    with pytest.raises(AttributeError, match="assign a new one"):
        sample.late.x = 3
    sample.late = Point(x=3)
    assert Sample().late == Point() != sample.late


def test_messages_are_not_hashable() -> None:
    with pytest.raises(TypeError):
        hash(Sample())


def test_different_classes_are_never_equal() -> None:
    assert Point() != Shape()
    assert Point() != (-1, -1)


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(Sample(count=3, late=Point(x=1))) == "Sample(count=3, late=Point(x=1))"
    assert repr(Carrier(data=memoryview(b"abc"))) == "Carrier(data=<3 bytes>)"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("container", [bytes, bytearray, memoryview])
def test_round_trip_in_every_version(version: int, container: type) -> None:
    encoded = encode_bytes(full(version), version)
    decoded, end = decoder(Sample, version)(container(b"??" + encoded + b"!"), 2)
    assert decoded == full(version)
    assert end == len(encoded) + 2


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_nulls_and_defaults_round_trip(version: int) -> None:
    sample = Sample(title=None if version >= 2 else "", blob=None, shapes=None)
    assert decode(Sample, version, encode_bytes(sample, version)) == sample


def test_old_layout_byte_for_byte() -> None:
    sample = Sample(
        count=1, title="ab", old=2, blob=None, shapes=[Shape(name="s", points=[Point(x=1, y=2)])], numbers=[5]
    )
    assert encode_bytes(sample, 1) == (
        std_struct.pack(">q?h2sh", 1, True, 2, b"ab", 2)
        + b"\xff\xff\xff\xff"
        + std_struct.pack(">ih1siii", 1, 1, b"s", 1, 1, 2)
        + std_struct.pack(">ih", 1, 5)
    )


def test_flexible_layout_byte_for_byte() -> None:
    sample = Sample(count=1, title="ab", blob=b"", shapes=None, numbers=[5], extra=Point(x=1, y=2), note="n")
    assert encode_bytes(sample, 3) == (
        std_struct.pack(">q?B2sb", 1, True, 3, b"ab", 7)
        + b"\x01\x00"
        + b"\x02\x00\x05"
        + b"\x01\x00\x00\x00\x01\x00\x00\x00\x02\x00"
        + b"\x01\x00\x02\x02n"
    )


def test_tags_are_written_in_ascending_order() -> None:
    plain = encode_bytes(Sample(), 3)
    tagged = encode_bytes(Sample(late=Point(x=1, y=2), note="n", more=[Shape()]), 3)
    assert plain[-1:] == b"\x00"
    assert tagged == plain[:-1] + (
        b"\x03" + b"\x00\x02\x02n" + b"\x05\x09\0\0\0\1\0\0\0\2\0" + b"\xac\x02\x04\x02\x01\x01\x00"
    )


def test_unknown_tags_are_skipped_beside_known_ones() -> None:
    plain = encode_bytes(Sample(), 3)
    tags = b"\x02" + b"\x03\x02xx" + b"\x05\x09\0\0\0\1\0\0\0\2\0"
    assert decode(Sample, 3, plain[:-1] + tags) == Sample(late=Point(x=1, y=2))


def test_unknown_tags_are_skipped_where_none_is_known() -> None:
    data = encode_bytes(Sample(extra=Point()), 3)
    assert data[-2:] == b"\x00\x00"
    assert decode(Sample, 3, data[:-2] + b"\x01\x07\x01z" + b"\x00") == Sample(extra=Point())


def test_more_than_127_unknown_tags_are_skipped() -> None:
    data = encode_bytes(Sample(extra=Point()), 3)
    tags = b"\xac\x02" + b"".join(b"\xff\x7f\x01x" for _ in range(300))
    assert decode(Sample, 3, data[:-2] + tags + b"\0") == Sample(extra=Point())


def test_record_data_is_a_view_of_the_frame_when_decoded() -> None:
    encoded = encode_bytes(Carrier(topic="t", data=b"records", after=4), 1)
    frame = bytearray(encoded)
    decoded = decode(Carrier, 1, memoryview(frame))
    assert isinstance(decoded.data, memoryview)
    assert decoded.data == b"records"
    frame[frame.index(b"records")] = ord("R")
    assert decoded.data == b"Records"


@pytest.mark.parametrize("version", [0, 1])
def test_record_data_is_not_copied_when_encoded(version: int) -> None:
    data = bytes(1000)
    buffers = encode(Carrier(topic="t", data=data, after=4), version)
    assert len(buffers) == 3
    assert buffers[1] is data
    assert decode(Carrier, version, b"".join(buffers)) == Carrier(topic="t", data=data, after=4)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("data", [None, b""])
def test_no_records_and_empty_records_are_different(version: int, data: bytes | None) -> None:
    encoded = encode_bytes(Carrier(data=data), version)
    assert decode(Carrier, version, encoded).data == data


@pytest.mark.parametrize("version", [1, 3, 4])
def test_every_truncation_is_malformed(version: int) -> None:
    encoded = encode_bytes(full(version), version)
    for size in range(len(encoded)):
        with pytest.raises(MalformedRequest):
            decode(Sample, version, encoded[:size])


def test_trailing_bytes_are_tolerated() -> None:
    assert decode(Sample, 4, encode_bytes(full(4), 4) + b"stray") == full(4)


HEAD = std_struct.pack(">q?", 1, True)


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        (1, b"\xff\xff"),  # null where the version has no null
        (1, b"\x7f\xff"),  # a string longer than the data
        (1, b"\x00\x02\xff\xfe"),  # not UTF-8
        (1, b"\0\0\0\0" + b"\x7f\xff\xff\xff"),  # bytes longer than the data
        (1, b"\0\0\0\0" + b"\0\0\0\0" + b"\x7f\xff\xff\xff"),  # more structs than bytes
        (1, b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"),  # null array where not allowed
        (1, b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0" + b"\x7f\xff\xff\xff"),  # more numbers than bytes
        (3, b"\xff\xff\xff\xff\xff\x01"),  # a uvarint that does not end
        (3, b"\xff\xff\xff\xff\x0f"),  # a string of 4 GiB
        (3, b"\x01\x07\x01" + b"\xff\xff\xff\xff\x0f"),  # an array of 4 Gi structs
        (3, b"\x01\x07\x01\x01" + b"\x00"),  # null compact array where not allowed
        (3, b"\x01\x07\x01\x01\x01\xff" + b"\x01\x05\x7f"),  # a tag longer than the data
        (3, b"\x01\x07\x01\x01\x01\xff" + b"\x01\x05\x01\0\0\0\1\0\0\0\2\0"),  # a tag longer than its size
        (3, b"\x01\x07\x01\x01\x01\xff" + b"\x7f"),  # tags that are not there
    ],
)
def test_lies_are_malformed(version: int, tail: bytes) -> None:
    with pytest.raises(MalformedRequest, match=r"Sample v|uvarint|tag "):
        decode(Sample, version, HEAD + tail)


def test_count_is_checked_against_the_size_of_an_element() -> None:
    # A shape takes at least 6 bytes in the old layout, so 12 bytes cannot hold three.
    data = HEAD + b"\0\0\0\0" + b"\0\0\0\0" + std_struct.pack(">i", 3) + bytes(12)
    with pytest.raises(MalformedRequest, match="shapes claims 3 elements, 12 bytes are left"):
        decode(Sample, 1, data)


def test_versions_outside_the_table_are_a_bug_of_ours() -> None:
    for version in (0, 5):
        with pytest.raises(InvariantError):
            decode(Sample, version, b"")
        with pytest.raises(InvariantError):
            encode(Sample(), version)


def test_a_compact_string_longer_than_an_old_one_can_be_is_malformed() -> None:
    request = HeartbeatRequest(group_id="g" * 32_767, generation_id=1, member_id="m")
    body = b"".join(encode_request(12, 4, request))
    assert decode_request(12, 4, memoryview(body)) == request
    request.group_id += "g"
    body = b"".join(encode_request(12, 4, request))
    with pytest.raises(MalformedRequest, match="group_id is a string of 32768 bytes"):
        decode_request(12, 4, memoryview(body))


def test_the_elements_of_a_request_are_bounded_over_all_its_arrays() -> None:
    half = DescribeConfigsResource(configuration_keys=[""] * (REQUEST_ELEMENTS_MAX // 2 - 1))
    request = DescribeConfigsRequest(resources=[half, half])
    body = b"".join(encode_request(32, 4, request))
    assert decode_request(32, 4, memoryview(body)) == request
    request.resources.append(DescribeConfigsResource(configuration_keys=[]))
    body = b"".join(encode_request(32, 4, request))
    with pytest.raises(MalformedRequest, match="makes more than 200000 elements in one request"):
        decode_request(32, 4, memoryview(body))
