"""The first page: what needs attention, in sentences, and a few figures."""

from __future__ import annotations

from typing import Any

from oncelog.console.page import Console, Page, Query
from oncelog.console.sentences import appends_per_second, sentences
from oncelog.monitoring.snapshot import ClusterSnapshot


def overview(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    earlier = console.watch.state.earlier
    found, more = sentences(snapshot, earlier, console.settings.hanging_after_ms)
    data = {
        "sentences": [one.as_row() for one in found],
        "more_sentences": more,
        "figures": {**_figures(snapshot), "appends_per_second": appends_per_second(earlier)},
        "open": open_rows(snapshot),
    }
    return Page("overview.html", "Overview", data)


def _figures(snapshot: ClusterSnapshot) -> dict[str, Any]:
    topics = [topic for topic in snapshot.topics.values() if not topic.info.is_internal]
    return {
        "brokers": len(snapshot.brokers),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        "groups": len(snapshot.groups),
        "transactional_ids": len(snapshot.transactions),
        "open_transactions": sum(one.is_open for one in snapshot.transactions),
        "partitions_held_back": len(snapshot.held_back),
    }


def open_rows(snapshot: ClusterSnapshot, rows_max: int = 20) -> list[dict[str, Any]]:
    """Open transactions, oldest first, each once."""
    opened = [one for one in snapshot.transactions if one.is_open]
    opened.sort(key=lambda one: -(one.age_ms(snapshot.taken_ms) or 0))
    return [
        {
            **one.as_row(snapshot.taken_ms),
            "timeout_ms": one.description.timeout_ms if one.description is not None else None,
        }
        for one in opened[:rows_max]
    ]
