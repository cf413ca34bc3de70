"""Records as objects: the same as the record codec reads, within the range asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.consumer_records import iter_records
from oncelog.client.errors import KafkaError
from oncelog.client.fetcher import FetchedChunk
from oncelog.core.codec import Codec
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import Record, build_batch, iter_headers

TP = TopicPartition("t", 4)
blobs = st.one_of(st.none(), st.binary(max_size=80))
heads = st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2)
rows = st.lists(st.tuples(blobs, blobs, heads, st.integers(-1000, 10**12)), min_size=1, max_size=80)


def chunk(raw: bytes, start: int = 0, end: int = -1) -> FetchedChunk:
    return FetchedChunk(TP, start, -1, end, memoryview(raw), list(iter_headers(raw)), -1, -1, False)


@given(rows, st.sampled_from([Codec.NONE, Codec.ZSTD]))
def test_records_are_what_was_written(data: list[Any], codec: Codec) -> None:
    records = [Record(i, t, k, v, tuple(h)) for i, (k, v, h, t) in enumerate(data)]
    raw = build_batch(records, timestamp_ms=7, base_offset=100, leader_epoch=3, codec=codec)
    assert [tuple(record) for record in iter_records(chunk(raw))] == [
        ("t", 4, 100 + i, 7 + t, 0, k, v, tuple(h), 3) for i, (k, v, h, t) in enumerate(data)
    ]


def test_only_the_range_is_returned_and_append_time_is_the_batchs() -> None:
    raw = build_batch(
        [Record(i, i, None, b"x") for i in range(10)], timestamp_ms=0, append_time=True, max_timestamp_ms=99
    )
    found = list(iter_records(chunk(raw, 3, 6)))
    assert [(record.offset, record.timestamp_ms, record.timestamp_type) for record in found] == [
        (3, 99, 1),
        (4, 99, 1),
        (5, 99, 1),
    ]
    assert found[0].topic_partition == TP


FIRST_RECORD = 61
"""Where the first record starts: its length, attributes, timestamp and offset delta, key, value, number of headers."""


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "length"), (2, "timestamp"), (4, "key length"), (6, "value length"), (12, "headers"), (13, "next length")],
)
def test_records_whose_lengths_are_damaged_are_an_error(at: int, what: str) -> None:
    raw = bytearray(build_batch([Record(i, 0, b"k", b"value") for i in range(2)], timestamp_ms=0))
    raw[FIRST_RECORD + at] = 0xFF
    with pytest.raises(KafkaError, match=r"topic t, partition 4: .* malformed record: a (record|field) claims -\d+"):
        list(iter_records(chunk(bytes(raw))))
