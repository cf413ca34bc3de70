"""The offset map and the slices it is filled from."""

from __future__ import annotations

import pytest

from oncelog.core.codec import Codec
from oncelog.protocol.batch import CorruptBatchError, Record, build_batch, decode_records, read_header
from oncelog.storage.offset_map import DIGEST_BYTES, ENTRY_BYTES, OffsetMap
from oncelog.storage.record_slices import RecordSlice, copy_records, records_section, rewrite_records, slice_records

RECORDS = [
    Record(0, 0, b"key", b"value"),
    Record(1, 5, b"", None, (("header", b"x"),)),
    Record(2, -3, None, b""),
    Record(3, 1_000_000_000_000, b"k" * 300, b"v" * 70_000),
    Record(200, 0, b"z" * 63, b"1"),
]


def sliced(records: list[Record] = RECORDS, **fields: int) -> tuple[bytes, list[RecordSlice]]:
    data = build_batch(records, timestamp_ms=0, **fields)
    header = read_header(data)
    section = records_section(header, data, 0)
    return section, slice_records(section, header)


def as_records(section: bytes, count: int) -> list[Record]:
    """Decoded by the ordinary decoder."""
    plain = build_batch([], timestamp_ms=0, last_offset_delta=0)
    header = bytearray(plain + section)
    header[8:12] = (len(header) - 12).to_bytes(4, "big")
    header[57:61] = count.to_bytes(4, "big")
    return decode_records(bytes(header))


@pytest.mark.parametrize("codec", list(Codec))
def test_slices_say_what_the_decoder_says(codec: Codec) -> None:
    _, slices = sliced(codec=codec)
    assert [(s.offset_delta, s.timestamp_delta, s.key, s.has_value) for s in slices] == [
        (r.offset_delta, r.timestamp_delta, r.key, r.value is not None) for r in RECORDS
    ]


def test_copied_records_are_the_same_bytes() -> None:
    section, slices = sliced()
    assert copy_records(section, slices) == section
    assert as_records(copy_records(section, slices[1:3]), 2) == RECORDS[1:3]


@pytest.mark.parametrize("shift_ms", [0, 7, -1_700_000_000_000])
def test_rewritten_records_differ_in_their_timestamps_only(shift_ms: int) -> None:
    section, slices = sliced()
    rewritten = as_records(rewrite_records(section, slices, shift_ms), len(slices))
    assert rewritten == [r._replace(timestamp_delta=r.timestamp_delta + shift_ms) for r in RECORDS]


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_section_that_is_cut_or_too_long_is_refused(cut: int) -> None:
    data = build_batch(RECORDS, timestamp_ms=0)
    header = read_header(data)
    section = records_section(header, data, 0)
    for damaged in (section[:-cut], section + bytes(cut)):
        with pytest.raises(CorruptBatchError):
            slice_records(damaged, header)


def test_long_batches_let_others_run() -> None:
    data = build_batch([Record(i, 0, b"k", b"v") for i in range(1000)], timestamp_ms=0)
    breaths = []
    slice_records(records_section(read_header(data), data, 0), read_header(data), lambda: breaths.append(1))
    assert len(breaths) == 4


def test_the_newest_offset_of_a_key_counts() -> None:
    offsets = OffsetMap(1000 * ENTRY_BYTES)
    _, slices = sliced([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"1"), Record(2, 0, b"a", b"2")])
    assert offsets.add(100, slices, 0)
    assert (offsets.get(b"a"), offsets.get(b"b"), offsets.get(b"c")) == (102, 101, -1)
    assert offsets.latest_offset == 102


def test_records_below_the_first_offset_and_without_a_key_are_passed_over() -> None:
    offsets = OffsetMap(1000 * ENTRY_BYTES)
    _, slices = sliced([Record(0, 0, b"a", b"1"), Record(1, 0, None, b"1"), Record(2, 0, b"b", b"2")])
    assert offsets.add(10, slices, 11)
    assert len(offsets) == 1
    assert offsets.get(b"a") == -1


def test_a_full_map_takes_no_more_records_not_even_of_known_keys() -> None:
    offsets = OffsetMap(2 * ENTRY_BYTES)
    _, slices = sliced([Record(i, 0, key, b"1") for i, key in enumerate([b"a", b"b", b"a", b"c"])])
    assert not offsets.add(0, slices, 0)
    assert offsets.latest_offset == 1
    assert (offsets.get(b"a"), offsets.get(b"c")) == (0, -1)


def test_there_is_room_for_one_key_however_small_the_memory() -> None:
    offsets = OffsetMap(1)
    _, slices = sliced([Record(0, 0, b"a", b"1")])
    assert offsets.add(0, slices, 0)


def test_long_keys_cost_as_much_as_short_ones_and_stay_apart() -> None:
    offsets = OffsetMap(1000 * ENTRY_BYTES)
    keys = [b"x" * 5000 + bytes([number]) for number in range(5)] + [b"x" * size for size in range(DIGEST_BYTES + 3)]
    _, slices = sliced([Record(i, 0, key, b"1") for i, key in enumerate(keys)])
    offsets.add(0, slices, 0)
    assert [offsets.get(key) for key in keys] == list(range(len(keys)))
    assert max(len(key) for key in offsets._offsets) == DIGEST_BYTES
