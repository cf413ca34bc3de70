"""How much of which partition a micro-batch reads, and how that is cut into tasks. Pure: no broker, no Spark."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oncelog.core.ids import TopicPartition
from oncelog.spark.offsets import Offsets, from_wire, to_wire

BOUNDS_TEXT_MAX = 2000
DIGEST = "sha256:"


TASKS_ALONE = 64
"""A batch may have this many tasks however few records each of them reads: enough for as many cores."""
TASK_OFFSETS = 10_000
TASK_OFFSETS_MIN = 1000
TASK_RANGES = 100
"""Beyond that, what a task reads is worth its start at least, either by its records or by its ranges."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition. Markers and compaction leave gaps, so it may hold fewer records."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def limit_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """The end offsets of a batch of at most about `limit` offsets, shared out in proportion to what each partition has.

    A partition with anything to read advances by at least one offset, so that a small limit cannot starve it for ever.
    """
    sizes = {p: end[p] - start.get(p, 0) for p in end if end[p] > start.get(p, 0)}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    limited = dict(end)
    for partition, size in sizes.items():
        share = limit * size / total
        step = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = min(end[partition], start.get(partition, 0) + step)
    return limited


def split_ranges(
    ranges: list[OffsetRange], *, at_least: int | None = None, size_max: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into at least `at_least` pieces and none larger than `size_max`; large ranges are cut first."""
    whole = [r for r in ranges if r.size > 0]
    if size_max is not None:
        whole = [piece for r in whole for piece in _cut(r, math.ceil(r.size / size_max))]
    if at_least is None or len(whole) >= at_least:
        return whole
    total = sum(r.size for r in whole)
    # Ranges below an even share stay whole; the others divide the remaining tasks by their size.
    small = [r for r in whole if r.size * at_least < total]
    large = [r for r in whole if r.size * at_least >= total]
    tasks = max(at_least - len(small), len(large))
    large_total = sum(r.size for r in large)
    pieces = [piece for r in large for piece in _cut(r, math.ceil(tasks * r.size / large_total))]
    return sorted([*small, *pieces], key=lambda r: (r.partition, r.start))


def group_ranges(ranges: list[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """What tasks read: one range each, but small ones together where there are more than TASKS_ALONE.

    A task costs as much as some thousand records, so one with fewer than TASK_OFFSETS is better shared. What is put
    together stays in its order.
    """
    if len(ranges) <= TASKS_ALONE:
        return [(one,) for one in ranges]
    wanted = min(TASK_OFFSETS, max(TASK_OFFSETS_MIN, sum(one.size for one in ranges) // TASKS_ALONE))
    groups: list[list[OffsetRange]] = [[]]
    size = 0
    for one in ranges:
        if groups[-1] and (size + one.size > wanted or len(groups[-1]) == TASK_RANGES):
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.size
    return [tuple(group) for group in groups]


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    count = max(1, min(pieces, whole.size))
    bounds = [whole.start + whole.size * i // count for i in range(count + 1)]
    return [OffsetRange(whole.partition, a, b) for a, b in itertools.pairwise(bounds)]


def bounds_text(ranges: Iterable[OffsetRange]) -> str:
    """Where reading began and ended in each partition, as JSON; its digest where that is too long to be kept."""
    starts: Offsets = {}
    ends: Offsets = {}
    for one in ranges:
        starts[one.partition] = min(one.start, starts.get(one.partition, one.start))
        ends[one.partition] = max(one.end, ends.get(one.partition, one.end))
    text = json.dumps({"start": to_wire(starts), "end": to_wire(ends)}, separators=(",", ":"))
    return text if len(text) <= BOUNDS_TEXT_MAX else DIGEST + hashlib.sha256(text.encode()).hexdigest()


def bounds_number(text: str) -> int:
    """A number for the text, where only a number can be kept: 62 bits, never 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2 or 1


def ends_of_bounds(text: str) -> Offsets | None:
    """None when only the digest was kept."""
    return None if text.startswith(DIGEST) else from_wire(json.loads(text)["end"])
