"""The short way to the key of a batch of one record: the same key as the decoder's, or none at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.protocol.batch import Record, build_batch, decode_records, read_header
from oncelog.storage.record_slices import sole_key

PADDING = b"p" * 9

keys = st.none() | st.binary(max_size=70)
values = st.none() | st.binary(max_size=200)
records = st.builds(Record, st.integers(0, 100), st.integers(-(2**40), 2**40) | st.just(0), keys, values)


@given(st.lists(records, min_size=1, max_size=2), st.sampled_from([0, 1]), st.binary(max_size=9))
def test_it_is_the_decoders_key_or_none(found: list[Record], codec: int, behind: bytes) -> None:
    written = [record._replace(offset_delta=number) for number, record in enumerate(found)]
    data = PADDING + build_batch(written, timestamp_ms=1, codec=codec) + behind
    key = sole_key(read_header(data, len(PADDING)), data, len(PADDING))
    if key is not None:
        assert [key] == [record.key for record in decode_records(data, len(PADDING))]


@given(st.binary(max_size=63), values)
def test_it_is_found_in_what_a_coordinator_writes(key: bytes, value: bytes | None) -> None:
    data = build_batch([Record(0, 0, key, value)], timestamp_ms=1)
    assert sole_key(read_header(data), data, 0) == key


def test_a_record_that_was_not_alone_in_its_batch_is_left_to_the_decoder() -> None:
    data = build_batch([Record(1, 0, b"k", b"v")], timestamp_ms=1, last_offset_delta=2)
    assert sole_key(read_header(data), data, 0) is None


@given(st.binary(max_size=40))
def test_rubbish_in_the_place_of_a_record_is_survived(section: bytes) -> None:
    header = read_header(build_batch([Record(0, 0, b"k", b"v")], timestamp_ms=1))
    data = build_batch([], timestamp_ms=1, last_offset_delta=0) + section
    key = sole_key(header._replace(batch_length=len(data) - 12), data, 0)
    assert key is None or key in section
