"""Positions of a stream in topics, and their JSON.

Offsets have the JSON of Spark's Kafka source: `{"orders": {"0": 12}}`. What a batch of a stream ends with has one entry
more, under a name that no topic can have:

    {"orders": {"0": 12}, "@oncelog": {"first": {"orders": {"0": 5}}, "topicIds": {"orders": "7Vx..."}}}

`first` is where the batch began in partitions that no batch before it has read: all of them in the first batch of a
query. Spark keeps it in its offset log before the batch runs, so that it begins there whenever it is run again.
`topicIds` tell a topic from another one of the same name. Earlier versions wrote neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oncelog.client import IsolationLevel, OffsetSpec, TopicPartition, WorkerClient

Offsets = dict[TopicPartition, int]
"""For each partition the offset to read next: the end of what was read, exclusive."""

LATEST, EARLIEST = OffsetSpec.LATEST.value, OffsetSpec.EARLIEST.value

OWN_ENTRY = "@oncelog"
NOT_STARTED: dict[str, Any] = {OWN_ENTRY: {"notStarted": True}}
"""Where a stream is before its first batch: the plan of that batch decides where it begins, once and for all."""


def list_offsets(client: WorkerClient, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel) -> Offsets:
    """For LATEST the end that this isolation level sees, for EARLIEST the beginning, else the first offset at or after
    a time in milliseconds; -1 where no record is that young."""
    found = client.list_offsets(wanted, isolation=isolation)
    return {partition: result.offset for partition, result in found.items()}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """What Spark keeps of a stream for each batch."""

    ends: Offsets
    first: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def up_to(self, ends: Offsets) -> StreamOffset:
        """With no partition beyond those ends, and none that is not among them."""
        return replace(self, ends={p: min(offset, ends[p]) for p, offset in self.ends.items() if p in ends})

    def to_wire(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self.first:
            own["first"] = to_wire(self.first)
        if self.topic_ids:
            own["topicIds"] = dict(sorted(self.topic_ids.items()))
        return {**to_wire(self.ends), OWN_ENTRY: own} if own else to_wire(self.ends)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> StreamOffset:
        own = wire.get(OWN_ENTRY, {})
        ends = {topic: partitions for topic, partitions in wire.items() if topic != OWN_ENTRY}
        return cls(from_wire(ends), from_wire(own.get("first", {})), own.get("topicIds", {}))


def to_wire(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The nested form Spark stores in its checkpoint, in a stable order."""
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return nested


def from_wire(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def parse_source_offset(text: str) -> StreamOffset | None:
    """Offsets of a source's JSON when they are Kafka's (Spark's `kafka` source, or ours); None for files and others."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    ends = {name: entry for name, entry in value.items() if name != OWN_ENTRY}
    # A pattern that nothing matches yet has no offsets, and is Kafka's all the same.
    return StreamOffset.from_wire(value) if not ends or _is_kafka_shape(ends) else None


def _is_kafka_shape(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(
        isinstance(partitions, dict)
        and all(str(p).isdecimal() and isinstance(o, int) and not isinstance(o, bool) for p, o in partitions.items())
        for partitions in value.values()
    )


def merge(parts: Iterable[Mapping[TopicPartition, int]]) -> Offsets:
    """Offsets of several sources of one query, together. Of a partition that two of them read, the lower one counts."""
    merged: Offsets = {}
    for part in parts:
        for partition, offset in part.items():
            merged[partition] = min(offset, merged.get(partition, offset))
    return merged


def uneven(parts: Iterable[Mapping[TopicPartition, int]]) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that several sources of one query read and have not come equally far in, with all offsets."""
    found: dict[TopicPartition, list[int]] = {}
    for part in parts:
        for partition, offset in part.items():
            found.setdefault(partition, []).append(offset)
    return {partition: tuple(offsets) for partition, offsets in found.items() if len(set(offsets)) > 1}


def parse_user_offsets(text: str, option: str, *, special: Mapping[str, int]) -> Offsets:
    """Per-partition offsets a user wrote as JSON. `special` are the negative numbers allowed, by name."""
    example = '{"orders": {"0": 23, "1": 0}}'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"option {option}: {text!r} is not JSON ({error}); expected something like {example}"
        ) from None
    if not _is_kafka_shape(value):
        raise ValueError(f"option {option}: expected offsets per topic and partition like {example}, not {text!r}")
    offsets = from_wire(value)
    for partition, offset in offsets.items():
        if offset < 0 and offset not in special.values():
            allowed = ", ".join(f"{number} ({name})" for name, number in special.items()) or "none"
            raise ValueError(f"option {option}: {partition} has offset {offset}; negative numbers allowed: {allowed}")
    return offsets
