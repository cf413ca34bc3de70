"""What an answer to Fetch holds for a reader, and how more is asked for."""

from __future__ import annotations

from oncelog.client.fetch import CHUNK_BYTES_MAX, FetchSettings
from oncelog.client.fetcher import NO_END, chunk_of
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.fetch import PartitionData

TP = TopicPartition("t", 0)
SETTINGS = FetchSettings(max_bytes=1_000, partition_max_bytes=600)


def batch(offset: int) -> bytes:
    return build_batch([Record(i, 0, None, b"v") for i in range(2)], timestamp_ms=0, base_offset=offset)


def test_a_batch_that_was_cut_off_is_left_for_the_next_answer() -> None:
    whole = batch(10) + batch(12)
    answer = PartitionData(records=whole + batch(14)[:-1], high_watermark=16, last_stable_offset=16)
    chunk = chunk_of(TP, 11, NO_END, answer, SETTINGS, True)
    assert chunk is not None
    assert (chunk.start_offset, chunk.next_offset, bytes(chunk.data)) == (11, 14, whole)
    assert [header.base_offset for _, header in chunk.batches] == [10, 12]


def test_batches_behind_the_end_are_left_out() -> None:
    chunk = chunk_of(TP, 10, 12, PartitionData(records=batch(10) + batch(12)), SETTINGS, True)
    assert chunk is not None
    assert [header.base_offset for _, header in chunk.batches] == [10]


def test_an_answer_without_a_whole_batch_is_no_chunk_and_an_empty_one_is() -> None:
    assert chunk_of(TP, 10, NO_END, PartitionData(records=batch(10)[:-1]), SETTINGS, True) is None
    empty = chunk_of(TP, 10, NO_END, PartitionData(records=b""), SETTINGS, True)
    assert empty is not None
    assert (empty.next_offset, empty.batches) == (10, [])


def test_more_is_asked_for_up_to_a_bound_and_never_less() -> None:
    grown = SETTINGS.grown()
    assert (grown.partition_max_bytes, grown.max_bytes) == (1_200, 1_200)
    for _ in range(40):
        grown = grown.grown()
    assert grown.partition_max_bytes == CHUNK_BYTES_MAX
    large = FetchSettings(max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    assert large.grown() == large
