"""Topics: all of them, one with partitions and settings, its timeline, its producers, its messages."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from oncelog.client.admin import ConfigResource, ConfigSource, ResourceType
from oncelog.client.visibility import IsolationLevel
from oncelog.console import lanes, messages
from oncelog.console.page import BadInput, Console, Page, Query, paged
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition, uuid_to_text
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.positions import PositionKind, find_offsets, parse_position
from oncelog.monitoring.producers import partition_producers, producer_names
from oncelog.monitoring.timeline import Timeline, read_timeline
from oncelog.monitoring.topics import Topic

LANES_PER_PAGE: Final = 8
WINDOW_OFFSETS: Final = 1_000
WINDOW_OFFSETS_MAX: Final = 20_000
EXTENDED: Final = 4
TABLE_ROWS: Final = 25
TIMELINE_BATCHES_MAX: Final = 3_000
PRODUCERS_MAX: Final = 500
ISOLATIONS: Final = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
OFFSET_MAX: Final = (1 << 63) - 1


def topic_list(console: Console, query: Query) -> Page:
    snapshot = console.snapshot()
    wanted, internal = query.text("q"), query.choice("internal", ("no", "yes")) == "yes"
    held = {one.partition.topic for one in snapshot.held_back}
    rows = [
        topic for name, topic in snapshot.topics.items() if wanted in name and (internal or not topic.info.is_internal)
    ]
    shown, place = paged(rows, query)
    data = {
        "rows": [_topic_row(topic, topic.info.name in held) for topic in shown],
        "place": place,
        "q": wanted,
        "internal": internal,
    }
    return Page("topics.html", "Topics", data)


def _topic_row(topic: Topic, is_held: bool) -> dict[str, Any]:
    offsets = [one.offsets for one in topic.partitions if one.offsets is not None]
    return {
        "topic": topic.info.name,
        "internal": topic.info.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "offsets": sum(one.end - one.start for one in offsets),
        "held_back": sum(one.held_back for one in offsets),
        "held": is_held,
        "without_leader": list(topic.without_leader),
        "under_replicated": list(topic.under_replicated),
    }


def topic(console: Console, query: Query, name: str) -> Page:
    found = console.topic(name)
    data = {
        "topic": name,
        "id": uuid_to_text(found.info.topic_id),
        "internal": found.info.is_internal,
        "partitions": [one.as_row() for one in found.partitions],
        "settings": settings_rows(console, ConfigResource(ResourceType.TOPIC, name)),
        "commands": [console.command("topic", "describe", name), console.command("config", "show", "topic", name)],
    }
    return Page("topic.html", f"Topic {name}", data)


def settings_rows(console: Console, resource: ConfigResource) -> list[dict[str, Any]] | None:
    """Those that differ from their defaults first. None: whoever asks may not see them."""
    try:
        entries = console.recent.get(("settings", resource), lambda: console.admin.describe_configs(resource))
    except KafkaError as error:
        if error.code not in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            raise
        return None
    ordered = sorted(entries.values(), key=lambda entry: (entry.is_default, entry.name))
    return [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "sensitive": entry.is_sensitive,
            "source": source_name(entry.source),
            "default": entry.is_default,
        }
        for entry in ordered
    ]


def source_name(source: int) -> str:
    try:
        return ConfigSource(source).name.lower().replace("_", " ")
    except ValueError:
        return f"source {source}"


def timeline(console: Console, query: Query, name: str) -> Page:
    found = console.topic(name)
    led = [one.info.partition for one in found.partitions if one.info.leader >= 0]
    first = query.number("from_partition", 0, 0, 1_000_000)
    shown = [number for number in led if number >= first][:LANES_PER_PAGE]
    axis = query.choice("x", lanes.AXES)
    window = query.number("window", WINDOW_OFFSETS, 10, WINDOW_OFFSETS_MAX)
    before = query.number("before", -1, -1, OFFSET_MAX)
    windows = [_Window(TopicPartition(name, number), str(found.info.topic_id), window, before) for number in shown]
    read = [console.recent.get(one, partial(_read_window, console, one)) for one in windows]
    ids = {span.producer_id for one in read for span in one.spans}
    names = console.recent.get(("names", *sorted(ids)), lambda: producer_names(console.admin, ids))
    now_ms = console.now_ms()
    rows = [lanes.lane_row(one, names, axis, now_ms) for one in read]
    data = {
        "topic": name,
        "axis": axis,
        "window": window,
        "before": before if before >= 0 else None,
        "older": max((one.start for one in read), default=0),
        "partitions": len(found.partitions),
        "from_partition": first,
        "next_partition": shown[-1] + 1 if shown and shown[-1] < max(led) else None,
        "without_leader": list(found.without_leader),
        "table_rows": lanes.BARS_MAX if query.choice("table", ("newest", "all")) == "all" else TABLE_ROWS,
        "lanes": rows,
        "command": console.command("txn", "blocking", name),
    }
    return Page("timeline.html", f"Transactions of {name}", data, live=before < 0)


class _Window(NamedTuple):
    """What is shown of a partition: so many of its last offsets, or of those below `before` if that is not negative."""

    partition: TopicPartition
    topic_id: str
    offsets: int
    before: int


def _read_window(console: Console, window: _Window) -> Timeline:
    offsets = partition_offsets(console.admin, [window.partition])[window.partition]
    is_now = window.before < 0
    end = offsets.end if is_now else min(window.before, offsets.end)
    start = end - window.offsets
    if is_now and end - offsets.last_stable <= EXTENDED * window.offsets:
        # A transaction that holds readers back is shown from its beginning, unless that is too far away.
        start = min(start, offsets.last_stable)
    return read_timeline(
        console.admin,
        window.partition,
        start,
        end,
        batches_max=TIMELINE_BATCHES_MAX,
        known=console.recent.known_batches(window) if is_now else None,
    )


def producers(console: Console, query: Query, name: str) -> Page:
    found = console.topic(name)
    led = [TopicPartition(name, one.info.partition) for one in found.partitions if one.info.leader >= 0]
    shown_partitions, place = paged(led, query)
    rows = console.recent.get(
        ("producers", name, place["page"]), lambda: partition_producers(console.admin, shown_partitions)
    )
    rows = sorted(rows, key=lambda one: (one.producer.transaction_start_offset < 0, -one.producer.last_timestamp_ms))
    data = {
        "topic": name,
        "place": place,
        "left_out": max(len(rows) - PRODUCERS_MAX, 0),
        "rows": [
            {
                "partition": one.partition.partition,
                "transactional_id": one.transactional_id,
                "producer_id": one.producer.producer_id,
                "producer_epoch": one.producer.producer_epoch,
                "last_sequence": one.producer.last_sequence,
                "last_ms": one.producer.last_timestamp_ms if one.producer.last_timestamp_ms >= 0 else None,
                "coordinator_epoch": one.producer.coordinator_epoch,
                "open_from": one.producer.transaction_start_offset
                if one.producer.transaction_start_offset >= 0
                else None,
            }
            for one in rows[:PRODUCERS_MAX]
        ],
    }
    return Page("producers.html", f"Producers of {name}", data)


def message_list(console: Console, query: Query, name: str) -> Page:
    found = console.topic(name)
    partition = console.partition(found, query.number("partition", 0, 0, 1_000_000))
    limit = query.number("limit", 50, 1, messages.ROWS_MAX)
    isolation = query.choice("isolation", tuple(ISOLATIONS))
    text, field = query.text("q"), query.choice("field", messages.FIELDS)
    offsets = partition_offsets(console.admin, [partition])[partition]
    start_text = query.text("start", "latest")
    level = ISOLATIONS[isolation]
    start = _start_offset(console, partition, offsets, start_text, limit, level)
    request = messages.Request(partition, start, limit, level, messages.Needle(text, field) if text else None)
    data = {
        "topic": name,
        "partition": partition.partition,
        "partitions": [one.info.partition for one in found.partitions],
        "isolation": isolation,
        "isolations": list(ISOLATIONS),
        "start_text": start_text,
        "limit": limit,
        "q": text,
        "field": field,
        "fields": list(messages.FIELDS),
        **messages.read_messages(console.admin, request, offsets),
    }
    return Page("messages.html", f"Messages of {name}", data, live=not text and start_text == "latest")


def _start_offset(
    console: Console,
    partition: TopicPartition,
    offsets: PartitionOffsets,
    text: str,
    limit: int,
    isolation: IsolationLevel,
) -> int:
    """`latest` means the last offsets, as many as rows are wanted."""
    try:
        position = parse_position(text, console.now_ms())
    except (ValueError, OverflowError) as error:
        advice = "Write earliest, latest, an offset, or a time such as 2026-01-31T12:00."
        raise BadInput(f"start: {error}", advice) from None
    end = offsets.limit(isolation)
    if position.kind is PositionKind.LATEST:
        return end - limit
    if position.kind is PositionKind.RELATIVE:
        return (end if position.number < 0 else offsets.start) + position.number
    return find_offsets(console.admin, position, {partition: offsets}, {partition: end})[partition]
