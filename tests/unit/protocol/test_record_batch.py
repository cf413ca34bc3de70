from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.memory_records import MemoryRecords

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.invariant import InvariantError
from oncelog.protocol import batch
from oncelog.protocol.batch import ControlMarker, CorruptBatchError, Record

NOW_MS = 1700000000000
DATA_BATCH = bytes.fromhex(
    "00000000000000030000004500000003029fc28c5c0010000000010000018bcfe568000000018bcfe5680100000000000003e80001000000"
    "000000000214000000046b310476310010000202046b320100"
)
ABORT_MARKER = bytes.fromhex(
    "000000000000000500000042000000030274a25e8c0030000000000000018bcfe568000000018bcfe5680000000000000003e80002ffffff"
    "ff000000012000000008000000000c00000000000700"
)
COMMIT_MARKER = bytes.fromhex(
    "0000000000000005000000420000000302809c88c40030000000000000018bcfe568000000018bcfe5680000000000000003e80002ffffff"
    "ff000000012000000008000000010c00000000000700"
)
TWO_RECORDS = [Record(0, 0, b"k1", b"v1"), Record(1, 1, b"k2", None)]


def records_with_headers(count: int = 50) -> list[Record]:
    return [
        Record(
            i, i * 3, None if i % 7 == 0 else b"k%d" % i, b"value " * i, (("h", b"x"), ("none", None)) if i % 2 else ()
        )
        for i in range(count)
    ]


def test_data_batch_vector_is_built_byte_for_byte() -> None:
    built = batch.build_batch(
        TWO_RECORDS,
        timestamp_ms=NOW_MS,
        base_offset=3,
        leader_epoch=3,
        producer_id=1000,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    assert built == DATA_BATCH


def test_header_of_the_data_batch_vector() -> None:
    header = batch.read_header(DATA_BATCH)
    assert header == batch.BatchHeader(
        base_offset=3,
        batch_length=69,
        leader_epoch=3,
        magic=2,
        crc=0x9FC28C5C,
        attributes=0x10,
        last_offset_delta=1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 1,
        producer_id=1000,
        producer_epoch=1,
        base_sequence=0,
        records_count=2,
    )
    assert (header.size_bytes, header.last_offset, header.next_offset, header.last_sequence) == (81, 4, 5, 1)
    assert header.is_transactional and not header.is_control and header.codec == 0
    assert not header.timestamp_type_append and not header.has_delete_horizon
    assert batch.crc_of(DATA_BATCH, 0, 81) == header.crc
    assert batch.decode_records(DATA_BATCH) == TWO_RECORDS


@pytest.mark.parametrize(("commit", "vector"), [(False, ABORT_MARKER), (True, COMMIT_MARKER)])
def test_marker_vectors(commit: bool, vector: bytes) -> None:
    built = batch.build_control_batch(
        commit,
        producer_id=1000,
        producer_epoch=2,
        coordinator_epoch=7,
        timestamp_ms=NOW_MS,
        base_offset=5,
        leader_epoch=3,
    )
    assert built == vector
    assert batch.read_header(vector).last_sequence == -1
    marker = batch.parse_control(b"padding" + vector, 7)
    assert marker == ControlMarker(int(commit), 7)
    assert (marker.is_commit, marker.is_abort) == (commit, not commit)


def test_headers_and_crcs_of_a_concatenation_seen_through_a_memoryview() -> None:
    data = memoryview(bytearray(DATA_BATCH + ABORT_MARKER + COMMIT_MARKER))
    seen = list(batch.iter_headers(data))
    assert [(position, header.base_offset) for position, header in seen] == [(0, 3), (81, 5), (159, 5)]
    assert all(batch.crc_of(data, position, header.size_bytes) == header.crc for position, header in seen)


def test_sequence_wraps_after_the_largest_int32() -> None:
    header = batch.read_header(DATA_BATCH)._replace(base_sequence=2**31 - 2, last_offset_delta=3)
    assert header.last_sequence == 1


@pytest.mark.parametrize("cut", [1, 60, 61, 80, 82, 158])
def test_truncated_concatenation_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptBatchError) as raised:
        list(batch.iter_headers((DATA_BATCH + ABORT_MARKER)[:cut]))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 48, -(2**31), 2**31 - 1])
def test_lying_batch_length_is_corrupt(length: int) -> None:
    data = bytearray(DATA_BATCH)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatchError):
        list(batch.iter_headers(data))
    with pytest.raises(CorruptBatchError):
        batch.decode_records(data)


def test_new_prefix_keeps_the_crc_valid() -> None:
    prefix = batch.pack_prefix(batch.read_header(DATA_BATCH), base_offset=99, leader_epoch=12)
    moved = prefix + DATA_BATCH[batch.PREFIX_BYTES :]
    header = batch.read_header(moved)
    assert (header.base_offset, header.leader_epoch, header.size_bytes) == (99, 12, 81)
    assert batch.crc_of(moved, 0, 81) == header.crc


def test_append_time_is_stamped_without_touching_the_records() -> None:
    stamped = batch.stamp_append_time(DATA_BATCH, NOW_MS + 50)
    header = batch.read_header(stamped)
    assert header.timestamp_type_append and header.is_transactional
    assert (header.max_timestamp, header.base_timestamp) == (NOW_MS + 50, NOW_MS)
    assert batch.crc_of(stamped, 0, len(stamped)) == header.crc
    assert stamped[batch.HEADER_BYTES :] == DATA_BATCH[batch.HEADER_BYTES :]


def test_compaction_can_keep_the_last_offset_and_empty_a_batch() -> None:
    empty = batch.build_batch([], timestamp_ms=-1, max_timestamp_ms=NOW_MS, last_offset_delta=4, base_offset=10)
    header = batch.read_header(empty)
    assert len(empty) == batch.HEADER_BYTES
    assert (header.next_offset, header.records_count, header.max_timestamp) == (15, 0, NOW_MS)
    assert batch.decode_records(empty) == []
    with pytest.raises(InvariantError):
        batch.build_batch([], timestamp_ms=0)


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_understands_our_batches(codec: Codec) -> None:
    records = records_with_headers()
    built = batch.build_batch(records, timestamp_ms=NOW_MS, base_offset=7, codec=codec, producer_id=5, producer_epoch=1)
    assert batch.decode_records(built) == records

    aio = AiokafkaBatch(bytearray(built))
    assert aio.validate_crc()
    assert [(r.offset - 7, r.timestamp - NOW_MS, r.key, r.value, tuple(r.headers)) for r in aio] == [
        (r.offset_delta, r.timestamp_delta, r.key, r.value, r.headers) for r in records
    ]


# kafka-python reads the other codecs only with libraries that are not installed here.
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_kafka_python_understands_our_batches(codec: Codec) -> None:
    records = records_with_headers()
    built = batch.build_batch(records, timestamp_ms=NOW_MS, base_offset=7, codec=codec)
    reader = MemoryRecords(built).next_batch()
    assert reader is not None and reader.validate_crc()
    assert [(r.offset - 7, r.timestamp - NOW_MS, r.key, r.value, tuple(r.headers)) for r in reader] == [
        (r.offset_delta, r.timestamp_delta, r.key, r.value, r.headers) for r in records
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_we_understand_batches_of_aiokafka(codec: Codec) -> None:
    records = records_with_headers()
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=9,
        producer_epoch=2,
        base_sequence=4,
        batch_size=1 << 20,
    )
    for r in records:
        builder.append(r.offset_delta, NOW_MS + r.timestamp_delta, r.key, r.value, list(r.headers))
    built = bytes(builder.build())
    header = batch.read_header(built)
    assert (header.codec, header.producer_id, header.base_sequence, header.records_count) == (codec, 9, 4, 50)
    assert batch.crc_of(built, 0, len(built)) == header.crc
    assert batch.decode_records(memoryview(built)) == records
    if codec is Codec.NONE:
        assert built[61:] == bytes(batch.encode_records(records))


def test_higher_control_versions_are_read_by_their_known_prefix() -> None:
    record = Record(0, 0, struct.pack(">hhi", 3, 1, 99), struct.pack(">hiq", 2, 41, 0))
    built = batch.build_batch([record], timestamp_ms=0, control=True, transactional=True)
    assert batch.parse_control(built) == (batch.CONTROL_COMMIT, 41)


def test_other_control_types_have_no_coordinator_epoch() -> None:
    record = Record(0, 0, struct.pack(">hh", 0, 2), b"")
    assert batch.parse_control(batch.build_batch([record], timestamp_ms=0, control=True)) == (2, -1)


@pytest.mark.parametrize(
    "record",
    [Record(0, 0, None, b""), Record(0, 0, b"\0\0\0", b""), Record(0, 0, b"\0\0\0\1", None)],
)
def test_broken_control_records_are_corrupt(record: Record) -> None:
    with pytest.raises(CorruptBatchError):
        batch.parse_control(batch.build_batch([record], timestamp_ms=0, control=True))


def test_data_and_empty_batches_are_no_markers() -> None:
    with pytest.raises(CorruptBatchError):
        batch.parse_control(DATA_BATCH)
    with pytest.raises(CorruptBatchError):
        batch.parse_control(batch.build_batch([], timestamp_ms=0, last_offset_delta=0, control=True))


def test_records_that_do_not_fill_their_batch_are_corrupt() -> None:
    one_less = bytearray(DATA_BATCH)
    struct.pack_into(">i", one_less, 57, 1)
    one_more = bytearray(DATA_BATCH)
    struct.pack_into(">i", one_more, 57, 3)
    for broken in (one_less, one_more):
        with pytest.raises(CorruptBatchError):
            batch.decode_records(broken)


def test_unknown_codec_has_its_own_error() -> None:
    data = bytearray(DATA_BATCH)
    data[22] |= 7
    with pytest.raises(KafkaError) as raised:
        batch.decode_records(data)
    assert raised.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
