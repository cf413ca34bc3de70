"""Limits and splits of micro-batches, and the JSON of offsets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.core.ids import TopicPartition
from oncelog.spark.micro_batch import SourceRange, source_range
from oncelog.spark.offsets import NOT_STARTED, Offsets, StreamOffset, from_wire, merge, parse_source_offset, to_wire
from oncelog.spark.planning import (
    TASK_OFFSETS,
    TASK_OFFSETS_MIN,
    TASK_RANGES,
    TASKS_ALONE,
    OffsetRange,
    bounds_text,
    ends_of_bounds,
    group_ranges,
    limit_offsets,
    split_ranges,
)

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5))
SIZES = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1)


@given(SIZES, st.integers(1, 500))
def test_a_limited_batch_stays_in_range_and_every_waiting_partition_moves(
    sizes: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start: Offsets = {p: first for p, (first, _) in sizes.items()}
    end = {p: first + size for p, (first, size) in sizes.items()}
    limited = limit_offsets(start, end, limit)
    assert limited.keys() == end.keys()
    for partition in end:
        assert start[partition] <= limited[partition] <= end[partition]
        if end[partition] > start[partition]:
            assert limited[partition] > start[partition]
    assert sum(limited[p] - start[p] for p in end) <= limit + len(end)


@given(SIZES, st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(1, 300)))
def test_pieces_cover_the_ranges_without_gap_or_overlap(
    sizes: dict[TopicPartition, tuple[int, int]], at_least: int | None, size_max: int | None
) -> None:
    ranges = [OffsetRange(p, first, first + size) for p, (first, size) in sizes.items()]
    pieces = split_ranges(ranges, at_least=at_least, size_max=size_max)
    for whole in ranges:
        mine = sorted((piece.start, piece.end) for piece in pieces if piece.partition == whole.partition)
        covered = [offset for start, end in mine for offset in range(start, end)]
        assert covered == list(range(whole.start, whole.end))
    total = sum(r.size for r in ranges)
    if at_least is not None:
        assert len(pieces) >= min(at_least, total)
    if size_max is not None:
        assert all(piece.size <= size_max for piece in pieces)


def test_a_large_partition_is_cut_and_small_ones_stay_whole() -> None:
    big, small = TopicPartition("t", 0), TopicPartition("t", 1)
    pieces = split_ranges([OffsetRange(big, 0, 900), OffsetRange(small, 0, 100)], at_least=4)
    assert [p.size for p in pieces if p.partition == small] == [100]
    assert [p.size for p in pieces if p.partition == big] == [300, 300, 300]


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**60)))
def test_offsets_survive_their_json(offsets: Offsets) -> None:
    assert from_wire(json.loads(json.dumps(to_wire(offsets)))) == offsets


@given(
    st.dictionaries(PARTITIONS, st.integers(0, 2**60)),
    st.dictionaries(PARTITIONS, st.integers(0, 2**60)),
    st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1)),
)
def test_what_a_batch_ends_with_survives_its_json(ends: Offsets, first: Offsets, ids: dict[str, str]) -> None:
    whole = StreamOffset(ends, first, ids)
    text = json.dumps(whole.to_wire())
    assert StreamOffset.from_wire(json.loads(text)) == whole
    assert parse_source_offset(text) == whole


def test_offsets_of_earlier_versions_and_of_sparks_own_source_are_the_plain_ones() -> None:
    plain = {TopicPartition("a", 0): 7}
    assert StreamOffset(plain).to_wire() == {"a": {"0": 7}}
    assert StreamOffset.from_wire({"a": {"0": 7}}) == StreamOffset(plain)
    assert parse_source_offset(json.dumps(NOT_STARTED)) == StreamOffset({})


@pytest.mark.parametrize("text", ["5", '{"logOffset":3}', '{"a":{"0":"x"}}', "not json", '{"a": {"p": 1}}'])
def test_offsets_of_other_sources_are_not_taken_for_kafkas(text: str) -> None:
    assert parse_source_offset(text) is None


def test_a_pattern_that_nothing_matches_yet_has_no_offsets() -> None:
    assert parse_source_offset("{}") == StreamOffset({})


def test_a_partition_read_by_two_sources_counts_as_far_as_both_have_come() -> None:
    one, other = TopicPartition("a", 0), TopicPartition("b", 0)
    assert merge([{one: 7, other: 3}, {one: 5}]) == {one: 5, other: 3}


def test_where_a_batch_begins_in_a_source() -> None:
    one, new = TopicPartition("a", 0), TopicPartition("a", 1)
    before = StreamOffset({one: 5}, first={one: 2})
    after = StreamOffset({one: 7, new: 9}, first={new: 3})
    assert source_range(StreamOffset({}), before) == SourceRange({one: 2}, {one: 5}, frozenset({one}), is_first=True)
    assert source_range(before, after) == SourceRange({one: 5, new: 3}, {one: 7, new: 9}, frozenset({new}))
    # It was cut.
    cut = StreamOffset({one: 4}, first={one: 3})
    expected = SourceRange({one: 3}, {one: 4}, frozenset({one}), frozenset({one}))
    assert source_range(StreamOffset({one: 5}), cut) == expected
    # Nothing has moved: the next batch begins where this one ended.
    assert source_range(before, before) == SourceRange({one: 5}, {one: 5}, frozenset())
    # Spark's own source does not tell where a partition began that appeared.
    assert source_range(StreamOffset({one: 5}), StreamOffset({one: 7, new: 9})).appeared == {new}
    assert source_range(None, after).start is None


def test_the_bounds_of_what_was_read_are_kept_as_text() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    text = bounds_text([OffsetRange(a, 0, 5), OffsetRange(b, 2, 3), OffsetRange(a, 5, 9)])
    assert text == bounds_text([OffsetRange(b, 2, 3), OffsetRange(a, 0, 9)])
    assert text != bounds_text([OffsetRange(b, 1, 3), OffsetRange(a, 0, 9)])
    assert ends_of_bounds(text) == {a: 9, b: 3}


def test_the_bounds_of_very_many_partitions_are_kept_as_their_digest() -> None:
    ranges = [OffsetRange(TopicPartition("t", i), 0, 10**12) for i in range(1000)]
    text = bounds_text(ranges)
    assert len(text) < 100
    assert text != bounds_text(ranges[:-1])
    assert ends_of_bounds(text) is None


def sizes_of_groups(sizes: list[int]) -> list[list[int]]:
    ranges = [OffsetRange(TopicPartition("t", number), 7, 7 + size) for number, size in enumerate(sizes)]
    groups = group_ranges(ranges)
    assert [one for group in groups for one in group] == ranges
    return [[one.size for one in group] for group in groups]


def test_small_ranges_of_many_partitions_share_tasks() -> None:
    """A thousand tasks of five records take minutes on a small machine."""
    groups = sizes_of_groups([500] * 1000)
    assert TASKS_ALONE <= len(groups) < 2 * TASKS_ALONE
    assert max(map(sum, groups)) <= 500 * 1000 // TASKS_ALONE
    # With less for each of so many tasks, their start would cost more than all the rest.
    assert [len(group) for group in sizes_of_groups([1] * 1000)] == [TASK_RANGES] * 10
    assert [sum(group) for group in sizes_of_groups([100] * 100)] == [TASK_OFFSETS_MIN] * 10


def test_a_range_that_is_worth_a_task_has_one() -> None:
    assert sizes_of_groups([1] * TASKS_ALONE) == [[1]] * TASKS_ALONE
    assert sizes_of_groups([TASK_OFFSETS] * 100) == [[TASK_OFFSETS]] * 100
    uneven = sizes_of_groups([1_000_000, *[1] * 999])
    assert uneven[0] == [1_000_000]
    assert len(uneven) == 11
    assert sizes_of_groups([]) == []
