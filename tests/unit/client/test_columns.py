"""Batches to columns and back: the same records as the record-by-record codec, whatever their shapes."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.client import column_decoder
from oncelog.client.columns import (
    SCHEMA,
    arrow_batches,
    decode_batches,
    encode_columns,
    first_columns,
    murmur2_column,
    partition_column,
    to_arrow,
)
from oncelog.client.consumer_records import iter_records
from oncelog.client.errors import CorruptBatch, KafkaError
from oncelog.client.fetcher import FetchedChunk
from oncelog.core.codec import Codec
from oncelog.core.hashing import murmur2, partition_for_key
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.batch import Record, build_batch, decode_records, iter_headers

TP = TopicPartition("orders", 3)
ME = ProducerIdAndEpoch(ProducerId(5), ProducerEpoch(1))

short = st.binary(max_size=6)
# Sizes around which the varint of a length grows by a byte.
long = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from([63, 64, 8191, 8192]))
blobs = st.one_of(st.none(), short, long)
header_lists = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), short)), max_size=3)
rows = st.lists(st.tuples(blobs, blobs, header_lists, st.integers(-1, 2**45)), min_size=1, max_size=40)


def batch_of(records: list[Record], *, base_offset: int = 0, **fields: Any) -> bytes:
    return build_batch(records, base_offset=base_offset, **{"timestamp_ms": 1_000, **fields})


def columns(raw: bytes, **options: Any) -> pa.RecordBatch:
    return decode_batches(TP, raw, list(iter_headers(raw)), **options)


def plain(count: int, size: int = 100, **fields: Any) -> bytes:
    return batch_of([Record(i, i, b"k%d" % i, bytes([i % 256]) * size) for i in range(count)], **fields)


@given(rows, st.sampled_from(list(Codec)))
@settings(max_examples=60)
def test_decoded_columns_hold_what_the_record_codec_wrote(data: list[Any], codec: Codec) -> None:
    base = data[0][3]
    records = [Record(i, t - base, k, v, tuple(h)) for i, (k, v, h, t) in enumerate(data)]
    raw = build_batch(records, timestamp_ms=base, base_offset=50, codec=codec)
    table = columns(raw)
    assert table.schema.equals(SCHEMA)
    assert table.column("key").to_pylist() == [k for k, _, _, _ in data]
    assert table.column("value").to_pylist() == [v for _, v, _, _ in data]
    assert [[(h["key"], h["value"]) for h in row] for row in table.column("headers").to_pylist()] == [
        h for _, _, h, _ in data
    ]
    assert table.column("offset").to_pylist() == list(range(50, 50 + len(data)))
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [t * 1000 for _, _, _, t in data]


@given(rows, st.sampled_from(list(Codec)), st.sampled_from([100, 10_000, 1_000_000]))
@settings(max_examples=60)
def test_encoded_columns_are_read_back_by_the_record_codec(data: list[Any], codec: Codec, batch_bytes: int) -> None:
    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batches = encode_columns(
        pa.array([v for _, v, _, _ in data], pa.binary()),
        key=pa.array([k for k, _, _, _ in data], pa.binary()),
        headers=pa.array([[{"key": n, "value": c} for n, c in h] for _, _, h, _ in data], header_type),
        timestamp_ms=np.array([t for _, _, _, t in data]),
        codec=codec,
        batch_bytes=batch_bytes,
    )
    read: list[tuple[Any, ...]] = []
    for encoded in batches:
        raw = encoded.stamp(ME, 9, transactional=True)
        ((_, header),) = iter_headers(raw)
        assert header.max_timestamp == max(header.base_timestamp + r.timestamp_delta for r in decode_records(raw))
        for index, record in enumerate(decode_records(raw)):
            assert record.offset_delta == index
            read.append(
                (record.key, record.value, list(record.headers), header.base_timestamp + record.timestamp_delta)
            )
    assert read == [tuple(row) for row in data]


def test_many_batches_become_one_record_batch_in_order() -> None:
    raw = b"".join(plain(300, base_offset=300 * i) for i in range(20))
    table = columns(raw)
    assert table.num_rows == 6000
    assert table.column("offset").to_pylist() == list(range(6000))


def test_records_of_changing_sizes_are_followed_one_by_one() -> None:
    draw = random.Random(3)
    values = [draw.randbytes(draw.choice([0, 1, 50, 63, 64, 65, 100, 9000])) for _ in range(3000)]
    raw = batch_of([Record(i, 0, None, v) for i, v in enumerate(values)])
    assert columns(raw).column("value").to_pylist() == values


def test_runs_of_equal_sizes_are_cut_where_the_size_changes() -> None:
    values = [b"a" * 10] * 100 + [b"b" * 11] + [b"c" * 10] * 9000
    raw = batch_of([Record(i, 0, None, v) for i, v in enumerate(values)])
    assert columns(raw).column("value").to_pylist() == values


def test_only_records_of_the_range_are_returned() -> None:
    raw = plain(10) + plain(10, base_offset=10)
    table = columns(raw, start_offset=7, end_offset=12)
    assert table.column("offset").to_pylist() == [7, 8, 9, 10, 11]


def test_offsets_with_gaps_from_compaction_are_kept() -> None:
    raw = batch_of([Record(0, 0, None, b"a"), Record(5, 0, None, b"b")], base_offset=100)
    assert columns(raw).column("offset").to_pylist() == [100, 105]


def test_compressed_and_plain_batches_come_back_in_offset_order() -> None:
    raw = plain(5, codec=Codec.LZ4) + plain(5, base_offset=5) + plain(5, base_offset=10, codec=Codec.ZSTD)
    assert columns(raw).column("offset").to_pylist() == list(range(15))


def test_append_time_is_the_time_of_the_whole_batch() -> None:
    raw = plain(3, append_time=True, max_timestamp_ms=77)
    table = columns(raw)
    assert table.column("timestampType").to_pylist() == [1, 1, 1]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [77_000] * 3


@pytest.mark.parametrize("sign", [1, -1])
def test_times_that_microseconds_cannot_hold_are_the_last_and_the_first_that_they_can(sign: int) -> None:
    """A producer that gives nanoseconds for milliseconds, for example."""
    nanoseconds = sign * 1_700_000_000_000_000_000
    raw = batch_of([Record(0, 0, None, b"a")], timestamp_ms=nanoseconds)
    raw += batch_of([Record(0, 0, None, b"b")], timestamp_ms=5, base_offset=1)
    outermost = sign * ((2**63 - 1) // 1000 * 1000)
    assert columns(raw).column("timestamp").cast(pa.int64()).to_pylist() == [outermost, 5000]
    chunk = FetchedChunk(TP, 0, 2, -1, memoryview(raw), list(iter_headers(raw)), 2, 2, False)
    row = next(iter_records(chunk))
    assert column_decoder._row(row, headers=False)["timestamp"] == outermost


def test_empty_batches_left_by_compaction_have_no_rows() -> None:
    raw = build_batch([], timestamp_ms=-1, last_offset_delta=4, max_timestamp_ms=-1)
    assert columns(raw).num_rows == 0
    assert to_arrow([]).num_rows == 0


def test_headers_can_be_left_out() -> None:
    raw = batch_of([Record(0, 0, None, b"v", (("h", b"x"),))])
    assert columns(raw, headers=False).column("headers").to_pylist() == [None]


def test_several_chunks_become_one_record_batch() -> None:
    raws = [plain(3), plain(3, base_offset=3)]
    chunks = [FetchedChunk(TP, 0, 6, -1, memoryview(raw), list(iter_headers(raw)), 6, 6, False) for raw in raws]
    assert to_arrow(chunks).column("offset").to_pylist() == list(range(6))


def chunk_of(raw: bytes) -> FetchedChunk:
    headers = list(iter_headers(raw))
    end = headers[-1][1].next_offset
    return FetchedChunk(TP, 0, end, -1, memoryview(raw), headers, end, end, False)


def test_what_was_compressed_well_comes_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_decoder, "UNPACKED_BYTES", 50_000)
    codecs = [Codec.ZSTD, Codec.NONE, Codec.GZIP, Codec.LZ4]
    raw = b"".join(plain(100, base_offset=100 * i, codec=codecs[i % 4]) for i in range(40))
    batches = list(arrow_batches(chunk_of(raw)))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(4000))
    assert max(batch.num_rows for batch in batches) <= 700
    assert to_arrow([chunk_of(raw)]).column("offset").to_pylist() == list(range(4000))


def of_zeros(size_bytes: int, offset: int) -> pa.RecordBatch:
    """One record, in memory that nobody has touched."""
    row = {name: pa.nulls(1, SCHEMA.field(name).type) for name in SCHEMA.names}
    place = pa.py_buffer(np.array([0, size_bytes], np.int32))
    row["value"] = pa.Array.from_buffers(pa.binary(), 1, [None, place, pa.py_buffer(np.zeros(size_bytes, np.uint8))])
    row["offset"] = pa.array([offset])
    return pa.RecordBatch.from_arrays(list(row.values()), schema=SCHEMA)


def test_records_that_do_not_fit_into_one_record_batch_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [of_zeros(1_100_000_000, offset) for offset in range(2)]
    monkeypatch.setattr(column_decoder, "arrow_batches", lambda *_, **__: iter(parts))
    chunk = chunk_of(plain(2))
    with pytest.raises(ValueError, match="do not fit into one Arrow RecordBatch"):
        to_arrow([chunk])
    columns, unread, error = first_columns([chunk, chunk._replace(partition=TopicPartition("orders", 4))])
    assert (columns.column("offset").to_pylist(), error) == ([0], None)
    assert unread == {TP: 1, TopicPartition("orders", 4): 0}


def test_records_before_one_that_cannot_be_read_are_read() -> None:
    raw = bytearray(plain(3) + plain(3, base_offset=3) + plain(3, base_offset=6))
    _, second, _ = iter_headers(bytes(raw))
    struct.pack_into(">i", raw, second[0] + 57, 4)
    read: list[int] = []
    with pytest.raises(CorruptBatch) as caught:
        for batch in arrow_batches(chunk_of(bytes(raw))):
            read += batch.column("offset").to_pylist()
    assert read == list(range(caught.value.offset))
    assert 3 <= caught.value.offset <= 6
    columns, unread, error = first_columns([chunk_of(bytes(raw))])
    assert (columns.column("offset").to_pylist(), unread, str(error)) == (read, {TP: len(read)}, str(caught.value))


@pytest.mark.parametrize("at", range(61, 90))
def test_damaged_records_are_read_as_the_reader_of_single_records_reads_them(at: int) -> None:
    damaged = bytearray(plain(3, size=5))
    damaged[at] ^= 0xFF
    try:
        expected = [(record.key, record.value) for record in decode_records(bytes(damaged))]
    except KafkaError:
        with pytest.raises(KafkaError):
            columns(bytes(damaged))
        return
    table = columns(bytes(damaged))
    assert list(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)) == expected


def test_a_record_count_that_does_not_fit_is_corrupt() -> None:
    raw = bytearray(plain(3))
    struct.pack_into(">i", raw, 57, 2)
    with pytest.raises(KafkaError):
        columns(bytes(raw))


def test_a_batch_is_split_by_size_and_a_large_row_gets_its_own() -> None:
    values = [b"x" * 100] * 10 + [b"y" * 5000] + [b"z"]
    batches = encode_columns(pa.array(values, pa.binary()), timestamp_ms=5, batch_bytes=1000)
    assert [batch.records_count for batch in batches] == [7, 3, 1, 1]


def test_slices_and_text_and_chunked_columns_are_accepted() -> None:
    column = pa.chunked_array([["a", "b"], ["c", None]])
    (encoded,) = encode_columns(column.slice(1), key=pa.array(["p", "q", "r"], pa.large_string()), timestamp_ms=0)
    records = decode_records(encoded.stamp(ME, 0, transactional=False))
    assert [(r.key, r.value) for r in records] == [(b"p", b"b"), (b"q", b"c"), (b"r", None)]


def test_arrow_timestamps_of_any_unit_are_taken() -> None:
    stamps = pa.array([1_000_000, 2_000_000], pa.timestamp("us", tz="UTC"))
    (encoded,) = encode_columns(pa.array([b"a", b"b"]), timestamp_ms=stamps)
    assert (encoded.base_timestamp, encoded.max_timestamp) == (1000, 2000)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="key column has 1 rows"):
        encode_columns(pa.array([b"a", b"b"]), key=pa.array([b"k"]), timestamp_ms=0)


def test_no_rows_give_no_batches() -> None:
    assert encode_columns(pa.array([], pa.binary()), timestamp_ms=0) == []


@given(st.lists(st.binary(max_size=40), min_size=1))
@settings(deadline=None)
def test_the_hash_of_a_column_is_the_hash_of_each_key(keys: list[bytes]) -> None:
    assert murmur2_column(pa.array(keys, pa.binary())).tolist() == [murmur2(key) for key in keys]


def test_partitions_of_a_sliced_column_with_nulls() -> None:
    keys: list[bytes | None] = [b"skipped", b"k1", None, b"", b"long key of more than a word"]
    column = pa.array(keys, pa.binary()).slice(1)
    assert partition_column(column, 7).tolist() == [-1 if k is None else partition_for_key(k, 7) for k in keys[1:]]


_WITHOUT = """
import sys
sys.modules["{package}"] = None
from oncelog.client import Admin, Consumer, Producer

config = {{"bootstrap.servers": "{servers}"}}
with Producer(config) as producer, Consumer(config) as consumer, Admin(config) as admin:
    for call in (lambda: producer.send_columns("never-asked-for", ["x"]), consumer.poll_columns):
        try:
            call()
        except ModuleNotFoundError as error:
            print(error)
    assert "never-asked-for" not in admin.list_topics()
try:
    import oncelog.client.columns
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_columns_without_their_extra_name_it_and_create_no_topic(servers: str, package: str) -> None:
    program = _WITHOUT.format(package=package, servers=servers)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["columns need numpy and pyarrow: pip install 'oncelog[client]'"] * 3
