"""What is compared: each case runs one side at a time and gives a number, or says why it could not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.spark.memory import forget_peaks, peak_bytes
from peers.spark.queries import (
    Reader,
    Timing,
    median,
    run_to_end,
    to_connector,
    to_function,
    to_noop,
    to_oncelog,
)
from peers.spark.topics import Content, Topics

SMALL_BATCH_ROWS = 100
SMALL_ROWS = 20 * SMALL_BATCH_ROWS
UNMEASURED_BATCHES = 5
"""Of each query of small batches the first are left out: they load what the others find loaded."""


MEMORY_GOAL = 1.25
"""How much more a Python worker may hold for a batch of twenty times the size: nothing, up to what allocators do."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, the Spark format that reads it, and its input."""

    reader: Reader
    topics: Topics
    source: str
    content: Content


@dataclass(slots=True)
class Lab:
    """Both places, and folders nobody has used."""

    spark: Any
    folder: Path
    oncelog: Place
    connector: Place | None
    per_batch: int
    small_source: str
    """SMALL_ROWS rows in Oncelog."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(self._numbers)}")

    def fresh_topic(self, place: Place) -> str:
        return place.topics.create(f"out-{next(self._numbers)}")


Side = Callable[[Lab], float]


@dataclass(frozen=True, slots=True)
class Case:
    """`ours` against `theirs`. Higher is better for rates, lower for times; `goal` bounds ours / theirs."""

    name: str
    unit: str
    ours: Side
    theirs: Side
    ours_name: str
    theirs_name: str
    goal: float | None
    higher_is_better: bool
    needs_connector: bool


def rate(place: Place, timing: Timing) -> float:
    return place.content.rows * 1000 / sum(timing.batches_ms)


def read_alone(place: Place, lab: Lab) -> float:
    frame = place.reader.stream(place.source, lab.per_batch)
    timing = run_to_end(to_noop(frame), lab.checkpoint())
    if timing.rows != place.content.rows:
        raise WrongOutput(f"{timing.rows:,} rows were read of {place.content.rows:,}")
    return rate(place, timing)


def copy(place: Place, lab: Lab, columns: tuple[str, ...], write: Callable[[Any, str, str], Any]) -> float:
    """Topic to topic; what came out is read back and compared before the time counts."""
    target = lab.fresh_topic(place)
    try:
        frame = place.reader.stream(place.source, lab.per_batch).select(*columns)
        timing = run_to_end(write(frame, place.topics.servers, target), lab.checkpoint())
        check(place, place.topics.read(target), keyed="key" in columns)
    finally:
        place.topics.delete(target)
    return rate(place, timing)


class WrongOutput(RuntimeError):
    """A side wrote other rows than it read: its time is worth nothing."""


def check(place: Place, found: Content, *, keyed: bool) -> None:
    wanted = place.content
    same = found.keys_and_values == wanted.keys_and_values if keyed else found.values == wanted.values
    if not same or found.rows != wanted.rows:
        raise WrongOutput(f"{found.rows:,} rows came out of {place.content.rows:,}, or not the same ones")


def small_batch(lab: Lab, write: Callable[[Any], Any]) -> float:
    """Milliseconds of one micro-batch of few rows: the median over one query."""
    frame = lab.oncelog.reader.stream(lab.small_source, SMALL_BATCH_ROWS).select("key", "value")
    return median(run_to_end(write(frame), lab.checkpoint()).batches_ms[UNMEASURED_BATCHES:])


def sink_batch(lab: Lab) -> float:
    target = lab.fresh_topic(lab.oncelog)
    try:
        return small_batch(lab, lambda frame: to_oncelog(frame, lab.oncelog.topics.servers, target))
    finally:
        lab.oncelog.topics.delete(target)


def drained_batch(lab: Lab) -> float:
    """The floor: a foreachBatch that computes the rows and drops them."""

    def drop(rows: Any, _: int) -> None:
        rows.write.format("noop").mode("append").save()

    return small_batch(lab, lambda frame: to_function(frame, drop))


def empty_batch(lab: Lab) -> float:
    """A foreachBatch that does not even run its batch."""

    def nothing(_rows: Any, _number: int) -> None:
        return

    return small_batch(lab, lambda frame: to_function(frame, nothing))


def peak_memory(lab: Lab, per_batch: int) -> float:
    """Mebibytes: the largest Python worker while the topic is copied in batches of this size."""
    place = lab.oncelog
    target = lab.fresh_topic(place)
    try:
        forget_peaks()
        frame = place.reader.stream(place.source, per_batch).select("key", "value")
        run_to_end(to_oncelog(frame, place.topics.servers, target), lab.checkpoint())
        return peak_bytes() / (1 << 20)
    finally:
        place.topics.delete(target)


def _theirs(lab: Lab) -> Place:
    if lab.connector is None:
        raise RuntimeError("Spark's connector is not here")
    return lab.connector


CASES: tuple[Case, ...] = (
    Case(
        "read to noop",
        "rows/s",
        ours=lambda lab: read_alone(lab.oncelog, lab),
        theirs=lambda lab: read_alone(_theirs(lab), lab),
        ours_name="oncelog",
        theirs_name="Spark's connector",
        goal=1.0,
        higher_is_better=True,
        needs_connector=True,
    ),
    Case(
        "topic to topic, keys kept",
        "rows/s",
        ours=lambda lab: copy(lab.oncelog, lab, ("key", "value"), to_oncelog),
        theirs=lambda lab: copy(_theirs(lab), lab, ("key", "value"), to_connector),
        ours_name="oncelog, exactly once",
        theirs_name="Spark's connector, at least once",
        goal=0.8,
        higher_is_better=True,
        needs_connector=True,
    ),
    Case(
        "topic to topic, no keys",
        "rows/s",
        ours=lambda lab: copy(lab.oncelog, lab, ("value",), to_oncelog),
        theirs=lambda lab: copy(_theirs(lab), lab, ("value",), to_connector),
        ours_name="oncelog, exactly once",
        theirs_name="Spark's connector, at least once",
        goal=0.8,
        higher_is_better=True,
        needs_connector=True,
    ),
    Case(
        "small micro-batch",
        "ms",
        ours=sink_batch,
        theirs=drained_batch,
        ours_name="exactly-once sink",
        theirs_name="foreachBatch that drops its rows",
        goal=1.3,
        higher_is_better=False,
        needs_connector=False,
    ),
    Case(
        "small micro-batch, for comparison",
        "ms",
        ours=sink_batch,
        theirs=empty_batch,
        ours_name="exactly-once sink",
        theirs_name="foreachBatch that does not run its batch",
        goal=None,
        higher_is_better=False,
        needs_connector=False,
    ),
)
