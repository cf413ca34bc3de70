"""Topics: all of them, one with partitions and settings, its timeline, its producers, its messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any, Final, NamedTuple

from oncelog.client.admin import ConfigResource, ConfigSource, ResourceType
from oncelog.client.consumer_config import ISOLATION
from oncelog.client.visibility import IsolationLevel
from oncelog.console import lanes, messages
from oncelog.console.export import FORMATS
from oncelog.console.page import BadInput, Console, NotThere, Page, Query, paged
from oncelog.console.record import find_record, record_row
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition, uuid_to_text
from oncelog.monitoring.brokers import log_directories
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.positions import OFFSET_MAX, PositionKind, find_offsets, parse_position
from oncelog.monitoring.producers import partition_producers, producer_names
from oncelog.monitoring.timeline import KnownBatches, Timeline, read_timeline
from oncelog.monitoring.topics import Topic, led_partitions

LANES_PER_PAGE: Final = 8
WINDOW_OFFSETS: Final = 1_000
WINDOW_OFFSETS_MAX: Final = 20_000
EXTENDED: Final = 4
TABLE_ROWS: Final = 25
TIMELINE_BATCHES_MAX: Final = 3_000
NAMES_S: Final = 30.0
"""Who writes in a transaction has its id already, and keeps it."""
PRODUCERS_MAX: Final = 500
SIZED_PARTITIONS_MAX: Final = 1_000
EVERYWHERE: Final = "all"
_RESUME: Final = re.compile(r"(\d{1,9}):(\d{1,18})")
_TAG: Final = re.compile(r"</?[a-zA-Z][^<>]*>")


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
    sizes = {} if console.is_away else console.recent.get(("sizes", name), lambda: _sizes(console, found))
    data: dict[str, Any] = {
        "topic": name,
        "id": uuid_to_text(found.info.topic_id),
        "internal": found.info.is_internal,
        "partitions": [
            {**one.as_row(), "bytes": sizes.get(TopicPartition(name, one.info.partition))} for one in found.partitions
        ],
        "settings": settings_rows(console, ConfigResource(ResourceType.TOPIC, name)),
        "away": console.is_away,
        "commands": [console.command("topic", "describe", name), console.command("config", "show", "topic", name)],
    }
    tables = {"partitions": data["partitions"], "settings": data["settings"] or []}
    return Page("topic.html", f"Topic {name}", data, tables=tables)


def _sizes(console: Console, topic: Topic) -> dict[TopicPartition, int]:
    """Bytes of the largest replica of each partition; none where brokers do not tell."""
    places = [TopicPartition(topic.info.name, one.info.partition) for one in topic.partitions[:SIZED_PARTITIONS_MAX]]
    sizes: dict[TopicPartition, int] = {}
    for directory in log_directories(console.admin, places):
        for place, size in directory.partition_bytes.items():
            sizes[place] = max(sizes.get(place, 0), size)
    return sizes


def settings_rows(console: Console, resource: ConfigResource) -> list[dict[str, Any]] | None:
    """Those that differ from their defaults first. None: whoever asks may not see them, or the cluster is away."""
    if console.is_away:
        return None
    try:
        entries = console.recent.get(
            ("settings", resource), lambda: console.admin.describe_configs(resource, documentation=True)
        )
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
            "meaning": plain_text(entry.documentation) if entry.documentation else None,
        }
        for entry in ordered
    ]


def plain_text(documentation: str) -> str:
    """Apache Kafka describes its settings in HTML."""
    return unescape(" ".join(_TAG.sub(" ", documentation).split()))


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
    windows = [Window(TopicPartition(name, number), str(found.info.topic_id), window, before) for number in shown]
    read = read_windows(console, windows)
    ids = {span.producer_id for one in read for span in one.spans}
    names = console.recent.get(("names", *sorted(ids)), lambda: producer_names(console.admin, ids), NAMES_S)
    now_ms = console.now_ms()
    scale = query.choice("scale", ("own", "common"))
    common = lanes.common_scale(read, axis, now_ms) if scale == "common" else None
    rows = [lanes.lane_row(one, names, axis, now_ms, common) for one in read]
    sort = query.choice("sort", tuple(lanes.SORTS))
    for row in rows:
        row["table"] = lanes.table_order(row["bars"], sort)
    data = {
        "topic": name,
        "axis": axis,
        "scale": scale,
        "sort": sort,
        "sorts": list(lanes.SORTS),
        "window": window,
        "before": before if before >= 0 else None,
        "older": max((one.start for one in read), default=0),
        "partitions": len(found.partitions),
        "from_partition": first,
        "next_partition": shown[-1] + 1 if shown and shown[-1] < max(led) else None,
        "without_leader": list(found.without_leader),
        "table_rows": lanes.BARS_MAX if query.choice("table", ("newest", "all")) == "all" else TABLE_ROWS,
        "batches_max": TIMELINE_BATCHES_MAX,
        "lanes": rows,
        "command": console.command("txn", "blocking", name),
    }
    drawn = {"x", "width", "y", "marker_x"}
    table = [
        {"partition": row["partition"], **{field: bar[field] for field in bar if field not in drawn}}
        for row in rows
        for bar in row["bars"]
    ]
    return Page("timeline.html", f"Transactions of {name}", data, live=before < 0, tables={"transactions": table})


class Window(NamedTuple):
    """What is shown of a partition: so many of its last offsets, or of those below `before` if that is not negative."""

    partition: TopicPartition
    topic_id: str
    offsets: int
    before: int


def read_windows(console: Console, windows: Sequence[Window]) -> list[Timeline]:
    """Windows of several partitions. The offsets of all of them take one request."""
    places = [one.partition for one in windows]
    offsets = console.recent.get(("offsets", *places), lambda: partition_offsets(console.admin, places))
    return [console.recent.get(one, partial(_read_window, console, one, offsets[one.partition])) for one in windows]


def _read_window(console: Console, window: Window, offsets: PartitionOffsets) -> Timeline:
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
        newest=True,
        offsets=offsets,
        known=console.recent.known(window, KnownBatches) if is_now else None,
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
                "last_sequence": known(one.producer.last_sequence),
                "last_ms": known(one.producer.last_timestamp_ms),
                "coordinator_epoch": known(one.producer.coordinator_epoch),
                "open_from": known(one.producer.transaction_start_offset),
            }
            for one in rows[:PRODUCERS_MAX]
        ],
    }
    return Page("producers.html", f"Producers of {name}", data)


def known(number: int) -> int | None:
    """Kafka says -1 for what a partition does not know of a producer."""
    return number if number >= 0 else None


def message_list(console: Console, query: Query, name: str) -> Page:
    found = console.topic(name)
    text, start_text = query.text("q"), query.word("start", "latest")
    limit = query.number("limit", 50, 1, messages.ROWS_MAX)
    isolations = sorted(ISOLATION)  # the first is read unless the address says otherwise: committed records
    isolation, view = query.choice("isolation", isolations), query.choice("view", ("all", "keys"))
    field = query.choice("field", messages.FIELDS)
    is_everywhere = query.word("partition") == EVERYWHERE
    if is_everywhere and (not text or view == "keys"):
        raise BadInput("All partitions together are for searching.", "Write what to search for, or choose a partition.")
    number = 0 if is_everywhere else query.number("partition", 0, 0, 1_000_000)
    partitions = led_partitions([found.info]) if is_everywhere else [console.partition(found, number)]
    whole = query.word("format") in FORMATS
    request = messages.Request(
        partitions[0] if partitions else TopicPartition(name, 0),
        0,
        limit,
        ISOLATION[isolation],
        messages.Needle(text, field) if text else None,
        view == "keys",
        console.contents(name),
        whole,
    )
    read = (
        _search_everywhere(console, query, request, partitions, start_text)
        if is_everywhere
        else _read_one(console, request, start_text)
    )
    _name_producers(console, read.data["rows"])
    data = {
        "topic": name,
        "partition": None if is_everywhere else number,
        "partitions": [one.info.partition for one in found.partitions],
        "isolation": isolation,
        "isolations": isolations,
        "start_text": start_text,
        "limit": limit,
        "q": text,
        "field": field,
        "fields": list(messages.FIELDS),
        "view": view,
        **read.data,
    }
    lines = [messages.line_of(record) for record in read.records] if whole else None
    is_live = not text and start_text == "latest"
    return Page("messages.html", f"Messages of {name}", data, live=is_live, lines=lines)


def _read_one(console: Console, request: messages.Request, start_text: str) -> messages.Read:
    place = request.partition
    offsets = partition_offsets(console.admin, [place])
    back = messages.KEY_OFFSETS if request.by_key else request.rows
    start = _start_offsets(console, offsets, start_text, back, request.isolation)[place]
    with console.scan():
        return messages.read_messages(console.admin, replace(request, start=start), offsets[place])


def _search_everywhere(
    console: Console, query: Query, request: messages.Request, partitions: list[TopicPartition], start_text: str
) -> messages.Read:
    """All partitions from `start` on or, with `resume`, from where an earlier search has stopped."""
    resume = query.word("resume")
    match = _RESUME.fullmatch(resume)
    if resume and match is None:
        raise BadInput(f"resume is a partition and an offset, such as 2:1500, not {resume!r}")
    first, at = (int(match[1]), int(match[2])) if match is not None else (0, None)
    places = [place for place in partitions if place.partition >= first]
    if not places:
        raise NotThere(f"No partition of {request.partition.topic} from {first} on has a leader.")
    offsets = partition_offsets(console.admin, places)
    starts = _start_offsets(console, offsets, start_text, request.rows, request.isolation)
    if at is not None and places[0].partition == first:
        starts[places[0]] = at
    requests = [replace(request, partition=place, start=starts[place]) for place in places]
    with console.scan():
        return messages.search_partitions(console.admin, requests, offsets)


def _name_producers(console: Console, rows: list[dict[str, Any]]) -> None:
    """Rows of transactions get the transactional id, as far as coordinators know it."""
    ids = {row["producer_id"] for row in rows if row["outcome"] not in (None, "none")}
    names = console.recent.get(("names", *sorted(ids)), lambda: producer_names(console.admin, ids), NAMES_S)
    for row in rows:
        row["transactional_id"] = names.get(row["producer_id"])


def message(console: Console, query: Query, name: str, partition: int, offset: int) -> Page:
    place = console.partition(console.topic(name), partition)
    offsets = partition_offsets(console.admin, [place])[place]
    if not offsets.start <= offset < offsets.end:
        raise NotThere(f"{place} has offsets {offsets.start:,} to {offsets.end:,}, and not {offset:,}.")
    with console.scan():
        found = find_record(console.admin, place, offset, console.contents(name))
    if found is None:
        raise NotThere(f"{place} has no record at offset {offset:,} any more.", "Compaction leaves gaps.")
    part = query.choice("download", ("", "key", "value"))
    if part and found.raw is not None:
        contents = found.raw.key if part == "key" else found.raw.value
        return Page("message.html", "", {}, download=(f"{part}.bin", contents or b""))
    producer_id = found.header.producer_id
    names = producer_names(console.admin, {producer_id}) if producer_id >= 0 else {}
    data = {
        "topic": name,
        "partition": partition,
        "transactional_id": names.get(producer_id),
        "log_start": offsets.start,
        "end": offsets.end,
        **record_row(console.admin, found, place, offsets),
    }
    return Page("message.html", f"Offset {offset} of {place}", data, live=False)


def _start_offsets(
    console: Console,
    offsets: Mapping[TopicPartition, PartitionOffsets],
    text: str,
    back: int,
    isolation: IsolationLevel,
) -> dict[TopicPartition, int]:
    """`latest` means the last offsets, `back` of them."""
    try:
        position = parse_position(text, console.now_ms())
    except (ValueError, OverflowError) as error:
        advice = "Write earliest, latest, an offset, or a time such as 2026-01-31T12:00."
        raise BadInput(f"start: {error}", advice) from None
    ends = {place: found.limit(isolation) for place, found in offsets.items()}
    if position.kind is PositionKind.LATEST:
        return {place: end - back for place, end in ends.items()}
    if position.kind is PositionKind.RELATIVE:
        bases = ends if position.number < 0 else {place: found.start for place, found in offsets.items()}
        return {place: base + position.number for place, base in bases.items()}
    return find_offsets(console.admin, position, offsets, ends)
