"""What committed offsets say about a batch that is about to run."""

from __future__ import annotations

import pytest

from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.spark.offsets import Offsets
from oncelog.spark.progress import MicroBatch
from oncelog.spark.resume import CannotResume, NewCheckpoint, Note, Verdict, judge, offsets_to_commit

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
STAND_IN = TopicPartition("out", 0)


def batch(number: int, end: Offsets, start: Offsets | None = None, query: str = "q") -> MicroBatch:
    return MicroBatch(query, number, "file:/checkpoint", None, start, end)


def committed(query: str, number: int, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {p: OffsetAndMetadata(offset, Note(query, number).to_text()) for p, offset in offsets.items()}


def verdict(
    one: MicroBatch,
    found: dict[TopicPartition, OffsetAndMetadata],
    policy: NewCheckpoint = NewCheckpoint.REFUSE,
) -> Verdict:
    return judge(one, found, stand_in=STAND_IN, group="g", on_new_checkpoint=policy)


def test_the_next_batch_is_written() -> None:
    assert verdict(batch(4, {P0: 20}, {P0: 10}), committed("q", 3, {P0: 10})) is Verdict.WRITE


def test_a_batch_that_was_committed_is_skipped() -> None:
    assert verdict(batch(3, {P0: 10}, {P0: 0}), committed("q", 3, {P0: 10})) is Verdict.SKIP


def test_a_batch_without_new_input_is_still_written_once() -> None:
    found = committed("q", 3, {P0: 10})
    assert verdict(batch(4, {P0: 10}, {P0: 10}), found) is Verdict.WRITE
    assert verdict(batch(4, {P0: 10}, {P0: 10}), committed("q", 4, {P0: 10})) is Verdict.SKIP


def test_an_older_checkpoint_is_skipped_as_far_as_it_lies_behind() -> None:
    assert verdict(batch(2, {P0: 8}, {P0: 4}), committed("q", 3, {P0: 10})) is Verdict.SKIP


def test_an_older_checkpoint_that_reaches_past_what_is_committed_is_refused() -> None:
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(3, {P0: 12}, {P0: 8}), committed("q", 3, {P0: 10}))


def test_a_new_group_is_written_from_anywhere() -> None:
    assert verdict(batch(0, {P0: 12}, {P0: 8}), {}) is Verdict.WRITE


def test_a_new_checkpoint_that_continues_where_the_group_stands_is_written() -> None:
    found = committed("old", 7, {P0: 10, P1: 5})
    assert verdict(batch(0, {P0: 12, P1: 9}, {P0: 10, P1: 5}), found) is Verdict.WRITE


@pytest.mark.parametrize("start", [{P0: 0, P1: 5}, {P0: 11, P1: 5}, None])
def test_a_new_checkpoint_that_would_repeat_or_lose_input_is_refused(start: Offsets | None) -> None:
    with pytest.raises(CannotResume, match=r'"startingOffsets", "committed".*on_new_checkpoint="reprocess"'):
        verdict(batch(0, {P0: 12, P1: 9}, start), committed("old", 7, {P0: 10, P1: 5}))


def test_a_new_checkpoint_may_reprocess_on_purpose() -> None:
    found = committed("old", 7, {P0: 10})
    assert verdict(batch(0, {P0: 12}, {P0: 0}), found, NewCheckpoint.REPROCESS) is Verdict.WRITE


def test_a_partition_that_is_new_to_the_group_does_not_matter() -> None:
    assert verdict(batch(0, {P0: 12, P1: 9}, {P0: 10, P1: 3}), committed("old", 7, {P0: 10})) is Verdict.WRITE


def test_a_returning_query_whose_successor_went_on_is_refused() -> None:
    with pytest.raises(CannotResume):
        verdict(batch(11, {P0: 60}, {P0: 50}), committed("successor", 2, {P0: 70}))


def test_a_source_without_kafka_offsets_goes_by_the_batch_id() -> None:
    found = committed("q", 3, {STAND_IN: 3})
    assert verdict(batch(3, {}), found) is Verdict.SKIP
    assert verdict(batch(4, {}), found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(2, {}), found)
    with pytest.raises(CannotResume, match="no Kafka offsets to compare"):
        verdict(batch(0, {}, query="new"), found)


def test_what_is_committed_carries_the_note() -> None:
    real = offsets_to_commit(batch(5, {P0: 12}), STAND_IN)
    assert real == committed("q", 5, {P0: 12})
    assert offsets_to_commit(batch(5, {}), STAND_IN) == committed("q", 5, {STAND_IN: 5})
    with pytest.raises(CannotResume, match="give the option topic"):
        offsets_to_commit(batch(5, {}), None)


def test_a_note_of_somebody_else_is_no_note() -> None:
    assert Note.from_text("") is None
    assert Note.from_text('{"queryId": "a"}') is None
    assert Note.from_text("NONE") is None
