"""Offsets that nobody needs any more go: those of deleted topics, and those that have expired.

A sweep looks at all offsets of a shard, so many at a time, and each part writes its tombstones as one batch. Topics
that are deleted while one is in progress wait for the next.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup
from oncelog.coordinator.group.offsets import CommittedOffset, OffsetStore
from oncelog.coordinator.group.records import group_tombstone, offset_tombstone
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import Outcome
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NULL_UUID, TopicPartition

LOOKS_MAX: Final = 5_000
"""Groups and offsets that are looked at in one part."""
TOMBSTONES_MAX: Final = 500
"""Of one part: a few milliseconds, and well below `message.max.bytes`."""

TopicIds = dict[str, set[uuid.UUID]]


class OffsetSweep:
    def __init__(
        self,
        config: GroupConfig,
        groups: Mapping[str, ClassicGroup],
        offsets: OffsetStore,
        has_in_flight: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._has_in_flight = has_in_flight
        self._deleted: TopicIds = {}
        """Topics that the next sweep is to forget."""
        self._forgetting: TopicIds = {}
        self._groups_left: list[str] | None = None
        """None between two sweeps."""
        self._group_id = ""
        self._partitions_left: list[TopicPartition] = []
        """Of this group, which is no longer among those that are left."""
        self._looks_at_time = False
        self._is_wanted_again = False

    def topics_deleted(self, topics: Iterable[tuple[str, uuid.UUID]]) -> None:
        """The next sweep is to forget the offsets of these."""
        for name, topic_id in topics:
            self._deleted.setdefault(name, {NULL_UUID}).add(topic_id)

    def go_on(self, now_ms: int | None, out: Outcome) -> bool:
        """Begins a sweep or does its next part. False while there is more to do.

        Without a time only the offsets of deleted topics are looked at.
        """
        if self._groups_left is None:
            self._begin(looks_at_time=now_ms is not None)
        elif now_ms is not None and not self._looks_at_time:
            self._is_wanted_again = True  # what is behind it already was not looked at
        part = _Part(out)
        while not part.is_full and self._find_group(part):
            self._sweep_group(part, now_ms)
        if part.is_full:
            return False
        self._groups_left = None
        return not self._deleted and not self._is_wanted_again

    def _begin(self, *, looks_at_time: bool) -> None:
        self._forgetting, self._deleted = self._deleted, {}
        self._looks_at_time, self._is_wanted_again = looks_at_time, False
        self._groups_left = list({**dict.fromkeys(self._groups), **dict.fromkeys(self._offsets.groups())})
        self._partitions_left = []

    def _find_group(self, part: _Part) -> bool:
        """Whether there is one to go on with."""
        if self._partitions_left:
            return True
        if not self._groups_left or not (self._looks_at_time or self._forgetting):
            return False
        self._group_id = self._groups_left.pop()
        self._partitions_left = self._offsets.partitions(self._group_id)
        part.looks_left -= 1
        return True

    def _sweep_group(self, part: _Part, now_ms: int | None) -> None:
        """Expired offsets go, and with its last offset an empty group.

        Never what a transaction may still change: neither an offset that has a pending successor, nor a group that
        has anything pending (KAFKA-19163). And nothing of a group that is being committed to: the tombstone would be
        behind the new offset in the log, and take it back.
        """
        group = self._groups.get(self._group_id)
        may_expire = group is not None and now_ms is not None and not self._has_in_flight(self._group_id)
        gone: set[TopicPartition] = set()
        while self._partitions_left and not part.is_full:
            partition = self._partitions_left.pop()
            part.looks_left -= 1
            goes = self._is_of_deleted_topic(partition)
            if goes:
                part.add_compensation(self._keep_forgetting)
            elif may_expire and group is not None and now_ms is not None:
                goes = self._is_expired(group, partition, now_ms)
            if goes:
                part.out.records.append(offset_tombstone(self._group_id, partition))
                gone.add(partition)
        if self._partitions_left or not may_expire or group is None:
            return
        is_unused = group.state is GroupState.EMPTY and not group.expected_members
        # Tombstones of an earlier part count once they are applied: their batch could have been refused.
        has_more = any(partition not in gone for partition in self._offsets.of_group(self._group_id))
        if is_unused and not has_more and not self._offsets.has_pending(self._group_id):
            part.out.records.append(group_tombstone(self._group_id))
            part.out.notes.append(f"group {self._group_id}: empty, its offsets have expired, removed")

    def _is_of_deleted_topic(self, partition: TopicPartition) -> bool:
        """Offsets that are known to belong to another topic, which had the same name, stay."""
        ids = self._forgetting.get(partition.topic)
        return ids is not None and not ids.isdisjoint(self._offsets.topic_ids(self._group_id, partition))

    def _keep_forgetting(self, _error: ErrorCode, _now_ms: int, _undone: Outcome) -> None:
        for name, ids in self._forgetting.items():
            self._deleted.setdefault(name, set()).update(ids)

    def _is_expired(self, group: ClassicGroup, partition: TopicPartition, now_ms: int) -> bool:
        offset = self._offsets.get(group.group_id, partition)
        if offset is None:
            return False
        unused_since_ms = _unused_since_ms(group, offset)
        if unused_since_ms is None or group.is_subscribed_to(partition.topic):
            return False
        if self._offsets.is_unstable(group.group_id, partition):
            return False
        if offset.expire_timestamp_ms is not None:
            return now_ms >= offset.expire_timestamp_ms
        return now_ms - unused_since_ms >= self._config.offsets_retention_ms


class _Part:
    def __init__(self, out: Outcome) -> None:
        self.out = out
        self.looks_left = LOOKS_MAX
        self._records_max = len(out.records) + TOMBSTONES_MAX

    @property
    def is_full(self) -> bool:
        return self.looks_left <= 0 or len(self.out.records) >= self._records_max

    def add_compensation(self, compensate: Callable[[ErrorCode, int, Outcome], None]) -> None:
        if compensate not in self.out.compensations:
            self.out.compensations.append(compensate)


def _unused_since_ms(group: ClassicGroup, offset: CommittedOffset) -> int | None:
    """When the retention of an offset starts to run; None while the group may still need it.

    A group that only stores offsets, and topics that stable consumers no longer subscribe to: with the last commit.
    A group that had members: when it became empty.
    """
    if group.protocol_type is None:
        return offset.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        return offset.commit_timestamp_ms if group.state_timestamp_ms is None else group.state_timestamp_ms
    if group.state is GroupState.STABLE and group.uses_consumer_protocol and group.topics is not None:
        return offset.commit_timestamp_ms
    return None
