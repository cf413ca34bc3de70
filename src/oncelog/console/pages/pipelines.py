"""Exactly-once pipelines: the queries that commit their input with their output, and the batches of one."""

from __future__ import annotations

from typing import Final

from oncelog.console.page import Console, NotThere, Page, Query, paged
from oncelog.monitoring.pipelines import Pipeline, pipeline_of, read_attempts

ATTEMPTS_MAX: Final = 100


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
    attempts = console.recent.get(("pipeline", found.writer, group_id), lambda: read_attempts(console.admin, found))
    shown = attempts[-ATTEMPTS_MAX:]
    now_ms = console.now_ms()
    data = {
        **found.as_row(),
        "attempts": [one.as_row(now_ms) for one in reversed(shown)],
        "committed": sum(one.outcome == "committed" for one in attempts),
        "failed": sum(one.outcome in ("aborted", "timed out") for one in attempts),
        "drivers": sum(one.is_new_driver for one in attempts),
        "left_out": len(attempts) - len(shown),
    }
    return Page("pipeline.html", f"Pipeline of {group_id}", data)
