"""What of a log can be cleaned, whether it is due, and what becomes one segment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.storage.cleaner_plan import Cleanable, SourceSegment, find_cleanable, group_segments
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment_names import INDEX_SUFFIX, file_name
from tests.unit.storage.cleaner_harness import COMPACTED, compacted_log, put, put_txn, stable_end
from tests.unit.storage.log_harness import NOW_MS


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Segments at 0, 2, 4 and 6, the last of them active; two batches each."""
    log = compacted_log(tmp_path)
    for number in range(8):
        if number and number % 2 == 0:
            log.roll(NOW_MS)
        put(log, ("k", "v"), timestamp=NOW_MS + number * 1000)
    return log


def found(log: Log, first_dirty: int | None = None, now_ms: int = NOW_MS) -> Cleanable:
    return find_cleanable(log, first_dirty, last_stable_offset=stable_end(log), now_ms=now_ms)


def test_everything_below_the_active_segment_can_be_cleaned(log: Log) -> None:
    cleanable = found(log)
    assert (cleanable.first_dirty_offset, cleanable.upper_bound) == (0, 6)
    assert cleanable.clean_bytes == 0
    assert cleanable.dirty_bytes == sum(segment.size_bytes for segment in log.segments[:3])
    assert cleanable.dirty_ratio == 1.0


def test_a_checkpoint_divides_clean_from_dirty(log: Log) -> None:
    cleanable = found(log, 4)
    assert (cleanable.first_dirty_offset, cleanable.upper_bound) == (4, 6)
    assert cleanable.dirty_ratio == pytest.approx(1 / 3)
    assert not found(log, 6).is_due


@pytest.mark.parametrize("checkpoint", [-5, 9, 1000])
def test_a_checkpoint_outside_of_the_log_is_as_good_as_none(log: Log, checkpoint: int) -> None:
    assert found(log, checkpoint).first_dirty_offset == 0


def test_a_checkpoint_below_the_log_start_moves_to_it(log: Log) -> None:
    log.delete_records(3)
    assert found(log, 1).first_dirty_offset == 3


def test_an_open_transaction_bounds_at_its_segment(log: Log) -> None:
    put_txn(log, 5, 0, ("x", "open"))
    log.roll(NOW_MS)
    put(log, ("k", "v"))
    log.roll(NOW_MS)
    assert found(log).upper_bound == 6
    assert find_cleanable(log, None, last_stable_offset=3, now_ms=NOW_MS).upper_bound == 2
    assert find_cleanable(log, None, last_stable_offset=0, now_ms=NOW_MS).dirty_bytes == 0


def test_the_minimum_lag_goes_by_the_newest_record_of_a_segment(log: Log) -> None:
    log.config = replace(COMPACTED, min_compaction_lag_ms=10_000)
    assert found(log, now_ms=NOW_MS + 10_999).upper_bound == 0
    assert found(log, now_ms=NOW_MS + 11_000).upper_bound == 2
    assert found(log, now_ms=NOW_MS + 13_000).upper_bound == 4


@pytest.mark.parametrize(("ratio", "is_due"), [(0.3, True), (0.34, False)])
def test_the_ratio_must_be_exceeded(log: Log, ratio: float, is_due: bool) -> None:
    log.config = replace(COMPACTED, min_cleanable_dirty_ratio=ratio)
    assert found(log, 4).is_due is is_due


def test_the_maximum_lag_goes_by_the_first_record_of_a_segment(log: Log) -> None:
    log.config = replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5_000)
    assert not found(log, now_ms=NOW_MS + 5_000).is_due
    assert found(log, now_ms=NOW_MS + 5_001).is_due
    assert not found(log, 6, now_ms=NOW_MS + 5_001).is_due


def test_the_active_segment_of_a_compacted_log_rolls_in_time_for_the_maximum_lag(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, max_compaction_lag_ms=1_000))
    put(log, ("a", "1"))
    put(log, ("b", "1"), timestamp=NOW_MS + 1_000)
    assert len(log.segments) == 1
    put(log, ("c", "1"), timestamp=NOW_MS + 1_001)
    assert len(log.segments) == 2


def source(base: int, size: int, following: int) -> SourceSegment:
    return SourceSegment(base, size, following)


def groups(*sources: SourceSegment) -> list[list[int]]:
    made = group_segments(sources, Path("missing"), LogConfig(segment_bytes=100))
    return [[one.base_offset for one in group] for group in made]


def test_neighbours_are_grouped_up_to_the_segment_size() -> None:
    assert groups(source(0, 60, 10), source(10, 40, 20), source(20, 1, 30), source(30, 100, 40)) == [
        [0, 10],
        [20],
        [30],
    ]


def test_a_group_never_spans_more_offsets_than_an_index_can_hold() -> None:
    far = 2**31
    assert groups(source(0, 10, 10), source(10, 10, far), source(far, 10, far + 1)) == [[0, 10], [far]]
    assert groups(source(0, 10, 10), source(10, 0, far + 5), source(far + 5, 0, far + 6)) == [[0, 10, far + 5]]


def test_index_sizes_bound_a_group_too(tmp_path: Path) -> None:
    for base in range(3):
        (tmp_path / file_name(base, INDEX_SUFFIX)).write_bytes(bytes(48))
    sources = [source(base, 1, base + 1) for base in range(3)]
    made = group_segments(sources, tmp_path, LogConfig(segment_bytes=100, segment_index_bytes=100))
    assert [len(group) for group in made] == [2, 1]
