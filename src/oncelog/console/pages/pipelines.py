"""Exactly-once pipelines: the queries that commit their input with their output, and the batches of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from oncelog.console.page import Console, NotThere, Page, Query, if_readable, paged
from oncelog.console.pages.groups import ListCounter
from oncelog.console.pages.topics import Window, read_windows
from oncelog.console.pages.transactions import SHARED_ID_STARTS
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.pipelines import Attempt, Identity, Pipeline, pipeline_of, read_attempts, state_of
from oncelog.monitoring.transaction_spans import TransactionSpan

Written = dict[tuple[TopicPartition, Identity], TransactionSpan]

ATTEMPTS_MAX: Final = 100
ROWS_PARTITIONS_MAX: Final = 8
ROWS_OFFSETS: Final = 5_000
"""Of each output partition, looked through for the transactions whose rows are counted."""


def pipeline_list(console: Console, query: Query) -> Page:
    shown, place = paged(_found(console), query)
    return Page("pipelines.html", "Pipelines", {"rows": [one.as_row() for one in shown], "place": place})


def _found(console: Console) -> list[Pipeline]:
    groups = [state.group for state in console.snapshot().groups if state.group is not None]
    return [found for group in groups if (found := pipeline_of(group)) is not None]


def pipeline(console: Console, query: Query, group_id: str) -> Page:
    found = next((one for one in _found(console) if one.group_id == group_id), None)
    if found is None:
        raise NotThere(
            f"Group {group_id!r} has no offsets with notes of a pipeline.",
            "Oncelog's Spark sink stores query and batch with every offset that it commits.",
        )
    read = partial(read_attempts, console.admin, found)
    readable = if_readable(lambda: console.recent.get(("pipeline", found.writer, group_id), read))
    attempts = readable or []
    shown = attempts[-ATTEMPTS_MAX:]
    now_ms = console.now_ms()
    written = _written(console, shown)
    data: dict[str, Any] = {
        **found.as_row(),
        **state_of(attempts, now_ms, has_input=_has_input(console, group_id)),
        "shared": sum(one.is_new_driver and one.began_ms >= now_ms - 60_000 for one in attempts) >= SHARED_ID_STARTS,
        "attempts": [
            {**one.as_row(now_ms), "rows": _rows(one, written), "written": _written_rows(one, written)}
            for one in reversed(shown)
        ],
        "committed": sum(one.outcome == "committed" for one in attempts),
        "failed": sum(one.outcome in ("aborted", "timed out") for one in attempts),
        "drivers": sum(one.is_new_driver for one in attempts),
        "left_out": len(attempts) - len(shown),
        "hidden": readable is None or TRANSACTION_STATE_TOPIC not in console.snapshot().topics,
    }
    return Page("pipeline.html", f"Pipeline of {group_id}", data, tables={"attempts": data["attempts"]})


def _has_input(console: Console, group_id: str) -> bool:
    """Whether there are records that the query has not read; yes if there are too many offsets to count them."""
    groups = [one.group for one in console.snapshot().groups if one.listing.group_id == group_id]
    counts = [ListCounter(console).to_read(group) for group in groups if group is not None]
    return any(count is None or count > 0 for count in counts)


def _written(console: Console, attempts: Sequence[Attempt]) -> Written:
    """What transactions wrote where, of those that begin within the last offsets of their partitions."""
    places = {place for one in attempts for place in _output(one)}
    topics = console.snapshot().topics
    if not places or len(places) > ROWS_PARTITIONS_MAX or not {place.topic for place in places} <= topics.keys():
        return {}
    written: Written = {}
    windows = [Window(place, str(topics[place.topic].info.topic_id), ROWS_OFFSETS, -1) for place in sorted(places)]
    for read in if_readable(partial(read_windows, console, windows)) or ():
        for span in read.spans:
            if span.first_offset > read.start or span.first_offset == 0:
                written[read.partition, (span.producer_id, span.producer_epoch)] = span
    return written


def _rows(attempt: Attempt, written: Written) -> int | None:
    """Records in all its partitions; None if it is not known of one of them."""
    spans = [written.get((place, (attempt.producer_id, attempt.producer_epoch))) for place in _output(attempt)]
    return sum(span.records for span in spans if span is not None) if spans and None not in spans else None


def _written_rows(attempt: Attempt, written: Written) -> list[dict[str, Any]]:
    rows = []
    for place in _output(attempt):
        span = written.get((place, (attempt.producer_id, attempt.producer_epoch)))
        offsets = (None, None) if span is None else (span.first_offset, span.last_offset)
        rows.append({"topic": place.topic, "partition": place.partition, "first": offsets[0], "last": offsets[1]})
    return rows


def _output(attempt: Attempt) -> list[TopicPartition]:
    return [place for place in attempt.partitions if place.topic != GROUP_METADATA_TOPIC]
