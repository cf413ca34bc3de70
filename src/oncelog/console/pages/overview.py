"""The first page: what needs attention, in sentences, and a few figures."""

from __future__ import annotations

from typing import Any, Final

from oncelog.console.page import Console, Page, Query
from oncelog.console.pages.brokers import disks_if_few
from oncelog.console.sentences import appends_per_second, sentences
from oncelog.monitoring.snapshot import ClusterSnapshot

OPEN_MAX: Final = 20
"""Open transactions that are shown."""


def overview(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    earlier = console.watch.state.earlier
    found, more = sentences(snapshot, earlier, console.settings.hanging_after_ms)
    data: dict[str, Any] = {
        "sentences": [one.as_row() for one in found],
        "more_sentences": more,
        "figures": {
            **_figures(snapshot),
            "appends_per_second": appends_per_second(earlier),
            "stored_bytes": _stored_bytes(console),
        },
        "rates": snapshot.rates.as_row() if snapshot.rates is not None else None,
        "open": open_rows(snapshot),
    }
    tables = {"sentences": data["sentences"], "open transactions": data["open"]}
    return Page("overview.html", "Overview", data, tables=tables)


def _stored_bytes(console: Console) -> int | None:
    """None if brokers do not tell, or if it would take long to find out: the page of a broker asks in any case."""
    found = disks_if_few(console)
    return sum(one.stored_bytes for one in found) if found else None


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


def open_rows(snapshot: ClusterSnapshot) -> list[dict[str, Any]]:
    """Open transactions, oldest first, each once."""
    opened = [one for one in snapshot.transactions if one.is_open]
    opened.sort(key=lambda one: -(one.age_ms(snapshot.taken_ms) or 0))
    return [
        {
            **one.as_row(snapshot.taken_ms),
            "timeout_ms": one.description.timeout_ms if one.description is not None else None,
        }
        for one in opened[:OPEN_MAX]
    ]
