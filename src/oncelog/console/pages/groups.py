"""Groups: all of them, and one with its members and how far behind it is, in offsets, in records and in time."""

from __future__ import annotations

from typing import Any, Final

from oncelog.console.page import Console, NotThere, Page, Query, paged
from oncelog.monitoring.groups import Group, GroupPartition, describe_group
from oncelog.monitoring.timeline import VisibleRecords, count_visible

COUNTED_BATCHES_MAX: Final = 500
"""For each partition; a group that is further behind has `at least` so many records to read."""
COUNTED_PARTITIONS_MAX: Final = 20


def group_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    wanted = query.text("q")
    rows = [one for one in snapshot.groups if wanted in one.listing.group_id]
    order = query.choice("sort", ("name", "lag"))
    if order == "lag":
        rows.sort(key=lambda one: -(one.group.lag if one.group is not None else -1))
    shown, place = paged(rows, query)
    data = {
        "rows": [
            {
                "group": one.listing.group_id,
                "state": one.listing.state,
                "type": one.listing.group_type,
                "members": len(one.group.description.members) if one.group is not None else None,
                "partitions": len(one.group.partitions) if one.group is not None else None,
                "lag": one.group.lag if one.group is not None else None,
                "held_back": _held_back(one.group) if one.group is not None else None,
                "described_ms": one.described_ms,
            }
            for one in shown
        ],
        "place": place,
        "q": wanted,
        "sort": order,
    }
    return Page("groups.html", "Groups", data)


def _held_back(group: Group) -> int:
    return sum(one.lag.held_back for one in group.partitions if one.lag is not None)


def group(console: Console, query: Query, group_id: str) -> Page:
    snapshot = console.snapshot()
    if all(one.listing.group_id != group_id for one in snapshot.groups):
        raise NotThere(f"There is no group {group_id!r}.", "It may have been deleted, or its offsets have expired.")
    found, visible = console.recent.get(("group", group_id), lambda: _described(console, group_id))
    now_ms = console.now_ms()
    data = {
        **found.as_row(),
        "offsets": [_partition_row(one, visible.get(number), now_ms) for number, one in enumerate(found.partitions)],
        "lag": found.lag,
        "held_by": [one.as_row(snapshot.taken_ms) for one in snapshot.offsets_held_by(group_id)],
        "not_counted": max(len(found.partitions) - COUNTED_PARTITIONS_MAX, 0),
        "can_reset": not found.description.members,
        "topics": sorted({one.partition.topic for one in found.partitions}),
        "command": console.command("group", "describe", group_id),
    }
    return Page("group.html", f"Group {group_id}", data)


def _described(console: Console, group_id: str) -> tuple[Group, dict[int, VisibleRecords]]:
    """The group, and what its first partitions have for read_committed readers, by their number in the list."""
    found = describe_group(console.admin, group_id)
    visible = {}
    for number, one in enumerate(found.partitions[:COUNTED_PARTITIONS_MAX]):
        if one.offsets is not None and one.committed is not None:
            visible[number] = count_visible(
                console.admin, one.partition, one.committed, one.offsets, batches_max=COUNTED_BATCHES_MAX
            )
    return found, visible


def _partition_row(one: GroupPartition, visible: VisibleRecords | None, now_ms: int) -> dict[str, Any]:
    oldest_ms = visible.oldest_ms if visible is not None else None
    return {
        **one.as_row(),
        "visible_lag": visible.records if visible is not None else None,
        "visible_is_exact": visible.is_exact if visible is not None else None,
        "time_lag_ms": max(now_ms - oldest_ms, 0) if oldest_ms is not None and oldest_ms >= 0 else None,
        "note": one.note,
    }
