"""What committed offsets say about a batch that is about to run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.core.sink_note import METADATA_BYTES_MAX, WRITER_CHARACTERS_MAX, Note
from oncelog.spark.first_commit import mark_of
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.offsets import Offsets, StreamOffset, merge, parse_source_offset, uneven
from oncelog.spark.planning import OffsetRange, bounds_text
from oncelog.spark.resume import (
    CannotResume,
    NewCheckpoint,
    Verdict,
    changed_offsets,
    check_tables,
    former_id,
    judge,
    offsets_to_commit,
    writers_before,
)

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
BATCH_ID_PARTITION = TopicPartition("out", 0)


def batch(
    number: int, end: Offsets, start: Offsets | None = None, query: str = "q", plan: int = 0, **more: Any
) -> MicroBatch:
    """Planned at another time than any other number, unless a plan is given."""
    given = {"only_kafka": bool(end), "planned_ms": plan or number, **more}
    return MicroBatch(query, number, "file:/checkpoint", start, end, **given)


def committed(
    query: str,
    number: int,
    offsets: Offsets,
    plan: int | None = 0,
    ends: tuple[int, ...] = (),
    writer: str | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """As `offsets_to_commit` has it. `plan=None` is the note of an earlier version."""
    note = Note(query, number, number if plan == 0 else plan, ends, writer=writer)
    return {p: OffsetAndMetadata(offset, note.to_text()) for p, offset in offsets.items()}


def by_consumer(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {p: OffsetAndMetadata(offset, "") for p, offset in offsets.items()}


def verdict(
    one: MicroBatch,
    found: dict[TopicPartition, OffsetAndMetadata],
    policy: NewCheckpoint = NewCheckpoint.REFUSE,
    *,
    stateful: bool = False,
    has_committed: bool = False,
    batch_id_partition: TopicPartition | None = BATCH_ID_PARTITION,
    marks: tuple[str, ...] = (),
    tried_on: dict[TopicPartition, OffsetAndMetadata] | None = None,
) -> Verdict:
    return judge(
        one,
        found,
        batch_id_partition=batch_id_partition,
        group="g",
        on_new_checkpoint=policy,
        keeps_state=lambda: stateful,
        marks_left=lambda: marks,
        has_committed=has_committed,
        tried_on=tried_on,
    )


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


def test_an_older_checkpoint_that_cuts_smaller_batches_is_followed_by_offsets_not_by_numbers() -> None:
    """Its batches get numbers beyond the committed one long before they get to new input."""
    found = committed("q", 2, {P0: 60})
    assert verdict(batch(3, {P0: 35}, {P0: 30}), found) is Verdict.SKIP
    assert verdict(batch(8, {P0: 60}, {P0: 55}), found) is Verdict.SKIP
    assert verdict(batch(9, {P0: 65}, {P0: 60}), found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="starts orders-0 at 58, the group stands at 60"):
        verdict(batch(9, {P0: 63}, {P0: 58}), found)
    with pytest.raises(CannotResume, match="starts orders-0 at 61, the group stands at 60"):
        verdict(batch(9, {P0: 63}, {P0: 61}), found)


def test_a_partition_that_was_cut_goes_on_below_the_group() -> None:
    """The source has noted that it was set back. A batch of an older checkpoint is told by its number."""
    found = committed("q", 3, {P0: 100, P1: 5})
    cut: dict[str, Any] = {"appeared": frozenset({P0}), "set_back": frozenset({P0})}
    assert verdict(batch(4, {P0: 95, P1: 5}, {P0: 90, P1: 5}, **cut), found) is Verdict.WRITE
    assert verdict(batch(4, {P0: 95, P1: 5}, {P0: 90, P1: 5}, **cut), found, stateful=True) is Verdict.WRITE
    # What it has now may be other records than those up to 100 that were read.
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(3, {P0: 95, P1: 5}, {P0: 90, P1: 5}, plan=9, **cut), found)
    with pytest.raises(CannotResume, match="starts orders-1 at 4"):
        verdict(batch(4, {P0: 95, P1: 6}, {P0: 90, P1: 4}, **cut), found)
    assert verdict(batch(5, {P0: 99, P1: 5}, {P0: 95, P1: 5}), committed("q", 4, {P0: 95, P1: 5})) is Verdict.WRITE
    # The query has a position there, unlike in one that appeared.
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(batch(4, {P0: 95, P1: 5}, {P0: 90, P1: 5}, **cut), {**found, **committed("other", 0, {P0: 100})})


def test_every_partition_must_continue_where_the_group_stands() -> None:
    found = committed("q", 2, {P0: 60, P1: 60})
    assert verdict(batch(3, {P0: 70, P1: 70}, {P0: 60, P1: 60}), found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="starts orders-1 at 50"):
        verdict(batch(3, {P0: 70, P1: 60}, {P0: 60, P1: 50}), found)
    # One that the stream took up again, to read it from its beginning.
    with pytest.raises(CannotResume, match="starts orders-1 from its beginning"):
        verdict(batch(3, {P0: 70, P1: 70}, {P0: 60}), found)


def test_a_partition_that_appeared_is_written() -> None:
    assert verdict(batch(3, {P0: 70, P1: 9}, {P0: 60}), committed("q", 2, {P0: 60})) is Verdict.WRITE


def test_a_query_with_state_does_not_skip_batches_that_were_cut_otherwise() -> None:
    """What it would have given depends on the cut: windows close between batches."""
    found = committed("q", 3, {P0: 10})
    for one in (batch(2, {P0: 8}, {P0: 4}), batch(3, {P0: 8}, {P0: 4}, plan=99), batch(4, {P0: 8}, {P0: 4})):
        assert verdict(one, found) is Verdict.SKIP
        with pytest.raises(CannotResume, match="older copy"):
            verdict(one, found, stateful=True)
    assert verdict(batch(3, {P0: 10}, {P0: 4}), found, stateful=True) is Verdict.SKIP


def test_a_new_group_is_written_from_anywhere() -> None:
    assert verdict(batch(0, {P0: 12}, {P0: 8}), {}) is Verdict.WRITE


def test_a_new_checkpoint_that_continues_where_the_group_stands_is_written() -> None:
    found = committed("old", 7, {P0: 10, P1: 5})
    assert verdict(batch(0, {P0: 12, P1: 9}, {P0: 10, P1: 5}), found) is Verdict.WRITE


@pytest.mark.parametrize("start", [{P0: 0, P1: 5}, {P0: 11, P1: 5}, {P0: 10}, {}, None])
def test_a_new_checkpoint_that_would_repeat_or_lose_input_is_refused(start: Offsets | None) -> None:
    with pytest.raises(CannotResume, match=r'"startingOffsets", "committed".*on_new_checkpoint="reprocess"'):
        verdict(batch(0, {P0: 12, P1: 9}, start), committed("old", 7, {P0: 10, P1: 5}))


def test_a_refused_checkpoint_is_told_the_offsets_for_sparks_own_source() -> None:
    offsets = r'own kafka source has no such value: give it startingOffsets as JSON, \{"orders": \{"0": 10, "1": 5\}\}'
    with pytest.raises(CannotResume, match=offsets):
        verdict(batch(0, {P0: 12, P1: 9}, {P0: 0, P1: 0}), committed("old", 7, {P0: 10, P1: 5}))
    with pytest.raises(CannotResume, match=offsets):
        verdict(batch(7, {P0: 12, P1: 9}, {P0: 0, P1: 0}), committed("q", 7, {P0: 10, P1: 5}))


def test_a_refused_checkpoint_is_to_be_deleted_because_it_keeps_where_it_began() -> None:
    with pytest.raises(CannotResume, match=r"delete this one, .* and read with .*committed"):
        verdict(batch(0, {P0: 12}, {P0: 0}), committed("old", 7, {P0: 10}))
    with pytest.raises(CannotResume, match="delete this one, give each source its startingOffsets"):
        verdict(batch(0, {P0: 12}, {P0: 10}), committed("old", 7, {P0: 10}, ends=(10, 11)))


def test_a_new_checkpoint_may_reprocess_on_purpose() -> None:
    found = committed("old", 7, {P0: 10})
    assert verdict(batch(0, {P0: 12}, {P0: 0}), found, NewCheckpoint.REPROCESS) is Verdict.WRITE


def test_a_partition_that_is_new_to_the_group_does_not_matter() -> None:
    assert verdict(batch(0, {P0: 12, P1: 9}, {P0: 10, P1: 3}), committed("old", 7, {P0: 10})) is Verdict.WRITE


def test_a_returning_query_whose_successor_went_on_is_refused() -> None:
    with pytest.raises(CannotResume):
        verdict(batch(11, {P0: 60}, {P0: 50}), committed("successor", 2, {P0: 70}))


def test_a_batch_of_an_earlier_run_that_the_group_does_not_know_is_refused() -> None:
    """It may have been written for a group that was changed, deleted, or has expired."""
    replayed = batch(4, {P0: 12}, {P0: 8}, planned_before=True)
    with pytest.raises(CannotResume, match=r"group_id was changed, or the group was deleted or has expired"):
        verdict(replayed, {})
    with pytest.raises(CannotResume, match="group_id was changed"):
        verdict(batch(4, {}, planned_before=True), {})
    assert verdict(replayed, {}, NewCheckpoint.REPROCESS) is Verdict.WRITE
    # Nothing was committed for this one, or the group would know an earlier batch.
    assert verdict(replayed, committed("q", 3, {P0: 8})) is Verdict.WRITE


def test_the_first_batch_is_run_again_after_a_crash_although_the_group_knows_nothing() -> None:
    assert verdict(batch(0, {P0: 12}, {P0: 0}, planned_before=True), {}) is Verdict.WRITE
    assert verdict(batch(0, {}, planned_before=True), {}) is Verdict.WRITE


def test_batches_before_the_first_topic_are_noted_only_by_a_sink_that_has_a_topic() -> None:
    replayed = batch(4, {P0: 12}, {P0: 0}, planned_before=True, is_first_to_read=True)
    assert verdict(replayed, {}, batch_id_partition=None) is Verdict.WRITE
    with pytest.raises(CannotResume, match="group_id was changed"):
        verdict(replayed, {})
    with pytest.raises(CannotResume, match="group_id was changed"):
        verdict(batch(4, {P0: 12}, {P0: 0}, planned_before=True), {}, batch_id_partition=None)


def test_an_idle_query_whose_group_expired_goes_on_with_a_new_batch() -> None:
    assert verdict(batch(4, {P0: 12}, {P0: 8}), {}) is Verdict.WRITE


def test_a_source_without_kafka_offsets_goes_by_the_batch_id_and_its_plan() -> None:
    found = committed("q", 3, {BATCH_ID_PARTITION: 3})
    assert verdict(batch(3, {}), found) is Verdict.SKIP
    assert verdict(batch(4, {}), found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(3, {}, plan=99), found)
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(2, {}), found)
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(5, {}), found)
    with pytest.raises(CannotResume, match="no Kafka offsets to compare"):
        verdict(batch(0, {}, query="new"), found)
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(batch(4, {}, query="new"), found)
    set_by_consumer = by_consumer({BATCH_ID_PARTITION: 7})
    with pytest.raises(CannotResume, match="has 7 in out-0, where the batch ids of the query are kept"):
        verdict(batch(4, {}), set_by_consumer)
    assert verdict(batch(4, {}), set_by_consumer, NewCheckpoint.REPROCESS) is Verdict.WRITE


def test_mixed_sources_are_not_judged_by_kafkas_offsets_alone() -> None:
    found = committed("q", 3, {P0: 10})
    assert verdict(batch(3, {P0: 10}, {P0: 8}, only_kafka=False), found) is Verdict.SKIP
    assert verdict(batch(4, {P0: 12}, {P0: 10}, only_kafka=False), found) is Verdict.WRITE
    for number, plan in ((2, 0), (3, 99), (4, 0)):
        with pytest.raises(CannotResume, match="older copy"):
            verdict(batch(number, {P0: 10}, {P0: 8}, plan=plan, only_kafka=False), found)


def test_notes_of_earlier_versions_are_understood() -> None:
    found = committed("q", 3, {P0: 10}, plan=None)
    assert '"plan"' not in found[P0].metadata
    assert verdict(batch(3, {P0: 10}, {P0: 8}), found, stateful=True) is Verdict.SKIP
    assert verdict(batch(4, {P0: 12}, {P0: 10}), found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="older copy"):
        verdict(batch(3, {P0: 12}, {P0: 8}), found)
    batch_id_partition = committed("q", 3, {BATCH_ID_PARTITION: 3}, plan=None)
    assert verdict(batch(3, {}), batch_id_partition) is Verdict.SKIP
    assert verdict(batch(4, {}), batch_id_partition) is Verdict.WRITE


def test_a_partition_read_at_two_positions_cannot_be_continued_from_the_group() -> None:
    found = committed("old", 7, {P0: 5}, ends=(5, 20))
    with pytest.raises(CannotResume, match="sources of one query had come to 5 and 20 in orders-0"):
        verdict(batch(0, {P0: 20}, {P0: 5}), found)
    assert verdict(batch(0, {P0: 20}, {P0: 5}), found, NewCheckpoint.REPROCESS) is Verdict.WRITE
    with pytest.raises(CannotResume, match="sources of one query start orders-0 at 5 and 9"):
        verdict(batch(0, {P0: 20}, {P0: 5}, uneven_start={P0: (5, 9)}), committed("old", 7, {P0: 5}))


def test_a_partition_read_at_two_positions_goes_by_numbers_and_plans() -> None:
    found = committed("q", 3, {P0: 5}, ends=(5, 20))
    uneven_both = {"uneven_start": {P0: (5, 20)}, "uneven_end": {P0: (10, 20)}}
    assert verdict(batch(4, {P0: 10}, {P0: 5}, **uneven_both), found) is Verdict.WRITE
    for number in (3, 5):
        with pytest.raises(CannotResume, match="older copy"):
            verdict(batch(number, {P0: 5}, {P0: 0}, plan=99, uneven_end={P0: (5, 30)}), found)
    # Here the second source would read from 5 to 20 again, and there the second one never would.
    with pytest.raises(CannotResume, match="start orders-0 at 5, they had come to 5 and 20"):
        verdict(batch(4, {P0: 30}, {P0: 5}), found)
    with pytest.raises(CannotResume, match="start orders-0 at 5 and 20, they had come to 5"):
        verdict(batch(4, {P0: 30}, {P0: 5}, uneven_start={P0: (5, 20)}), committed("q", 3, {P0: 5}))
    earlier_version = committed("q", 3, {P0: 5}, plan=None)
    assert verdict(batch(4, {P0: 10}, {P0: 5}, uneven_start={P0: (5, 20)}), earlier_version) is Verdict.WRITE


def test_offsets_of_several_sources() -> None:
    parts: list[Offsets] = [{P0: 5, P1: 3}, {P0: 20, P1: 3}]
    assert merge(parts) == {P0: 5, P1: 3}
    assert uneven(parts) == {P0: (5, 20)}
    assert parse_source_offset("{}") == StreamOffset({})
    assert parse_source_offset('{"logOffset": 3}') is None


def test_what_is_committed_carries_the_note() -> None:
    real = offsets_to_commit(batch(5, {P0: 12}), BATCH_ID_PARTITION)
    assert real == committed("q", 5, {P0: 12})
    assert offsets_to_commit(batch(5, {P0: 12}), None, "copy") == committed("q", 5, {P0: 12}, writer="copy")
    assert offsets_to_commit(batch(5, {}), BATCH_ID_PARTITION) == committed("q", 5, {BATCH_ID_PARTITION: 5})
    twice = offsets_to_commit(batch(5, {P0: 12, P1: 9}, uneven_end={P0: (12, 30)}), BATCH_ID_PARTITION)
    assert twice == {**committed("q", 5, {P0: 12}, ends=(12, 30)), **committed("q", 5, {P1: 9})}
    with pytest.raises(CannotResume, match="give the option topic"):
        offsets_to_commit(batch(5, {}), None)


def test_a_note_comes_back_as_it_was_and_is_small() -> None:
    largest = Note(
        "7c1f9a52-8f6b-4c7e-9d55-0a1b2c3d4e5f", 2**63, 2**63, (2**63,) * 20, writer="w" * 200, tables="t" * 2000
    )
    assert Note.from_text(Note("q", 1, writer="w" * 9000).to_text()) == Note("q", 1, writer="w" * 200)
    for note in (Note("q", 1), Note("q", 1, 2), Note("q", 1, 2, (3, 4)), Note("", 0, call="c"), largest):
        assert Note.from_text(note.to_text()) == note
        assert len(note.to_text()) < METADATA_BYTES_MAX


def test_a_note_of_somebody_else_is_no_note() -> None:
    assert Note.from_text("") is None
    assert Note.from_text('{"queryId": "a"}') is None
    assert Note.from_text("[1]") is None
    assert Note.from_text("NONE") is None


def test_a_position_that_another_query_has_written_over_is_refused_with_both_names() -> None:
    over = {**committed("q", 3, {P0: 10}), **committed("other", 0, {P1: 10}, writer="copy-2")}
    with pytest.raises(
        CannotResume, match=r"two queries use group g: this is query q .*query other .*copy-2"
    ) as raised:
        verdict(batch(4, {P0: 20, P1: 20}, {P0: 10, P1: 10}), over)
    assert "at offset 10" in str(raised.value)
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(batch(3, {P0: 10, P1: 10}, {P0: 5, P1: 5}), over)


def test_a_query_whose_positions_were_all_written_over_is_refused_unless_it_has_just_begun() -> None:
    found = committed("other", 9, {P0: 10})
    assert verdict(batch(0, {P0: 20}, {P0: 10}, appeared=frozenset({P0})), found) is Verdict.WRITE
    later = batch(4, {P0: 20}, {P0: 10})
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(later, found)
    # Started again on purpose, it may; but not once it has committed, when only a living query can have come between.
    assert verdict(later, found, NewCheckpoint.REPROCESS) is Verdict.WRITE
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(later, found, NewCheckpoint.REPROCESS, has_committed=True)
    with pytest.raises(CannotResume, match="two queries use group g"):
        verdict(
            batch(4, {}), committed("other", 3, {BATCH_ID_PARTITION: 3}), NewCheckpoint.REPROCESS, has_committed=True
        )


def test_a_first_batch_that_may_have_been_committed_is_refused_when_its_note_is_gone() -> None:
    first = batch(0, {P0: 20}, {P0: 10}, appeared=frozenset({P0}))
    before = committed("old", 8, {P0: 10})
    marks = (mark_of("g", before, [P0]),)
    assert verdict(first, before, marks=marks) is Verdict.WRITE
    # The same position, but somebody has committed it since, perhaps over the note of this batch.
    over = committed("other", 9, {P0: 10}, writer="copy-2")
    with pytest.raises(CannotResume, match=r"not as it was then: query other \(transactional id copy-2\)"):
        verdict(first, over, marks=marks)
    for gone in ({}, {P0: OffsetAndMetadata(10, "")}):
        with pytest.raises(CannotResume, match="not as it was then: its offsets were changed or deleted"):
            verdict(first, gone, marks=marks)
    # Elsewhere than it begins: the checkpoint is not a new one all the same.
    with pytest.raises(CannotResume, match="not as it was then"):
        verdict(first, by_consumer({P0: 15}), marks=marks)
    assert verdict(first, over, NewCheckpoint.REPROCESS, marks=marks) is Verdict.WRITE
    # Offsets of topics that it does not read are none of its business.
    assert verdict(first, {**before, **committed("other", 3, {P1: 5})}, marks=marks) is Verdict.WRITE
    # Another group than that it was about to commit for.
    with pytest.raises(CannotResume, match="group_id was changed"):
        verdict(first, {}, marks=(mark_of("before", {}, [P0]),))


def test_so_is_a_later_batch_if_those_before_it_had_nothing_to_read() -> None:
    """No topic matched the pattern yet, and the rows name their topics, so that nothing was noted for them."""
    first = batch(2, {P0: 20}, {P0: 10}, appeared=frozenset({P0}), is_first_to_read=True, planned_before=True)
    before, over = committed("old", 8, {P0: 10}), committed("other", 9, {P0: 10})
    for group in ({}, before):
        marks = (mark_of("g", group, [P0]),)
        assert verdict(first, group, batch_id_partition=None, marks=marks) is Verdict.WRITE
        with pytest.raises(CannotResume, match="not as it was then: query other"):
            verdict(first, over, batch_id_partition=None, marks=marks)
    with pytest.raises(CannotResume, match="group_id was changed"):
        verdict(first, {}, batch_id_partition=None, marks=(mark_of("another", {}, [P0]),))


def test_who_has_written_what_a_batch_writes_over() -> None:
    found = {**committed("old", 7, {P0: 10}, writer="old"), **committed("q", 3, {P1: 10}, writer="former")}
    one = batch(0, {P0: 20, P1: 20})
    assert writers_before(one, found, None, "new") == {"old"}
    assert writers_before(one, found, None, "old") == set()
    assert writers_before(batch(0, {P1: 20}), found, None, "new") == set()
    assert writers_before(one, committed("old", 7, {P0: 10}), None, "new") == set()
    assert writers_before(one, {P0: OffsetAndMetadata(10, "")}, None, "new") == set()
    ids = committed("old", 7, {BATCH_ID_PARTITION: 7}, writer="old")
    assert writers_before(batch(0, {}), ids, BATCH_ID_PARTITION, "new") == {"old"}
    cut = committed("old", 7, {P0: 10}, writer="x" * WRITER_CHARACTERS_MAX)
    assert writers_before(one, cut, None, "new") == set()


def test_the_transactional_id_that_a_query_had_before() -> None:
    one = batch(4, {P0: 20, P1: 20})
    renamed = {**committed("q", 3, {P0: 10}, writer="new"), **committed("q", 2, {P1: 10}, writer="old")}
    assert former_id(one, committed("q", 3, {P0: 10}, writer="old"), "new") == "old"
    assert former_id(one, renamed, "new") is None
    assert former_id(one, committed("q", 3, {P0: 10}), "new") is None
    assert former_id(one, committed("other", 3, {P0: 10}, writer="old"), "new") is None
    # Notes have no more of a very long one.
    long = "x" * (WRITER_CHARACTERS_MAX + 1)
    found = committed("q", 3, {P0: 10}, writer=long[:WRITER_CHARACTERS_MAX])
    assert former_id(one, found, long) is None
    assert former_id(one, found, "new") is None


def test_a_partition_that_appears_may_have_been_anothers() -> None:
    found = {**committed("q", 3, {P0: 10}), **committed("old", 7, {P1: 10})}
    one = batch(4, {P0: 20, P1: 20}, {P0: 10, P1: 10}, appeared=frozenset({P1}))
    assert verdict(one, found) is Verdict.WRITE
    with pytest.raises(CannotResume, match="starts orders-1 at 0, the group stands at 10"):
        verdict(batch(4, {P0: 20, P1: 20}, {P0: 10, P1: 0}, appeared=frozenset({P1})), found)


def test_what_others_have_read_is_not_skipped() -> None:
    """It lies behind where the group stands, and was not written by this query."""
    by_query = committed("other", 7, {P1: 10}, writer="copy-2")
    own = committed("q", 3, {P0: 10})
    appeared = batch(4, {P0: 10, P1: 5}, {P0: 10, P1: 0}, appeared=frozenset({P1}))
    with pytest.raises(
        CannotResume, match=r"this is query q .*, and query other \(transactional id copy-2\)"
    ) as raised:
        verdict(appeared, {**own, **by_query})
    assert "starts orders-1 at 0, the group stands at 10" in str(raised.value)
    assert verdict(appeared, {**own, **by_query}, NewCheckpoint.REPROCESS) is Verdict.WRITE
    for one in (appeared, batch(4, {P0: 10, P1: 8}, {P0: 10, P1: 5})):
        with pytest.raises(CannotResume, match="the group's offsets were changed"):
            verdict(one, {**own, **by_consumer({P1: 10})})
    # Where a batch reads nothing, nothing can be lost.
    assert verdict(batch(2, {P0: 8, P1: 5}, {P0: 6, P1: 5}), {**own, **by_consumer({P1: 10})}) is Verdict.SKIP


def test_a_batch_that_was_run_before_is_refused_if_nothing_is_left_where_its_note_would_be() -> None:
    one = batch(4, {P0: 12, P1: 10, P2: 8}, {P0: 10, P1: 10, P2: 5}, planned_before=True)
    own = committed("q", 3, {P0: 10, P1: 10, P2: 5})
    hidden = {**own, **by_consumer({P0: 10, P2: 5})}
    assert verdict(one, own) is Verdict.WRITE
    with pytest.raises(CannotResume, match="its offset of orders-0 is 10 now, which somebody else has committed"):
        verdict(one, hidden)
    assert verdict(one, hidden, NewCheckpoint.REPROCESS) is Verdict.WRITE
    assert verdict(dataclasses.replace(one, planned_before=False), hidden) is Verdict.WRITE
    # Its commit would have left a note wherever it moved something, and in the first partition always.
    assert verdict(one, {**own, **by_consumer({P0: 10})}) is Verdict.WRITE
    assert verdict(one, {**own, **by_consumer({P2: 5})}) is Verdict.WRITE
    moved_last = batch(4, {P0: 10, P2: 8}, {P0: 10, P2: 5}, planned_before=True)
    assert verdict(moved_last, {**own, **by_consumer({P2: 5})}) is Verdict.WRITE
    # The offsets of one topic may be deleted, or all of them, and others come after.
    gone = {p: offset for p, offset in own.items() if p == P1}
    with pytest.raises(CannotResume, match="its offset of orders-0 was deleted"):
        verdict(one, gone)
    for left in ({P1: 10}, {P0: 10}, {P0: 10, P1: 10, P2: 5}):
        with pytest.raises(CannotResume, match="was run before and may have been written"):
            verdict(one, by_consumer(left))
        assert verdict(dataclasses.replace(one, planned_before=False), by_consumer(left)) is Verdict.WRITE


def test_a_batch_that_was_run_before_and_reads_nothing_leaves_its_note_in_the_first_partition() -> None:
    """With state it writes something all the same: windows close."""
    one = batch(4, {P0: 10, P1: 5}, {P0: 10, P1: 5}, planned_before=True)
    own = committed("q", 3, {P0: 10, P1: 5})
    assert verdict(one, own, stateful=True) is Verdict.WRITE
    assert verdict(one, {**own, **by_consumer({P1: 5})}, stateful=True) is Verdict.WRITE
    with pytest.raises(CannotResume, match="was run before and may have been written"):
        verdict(one, {**own, **by_consumer({P0: 10})}, stateful=True)
    # One of two sources may have moved where the group's offset has not.
    apart = batch(
        4, {P0: 10, P1: 5}, {P0: 10, P1: 5}, planned_before=True, uneven_start={P1: (5, 7)}, uneven_end={P1: (5, 9)}
    )
    found = {**by_consumer({P0: 10}), **committed("q", 3, {P1: 5}, ends=(5, 7))}
    assert verdict(apart, found) is Verdict.WRITE


def test_a_batch_of_partitions_that_appeared_was_not_committed_where_they_have_no_offset() -> None:
    own = committed("q", 3, {P1: 10})
    one = batch(4, {P0: 5, P1: 10, P2: 1}, {P0: 0, P1: 10, P2: 0}, planned_before=True, appeared=frozenset({P0, P2}))
    assert verdict(one, own) is Verdict.WRITE
    assert verdict(one, {**own, **by_consumer({P0: 0})}) is Verdict.WRITE
    with pytest.raises(CannotResume, match="was run before and may have been written"):
        verdict(one, {**own, **by_consumer({P0: 0, P2: 0})})
    # Another query may have begun with them, and put them back to where the batch began.
    with pytest.raises(CannotResume, match="was run before and may have been written"):
        verdict(one, {**own, **committed("other", 0, {P0: 0, P2: 0})})
    # Where other offsets were deleted, theirs may have been as well.
    further = batch(4, {P0: 0, P1: 12, P2: 7}, {P0: 0, P1: 10, P2: 7}, planned_before=True, appeared=frozenset({P0}))
    assert verdict(further, committed("q", 3, {P1: 10, P2: 7})) is Verdict.WRITE
    with pytest.raises(CannotResume, match="its offset of orders-1 was deleted"):
        verdict(further, committed("q", 3, {P2: 7}))
    # In a group that has no note of the query, that tells nothing.
    with pytest.raises(CannotResume, match="was run before and may have been written"):
        verdict(one, by_consumer({P1: 10}))
    # Batches before it may have had nothing to read, and left their notes elsewhere.
    first = batch(4, {P0: 5}, {P0: 0}, planned_before=True, appeared=frozenset({P0}), is_first_to_read=True)
    ids = committed("q", 3, {BATCH_ID_PARTITION: 3})
    assert verdict(first, ids) is Verdict.WRITE
    with pytest.raises(CannotResume, match="was run before and may have been written"):
        verdict(first, {**ids, **by_consumer({P0: 0})})


def test_a_batch_that_this_run_has_tried_to_commit_is_written_if_the_group_shows_that_it_was_not() -> None:
    """Its group may have expired before: then there is no note of the query, but none of this batch either."""
    one = batch(4, {P0: 12, P1: 5}, {P0: 10, P1: 5})
    for before in ({}, by_consumer({P1: 5}), committed("q", 3, {P0: 10, P1: 5})):
        assert verdict(one, before, tried_on=before) is Verdict.WRITE
    with pytest.raises(CannotResume, match="its offset of orders-0 is 10 now"):
        verdict(one, by_consumer({P0: 10, P1: 5}), tried_on=committed("q", 3, {P0: 10, P1: 5}))
    with pytest.raises(CannotResume, match="its offset of orders-0 was deleted"):
        verdict(one, {}, tried_on=committed("q", 3, {P0: 10, P1: 5}))


def test_a_batch_whose_note_is_left_is_skipped_wherever_others_have_set_the_group() -> None:
    """The next one is refused. This one would be read again by whoever started anew where the group stands."""
    one = batch(4, {P0: 12, P1: 8}, {P0: 10, P1: 5}, planned_before=True)
    note = committed("q", 4, {P0: 12})
    for others in ({}, by_consumer({P1: 5}), by_consumer({P1: 6}), by_consumer({P1: 90})):
        assert verdict(one, {**note, **others}) is Verdict.SKIP
    with pytest.raises(CannotResume, match="starts orders-1 at 8, the group stands at 6"):
        verdict(batch(5, {P0: 12, P1: 9}, {P0: 12, P1: 8}), {**note, **by_consumer({P1: 6})})
    # A note of an earlier version may be of another plan.
    with pytest.raises(CannotResume, match="older copy"):
        verdict(one, {**committed("q", 4, {P0: 12}, plan=None), **by_consumer({P1: 5})})


def test_offsets_that_others_have_set_are_told_with_what_helps() -> None:
    """Reprocessing helps only where the rest is as this query has left it."""
    one = batch(4, {P0: 20, P1: 20}, {P0: 10, P1: 5})
    partly, all_set = {**committed("q", 3, {P0: 10}), **by_consumer({P1: 9})}, by_consumer({P0: 10, P1: 9})
    for found in (partly, all_set):
        with pytest.raises(CannotResume, match="starts orders-1 at 5, the group stands at 9") as raised:
            verdict(one, found)
        assert "the group's offsets were changed" in str(raised.value)
        assert 'pass on_new_checkpoint="reprocess" to go on where the checkpoint is;' in str(raised.value)
        assert verdict(one, found, NewCheckpoint.REPROCESS) is Verdict.WRITE
    with pytest.raises(CannotResume, match="after a look whether the output has this batch"):
        verdict(dataclasses.replace(one, planned_before=True), all_set)
    for policy in NewCheckpoint:
        with pytest.raises(CannotResume, match="starts orders-0 at 9, the group stands at 10") as raised:
            verdict(batch(4, {P0: 20, P1: 20}, {P0: 9, P1: 5}), partly, policy)
        assert "reprocess" not in str(raised.value)
        with pytest.raises(CannotResume, match="older copy") as raised:
            verdict(batch(2, {P0: 20, P1: 20}, {P0: 10, P1: 5}), partly, policy)
        assert "reprocess" not in str(raised.value)


def test_offsets_that_a_tool_has_set_are_nobodys() -> None:
    found = {P0: OffsetAndMetadata(10, "")}
    assert verdict(batch(4, {P0: 20}, {P0: 10}), found) is Verdict.WRITE


def test_a_batch_that_is_run_again_for_its_state_must_read_the_tables_it_read() -> None:
    before, now = bounds_text([OffsetRange(P0, 0, 7)]), bounds_text([OffsetRange(P0, 0, 8)])
    one = batch(3, {P0: 10, P1: 10})
    found = offsets_to_commit(one, None, tables=before)
    assert [Note.from_text(found[p].metadata).tables for p in (P0, P1)] == [before, None]  # type: ignore[union-attr]
    check_tables(one, found, before)
    with pytest.raises(CannotResume, match=r"""'endingOffsets': '{"orders": {"0": 7}}'"""):
        check_tables(one, found, now)
    # Notes of earlier versions do not tell, and those of other batches tell nothing about this one.
    check_tables(one, committed("q", 3, {P0: 10}), now)
    check_tables(batch(4, {P0: 20}), found, now)


def test_only_what_moved_is_committed_and_the_first_partition() -> None:
    found = committed("q", 3, {P0: 10, P1: 5, P2: 7})

    def changed(one: MicroBatch, found: dict[TopicPartition, OffsetAndMetadata]) -> list[TopicPartition]:
        now = offsets_to_commit(one, BATCH_ID_PARTITION)
        changed = changed_offsets(one, now, found)
        assert changed.items() <= now.items()
        return sorted(changed)

    one = batch(4, {P0: 10, P1: 6, P2: 7}, {P0: 10, P1: 5, P2: 7})
    assert changed(one, found) == [P0, P1]
    assert changed(one, committed("another", 3, {P0: 10, P1: 6, P2: 7})) == [P0, P1, P2]
    assert changed(one, {}) == [P0, P1, P2]
    assert changed(batch(4, {P0: 10, P2: 7}, {P0: 10, P2: 7}, uneven_end={P2: (7, 9)}), found) == [P0, P2]
    assert changed(batch(4, {}), {}) == [BATCH_ID_PARTITION]
    # A partition that was cut may come to the very offset again.
    cut: dict[str, Any] = {"appeared": frozenset({P1}), "set_back": frozenset({P1})}
    assert changed(batch(4, {P0: 10, P1: 5}, {P0: 10, P1: 3}, **cut), found) == [P0, P1]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=6),
    st.booleans(),
    st.data(),
)
def test_the_verdict_is_the_same_as_if_all_offsets_were_committed(
    steps: list[list[int]], stateful: bool, data: st.DataObject
) -> None:
    """A history of batches, each of which moves some partitions; then any batch of it, or one that was planned anew."""
    positions = [0, 0, 0]
    planned: list[tuple[Offsets, Offsets]] = []
    for step in steps:
        start = dict(zip((P0, P1, P2), positions, strict=True))
        positions = [position + moved for position, moved in zip(positions, step, strict=True)]
        planned.append((start, dict(zip((P0, P1, P2), positions, strict=True))))
    done = data.draw(st.integers(1, len(steps)))
    everything: dict[TopicPartition, OffsetAndMetadata] = {}
    moved: dict[TopicPartition, OffsetAndMetadata] = {}
    for number, (start, end) in enumerate(planned[:done]):
        done_one = batch(number, end, start)
        offsets = offsets_to_commit(done_one, BATCH_ID_PARTITION)
        everything = {**everything, **offsets}
        moved = {**moved, **(changed_offsets(done_one, offsets, moved) if number else offsets)}
    number = data.draw(st.integers(0, len(steps) - 1))
    begin = data.draw(st.integers(0, number))
    one = batch(number, planned[number][1], planned[begin][0], plan=data.draw(st.sampled_from([number, 99])))
    assert _outcome(one, moved, stateful) == _outcome(one, everything, stateful)


def _outcome(one: MicroBatch, found: dict[TopicPartition, OffsetAndMetadata], stateful: bool) -> str:
    try:
        return verdict(one, found, stateful=stateful).value
    except CannotResume as error:
        return str(error)
