"""Groups: all of them, and one with its members and how far behind it is, in offsets, in records and in time."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from oncelog.console.page import Console, NotThere, Page, Query, if_readable, paged
from oncelog.console.sentences import progress_of
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.groups import Group, GroupPartition, describe_group
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.visible_records import KnownRecords, VisibleRecords, count_visible

COUNTED_BATCHES_MAX: Final = 500
"""For each partition; a group that is further behind has `at least` so many records to read."""
COUNTED_PARTITIONS_MAX: Final = 20
LISTED_OFFSETS_MAX: Final = 100
"""In the list, records are counted of partitions that have at most so many offsets to read, ..."""
LISTED_PARTITIONS_MAX: Final = 50
"""... and of so many of them on a page."""
COUNTED_S: Final = 60.0
"""What is between a committed and a last stable offset changes by compaction alone."""


def group_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    wanted = query.text("q")
    rows = [one for one in snapshot.groups if wanted in one.listing.group_id]
    order = query.choice("sort", ("name", "lag"))
    if order == "lag":
        rows.sort(key=lambda one: -(one.group.lag if one.group is not None else -1))
    shown, place = paged(rows, query)
    counter = ListCounter(console)
    data = {
        "rows": [
            {
                "group": one.listing.group_id,
                "state": one.listing.state,
                "type": one.listing.group_type,
                "members": len(one.group.description.members) if one.group is not None else None,
                "partitions": len(one.group.partitions) if one.group is not None else None,
                "lag": one.group.lag if one.group is not None else None,
                "to_read": counter.to_read(one.group) if one.group is not None else None,
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


class ListCounter:
    """Counts the records that groups have to read, where that is cheap: a lag may be that of markers alone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._left = LISTED_PARTITIONS_MAX

    def to_read(self, group: Group) -> int | None:
        """None if some of its partitions are too far behind, away, or not to be read, or if too many were counted for
        this page."""
        total = 0
        for one in group.partitions:
            lag, committed, offsets = one.lag, one.committed, one.offsets
            if lag is None or committed is None or offsets is None or lag.visible <= 0:
                continue
            if lag.visible > LISTED_OFFSETS_MAX or self._left == 0 or self._console.is_away:
                return None
            self._left -= 1
            found = if_readable(partial(self._count, one.partition, committed, offsets))
            if found is None:
                return None
            total += found.records
        return total

    def _count(self, partition: TopicPartition, committed: int, offsets: PartitionOffsets) -> VisibleRecords:
        key = ("to read", partition, committed, offsets.last_stable)
        count = partial(count_visible, self._console.admin, partition, committed, offsets)
        return self._console.recent.get(key, count, COUNTED_S)


def _held_back(group: Group) -> int:
    return sum(one.lag.held_back for one in group.partitions if one.lag is not None)


def group(console: Console, query: Query, group_id: str) -> Page:
    snapshot = console.snapshot()
    state = next((one for one in snapshot.groups if one.listing.group_id == group_id), None)
    if state is None:
        raise NotThere(f"There is no group {group_id!r}.", "It may have been deleted, or its offsets have expired.")
    found, visible, not_readable = (
        (state.group, {}, set())
        if console.is_away and state.group is not None
        else console.recent.get(("group", group_id), lambda: _described(console, group_id))
    )
    now_ms = console.now_ms()
    progress = progress_of(group_id, console.watch.state.earlier)
    rows = [_partition_row(one, visible.get(number), now_ms) for number, one in enumerate(found.partitions)]
    to_read = [row["visible_lag"] for row in rows if row["lag"]]
    counted = [count for count in to_read if count is not None]
    data = {
        **found.as_row(),
        "offsets": rows,
        "lag": found.lag,
        "to_read": sum(counted) if counted or not to_read else None,
        "to_read_is_exact": None not in to_read and all(one.is_exact for one in visible.values()),
        "offsets_per_second": round(progress.offsets_per_second, 1) if progress is not None else None,
        "catches_up_in_ms": progress.catches_up_in_ms if progress is not None else None,
        "held_by": [one.as_row(snapshot.taken_ms) for one in snapshot.offsets_held_by(group_id)],
        "not_counted": max(len(found.partitions) - COUNTED_PARTITIONS_MAX, 0),
        "not_readable": sorted(not_readable),
        "can_reset": not found.description.members,
        "topics": sorted({one.partition.topic for one in found.partitions}),
        "command": console.command("group", "describe", group_id),
    }
    return Page("group.html", f"Group {group_id}", data, tables={"offsets": rows, "members": data["members"]})


def _described(console: Console, group_id: str) -> tuple[Group, dict[int, VisibleRecords], set[str]]:
    """The group, what its first partitions have for read_committed readers, by their number in the list, and the topics
    that ACLs do not let be read."""
    found = describe_group(console.admin, group_id)
    topics = console.snapshot().topics
    counted: dict[tuple[Any, ...], KnownRecords] = console.recent.known(("counted", group_id), dict)
    visible, not_readable = {}, set()
    for number, one in enumerate(found.partitions[:COUNTED_PARTITIONS_MAX]):
        if one.offsets is not None and one.committed is not None:
            topic = topics.get(one.partition.topic)
            key = (one.partition, topic.info.topic_id if topic is not None else None)
            known = counted.setdefault(key, KnownRecords())
            count = partial(count_visible, console.admin, one.partition, one.committed, one.offsets)
            records = if_readable(partial(count, batches_max=COUNTED_BATCHES_MAX, known=known))
            if records is not None:
                visible[number] = records
            else:
                not_readable.add(one.partition.topic)
    return found, visible, not_readable


def _partition_row(one: GroupPartition, visible: VisibleRecords | None, now_ms: int) -> dict[str, Any]:
    oldest_ms = visible.oldest_ms if visible is not None else None
    return {
        **one.as_row(),
        "visible_lag": visible.records if visible is not None else None,
        "visible_is_exact": visible.is_exact if visible is not None else None,
        "markers": visible.markers if visible is not None else None,
        "time_lag_ms": max(now_ms - oldest_ms, 0) if oldest_ms is not None and oldest_ms >= 0 else None,
        "note": one.note,
    }
