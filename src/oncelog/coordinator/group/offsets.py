"""Committed and pending offsets of the groups of one `__consumer_offsets` partition.

An offset that was committed in a transaction is *pending* until the transaction's marker is in the log: a commit
publishes it, an abort forgets it. While anybody's transaction has a pending offset for a partition, what is committed
there is *unstable*: it may be about to change.

Each offset carries the offset of its own record in the log. A commit marker publishes a pending offset only if its
record is younger than the record of what is committed: a plain commit that was written later wins, before and after
compaction alike.

Everything here is durable state: only `GroupShard.replay` and the transaction markers change it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NULL_UUID, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    """Set only when an old client asked for a retention of its own."""
    topic_id: uuid.UUID = NULL_UUID
    record_offset: int = -1
    """The offset of its record in the log."""


OFFSET_BYTES: Final = 450
"""Memory of an offset and of its place, without its texts."""


def memory_of(topic: str, metadata: str) -> int:
    return OFFSET_BYTES + len(topic) + sys.getsizeof(metadata)


def memory_max(metadata_length: int) -> int:
    """The most that an offset takes whose metadata has this length: a topic's name has up to 249 characters, and a
    character of a text up to four bytes."""
    return memory_of("", "") + 300 + 4 * metadata_length


_NOTHING: Mapping[TopicPartition, CommittedOffset] = MappingProxyType({})


class OffsetStore:
    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """Which producers have something pending, the way `_pending` is asked most: by group and partition."""
        self.held_bytes = 0
        """Memory of all offsets, committed and pending."""

    # Reading

    def get(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._committed.get(group_id, _NOTHING).get(partition)

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._committed.get(group_id, _NOTHING)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        by_partition = self._open.get(group_id)
        return by_partition is not None and partition in by_partition

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def groups_with_pending(self, producer_id: int | None = None) -> set[str]:
        """The groups with pending offsets of one producer, or of all."""
        return set(self._open) if producer_id is None else set(self._pending.get(producer_id, ()))

    def groups(self) -> list[str]:
        """The groups with an offset, committed or pending."""
        return list({**dict.fromkeys(self._committed), **dict.fromkeys(self._open)})

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """The partitions of which the group has an offset, committed or pending."""
        return list({**dict.fromkeys(self.of_group(group_id)), **dict.fromkeys(self._open.get(group_id, ()))})

    def topic_ids(self, group_id: str, partition: TopicPartition) -> set[uuid.UUID]:
        """Of the topics that the offsets of this partition belong to, committed and pending."""
        producers = self._open.get(group_id, {}).get(partition, ())
        found = {self._pending[producer_id][group_id][partition].topic_id for producer_id in producers}
        committed = self.get(group_id, partition)
        return found if committed is None else found | {committed.topic_id}

    # Changing

    def put(self, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        self._replace(self._committed.setdefault(group_id, {}), partition, offset)

    def put_pending(self, producer_id: int, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        self._replace(self._pending.setdefault(producer_id, {}).setdefault(group_id, {}), partition, offset)
        self._open.setdefault(group_id, {}).setdefault(partition, set()).add(producer_id)

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone forgets what is committed and what is pending."""
        self._discard(self._committed, group_id, partition)
        for producer_id in list(self._open.get(group_id, {}).get(partition, ())):
            self._remove_pending(producer_id, group_id, partition)

    def complete(self, producer_id: int, *, commit: bool) -> int:
        """The transaction of this producer has ended. Returns how many offsets were published."""
        published = 0
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            for partition, offset in offsets.items():
                self.held_bytes -= memory_of(partition.topic, offset.metadata)
                self._close(producer_id, group_id, partition)
                if commit and self._is_younger(group_id, partition, offset):
                    self.put(group_id, partition, offset)
                    published += 1
        return published

    def _is_younger(self, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> bool:
        committed = self.get(group_id, partition)
        return committed is None or offset.record_offset > committed.record_offset

    def _remove_pending(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        by_group = self._pending[producer_id]
        self._discard(by_group, group_id, partition)
        if not by_group:
            del self._pending[producer_id]
        self._close(producer_id, group_id, partition)

    def _close(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        by_partition = self._open[group_id]
        producers = by_partition[partition]
        producers.discard(producer_id)
        if not producers:
            del by_partition[partition]
            if not by_partition:
                del self._open[group_id]

    def _replace(
        self, offsets: dict[TopicPartition, CommittedOffset], partition: TopicPartition, offset: CommittedOffset
    ) -> None:
        before = offsets.get(partition)
        if before is None:
            self.held_bytes += memory_of(partition.topic, offset.metadata)
        elif before.metadata != offset.metadata:
            self.held_bytes += sys.getsizeof(offset.metadata) - sys.getsizeof(before.metadata)
        offsets[partition] = offset

    def _discard(
        self, by_group: dict[str, dict[TopicPartition, CommittedOffset]], group_id: str, partition: TopicPartition
    ) -> None:
        offsets = by_group.get(group_id)
        if offsets is None:
            return
        before = offsets.pop(partition, None)
        if before is not None:
            self.held_bytes -= memory_of(partition.topic, before.metadata)
        if not offsets:
            del by_group[group_id]
