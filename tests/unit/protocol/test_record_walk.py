"""Records are counted and checked by their bytes, and compressed data by what they say of themselves."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

import cramjam
import pytest

from oncelog.core.codec import Codec
from oncelog.protocol.batch import HEADER_BYTES, CorruptBatchError, Record, build_batch, iter_records
from oncelog.protocol.compressed_frame import NotCompressed, unpacked_bytes_max
from oncelog.protocol.compression import compress
from oncelog.protocol.record_walk import MalformedRecords, check_lengths, walk_records

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def section_of(records: list[Record]) -> bytes:
    return build_batch(records, timestamp_ms=0)[HEADER_BYTES:]


def some_records(seed: int) -> list[Record]:
    """Runs of equal records, and others among them."""
    dice = random.Random(seed)
    sizes: list[int] = []
    while len(sizes) < dice.choice([1, 9, 300, 2000]):
        sizes += [dice.choice([0, 50, 60, 70, 9000])] * dice.choice([1, 1, 7, 8, 9, 100])
    return [
        Record(
            number,
            dice.choice([0, 5, 200]),
            dice.choice([None, b"", b"key"]),
            None if size == 50 else bytes(size),
            (("name", b"value"), ("empty", None)) if dice.random() < 0.05 else (),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_records_that_are_there_are_walked_through(seed: int) -> None:
    records = some_records(seed)
    section = section_of(records)
    check_lengths(section, len(records), followed_max=10_000)
    check_lengths(b"before" + section, len(records), 6, followed_max=10_000)
    walked = list(walk_records(section, len(records)))
    assert walked == [(r.timestamp_delta, r.offset_delta, r.key is not None) for r in records]


@pytest.mark.parametrize("seed", range(20))
def test_a_count_or_a_length_that_lies_is_found(seed: int) -> None:
    records = some_records(seed)
    section = section_of(records)
    starts = [0, *accumulate(len(section_of([record])) for record in records)]
    liar = random.Random(seed).randrange(len(records))
    lies = [(section, len(records) + 1), (section[:-1], len(records)), (section + b"\0", len(records))]
    if len(records) > 1:
        lies.append((section, len(records) - 1))
    bent = bytearray(section)
    bent[starts[liar]] ^= 0x02
    lies.append((bytes(bent), len(records)))
    for number, (data, count) in enumerate(lies):
        with pytest.raises(MalformedRecords):
            check_lengths(data, count, followed_max=10_000)
            raise AssertionError(f"lie {number} was believed by its lengths")
        with pytest.raises(MalformedRecords):
            list(walk_records(data, count))


@pytest.mark.parametrize(
    "size", [50, 56, 57, 8_000, 8_184, 8_185, 8_186, 300_000, 1_048_566, 1_048_569, 1_048_570, 2_000_000]
)
def test_lengths_of_any_number_of_bytes(size: int) -> None:
    section = section_of([Record(0, 0, None, bytes(size)), Record(1, 0, None, b"next")])
    check_lengths(section, 2, followed_max=50)
    for data in (section[:-1], section[:-20], section + b"\0"):
        with pytest.raises(MalformedRecords):
            check_lengths(data, 2, followed_max=50)


def test_a_long_length_beyond_the_end_is_told() -> None:
    section = section_of([Record(0, 0, None, bytes(300_000))])
    with pytest.raises(MalformedRecords, match=r"a record at byte 0 claims 3000\d\d bytes"):
        check_lengths(section[:-1], 1, followed_max=50)


def test_only_so_many_lengths_are_followed_and_the_others_must_have_room() -> None:
    section = section_of([Record(n, 0, None, bytes(n % 7)) for n in range(60)])
    check_lengths(section + b"more", 60, followed_max=50)
    for count in (49, 50, 10_000):
        with pytest.raises(MalformedRecords):
            check_lengths(section, count, followed_max=50)


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size", [1, 1_000, 300_000])
def test_what_can_be_in_compressed_data_is_told_without_unpacking_them(codec: Codec, size: int) -> None:
    for content in (bytes(size), random.Random(size).randbytes(size)):
        packed = compress(codec, content)
        most = unpacked_bytes_max(codec, packed)
        assert size <= most
        if codec is not Codec.GZIP:
            assert most <= size + (4 << 20)


@pytest.mark.parametrize("codec", PACKING)
def test_what_is_not_compressed_is_not_taken_for_it(codec: Codec) -> None:
    for data in (b"", b"no compressed data at all, but text", bytes(200)):
        with pytest.raises(NotCompressed):
            unpacked_bytes_max(codec, data)
            raise AssertionError(f"{data!r} was taken for {codec.name}")


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_frame_that_is_cut_off_is_told(codec: Codec) -> None:
    packed = compress(codec, random.Random(1).randbytes(200_000))
    for cut in (1, 100, 150_000):
        with pytest.raises(NotCompressed):
            unpacked_bytes_max(codec, packed[:-cut])


def test_several_frames_in_a_row_are_added_up() -> None:
    zstd, lz4 = bytes(cramjam.zstd.compress(bytes(1000))), bytes(cramjam.lz4.compress(bytes(1000)))
    assert unpacked_bytes_max(Codec.ZSTD, zstd * 3) >= 3000
    assert unpacked_bytes_max(Codec.LZ4, lz4 * 3) >= 3000


def test_a_count_beyond_the_bytes_ends_with_the_bytes() -> None:
    batch = bytearray(build_batch([Record(0, 0, None, b"x")], timestamp_ms=0))
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    records = iter_records(bytes(batch))
    assert next(records).value == b"x"
    with pytest.raises(CorruptBatchError, match="record 1 of the batch"):
        next(records)
