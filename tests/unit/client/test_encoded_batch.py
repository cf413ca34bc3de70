"""Stamping: the same bytes as the batch builder's, and free of whoever wrote them before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.encoded_batch import split_batches
from oncelog.client.errors import KafkaError
from oncelog.client.record_batch_builder import RecordBatchBuilder, record_size_max
from oncelog.core.codec import Codec
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from oncelog.protocol.batch import Record, build_batch, build_control_batch, decode_records, read_header

ME = ProducerIdAndEpoch(ProducerId(77), ProducerEpoch(4))
NOBODY = ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(-1))
RECORDS = [Record(i, i * 3, b"k", b"v%d" % i, (("h", b"x"),)) for i in range(5)]

blobs = st.one_of(st.none(), st.binary(max_size=90))
headers = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=4))), max_size=2)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("transactional", [False, True])
def test_a_stamped_batch_equals_one_that_was_built_for_its_sender(codec: Codec, transactional: bool) -> None:
    built = build_batch(
        RECORDS,
        timestamp_ms=1000,
        producer_id=77,
        producer_epoch=4,
        base_sequence=12,
        transactional=transactional,
        codec=codec,
    )
    somebody_elses = build_batch(
        RECORDS, timestamp_ms=1000, producer_id=1, producer_epoch=1, base_sequence=0, codec=codec
    )
    (encoded,) = split_batches(somebody_elses)
    assert encoded.stamp(ME, 12, transactional=transactional) == built


def test_without_a_producer_id_there_is_no_sequence() -> None:
    (encoded,) = split_batches(build_batch(RECORDS, timestamp_ms=0))
    assert read_header(encoded.stamp(NOBODY, 5, transactional=False)).base_sequence == -1


def test_a_concatenation_is_split_into_its_batches() -> None:
    raw = build_batch(RECORDS, timestamp_ms=0) + build_batch(RECORDS[:2], timestamp_ms=9)
    assert [batch.records_count for batch in split_batches(raw)] == [5, 2]


def test_markers_and_compacted_batches_cannot_be_sent() -> None:
    marker = build_control_batch(True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)
    compacted = build_batch(RECORDS[:2], timestamp_ms=0, last_offset_delta=7)
    for raw in (marker, compacted):
        with pytest.raises(KafkaError, match="cannot be sent"):
            split_batches(raw)


@given(st.lists(st.tuples(st.integers(-1, 2**45), blobs, blobs, headers), min_size=1, max_size=20))
def test_records_appended_one_by_one_are_what_is_read_back(
    rows: list[tuple[int, bytes | None, bytes | None, list]],
) -> None:
    builder = RecordBatchBuilder()
    for stamp, key, value, heads in rows:
        before = builder.size_bytes
        raw_heads = [(name.encode(), content) for name, content in heads]
        builder.append(stamp, key, value, raw_heads)
        assert builder.size_bytes - before <= record_size_max(key, value, raw_heads)
    raw = builder.build(Codec.NONE).stamp(ME, 0, transactional=False)
    header = read_header(raw)
    assert (header.size_bytes, header.max_timestamp) == (builder.size_bytes, max(row[0] for row in rows))
    assert [
        (header.base_timestamp + r.timestamp_delta, r.key, r.value, list(r.headers)) for r in decode_records(raw)
    ] == rows
