"""`GroupShard`: all groups of one partition of `__consumer_offsets`, as a pure state machine.

`coordinator.outcome` has the contract with the shell. What lives in memory only are parked requests, timers and the
members of a round in progress. Offsets, and what the log remembers of groups, change in `replay` and `replay_marker`
alone. `state` has the theory of groups, `offsets` that of pending offsets.

A shard starts out loading: the shell replays the partition from its first record and calls `loaded`. From then on
requests go to its parts: `joining`, `membership` and `commits`. `unload` ends its life.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.commits import OffsetCommits
from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup
from oncelog.coordinator.group.joining import Joining
from oncelog.coordinator.group.membership import Membership
from oncelog.coordinator.group.offset_sweep import OffsetSweep
from oncelog.coordinator.group.offsets import OffsetStore
from oncelog.coordinator.group.rebalance import Rebalancer
from oncelog.coordinator.group.records import GroupRecord, OffsetRecord, SkippedRecord, decode, group_tombstone
from oncelog.coordinator.group.responses import not_committed
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.group.timers import TimerKey, TimerKind, TimerQueue
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, Replayed, Reply, ReplyHandle
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_PRODUCER_ID, NO_TIMESTAMP
from oncelog.core.invariant import invariant
from oncelog.protocol.messages.delete_groups import DeletableGroupResult
from oncelog.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from oncelog.protocol.messages.group_metadata_log import GroupMetadataValue
from oncelog.protocol.messages.list_groups import ListedGroup

GROUP_TYPE_CLASSIC: Final = "classic"
_CLEAN_UP = TimerKey(TimerKind.CLEAN_UP)
_CLEAN_UP_PAUSE_MS: Final = 100
"""Between two parts of one clean-up, so that a log that refuses them is not asked without end."""
OFFSETS_DELETED_AT_ONCE_MAX: Final = 500
"""With their group: a few milliseconds."""


class GroupShard:
    def __init__(self, config: GroupConfig, *, new_member_suffix: Callable[[], str]) -> None:
        """`new_member_suffix` makes member ids unique: a fresh random UUID as text on every call."""
        self._config = config
        self.is_loaded = False
        self.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._groups: dict[str, ClassicGroup] = {}
        self._logged: dict[str, GroupMetadataValue | None] = {}
        """The last record of each group in the log; None for a group that is known by its offsets only."""
        self._offsets = OffsetStore()
        self._timers = TimerQueue()
        self._rebalancer = Rebalancer(config, self._timers)
        self.joining = Joining(config, self._groups, self._logged, self._rebalancer, new_member_suffix)
        self.membership = Membership(self._groups, self._rebalancer)
        self.commits = OffsetCommits(config, self._groups, self._offsets, self._rebalancer)
        self._sweep = OffsetSweep(config, self._groups, self._offsets, self.commits.has_in_flight)

    # Durable state

    def replay(
        self,
        record: CoordinatorRecord,
        *,
        offset: int,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        written_ms: int = NO_TIMESTAMP,
    ) -> Replayed[Reply]:
        """Apply a committed record of the partition, at load or just written."""
        decoded = decode(record.key, record.value, offset, written_ms)
        if isinstance(decoded, SkippedRecord):
            return Replayed(warning=decoded.warning)
        if isinstance(decoded, GroupRecord):
            return Replayed(effects=self._replay_group(decoded, now_ms))
        self._replay_offset(decoded, producer_id)
        return Replayed()

    def replay_marker(self, producer_id: int, *, commit: bool) -> Replayed[Reply]:
        """The epoch does not matter here: the log took the marker, and a producer has one transaction at a time."""
        touched = self._offsets.groups_with_pending(producer_id)
        self._offsets.complete(producer_id, commit=commit)
        for group_id in touched:
            if self._offsets.of_group(group_id):
                self._logged.setdefault(group_id, None)
            self._forget_unlogged(group_id)
        return Replayed()

    def _replay_offset(self, record: OffsetRecord, producer_id: int) -> None:
        """Any record of an offset makes its group known, also a tombstone: after compaction it may be all that is left.
        A group without offsets exists until its own tombstone, which the next clean-up writes.

        A record in a transaction makes its group known when the transaction is committed.
        """
        group_id, partition = record.group_id, record.partition
        if self.is_loaded and record.offset is not None:
            self.commits.landed(group_id, 1)
        if producer_id == NO_PRODUCER_ID:
            self._logged.setdefault(group_id, None)
        if self.is_loaded and group_id not in self._groups:
            self._groups[group_id] = ClassicGroup.loaded(group_id, self._logged.get(group_id))
        if record.offset is None:
            self._offsets.remove(group_id, partition)
        elif producer_id == NO_PRODUCER_ID:
            self._offsets.put(group_id, partition, record.offset)
        else:
            self._offsets.put_pending(producer_id, group_id, partition, record.offset)

    def _forget_unlogged(self, group_id: str) -> None:
        """A group that was known by pending offsets only ends with them."""
        group = self._groups.get(group_id)
        if group is None or group_id in self._logged or self._offsets.has_pending(group_id):
            return
        if group.state is GroupState.EMPTY and not group.expected_members:
            self._remove_live(group_id)

    def _replay_group(self, record: GroupRecord, now_ms: int) -> tuple[Reply, ...]:
        if record.metadata is None:
            self._logged.pop(record.group_id, None)
            self._remove_live(record.group_id)
            return ()
        self._logged[record.group_id] = record.metadata
        group = self._groups.get(record.group_id)
        return () if group is None else self.membership.adopt(group, record.metadata, now_ms)

    def _remove_live(self, group_id: str) -> None:
        """Remove a group from memory, unless a member has joined since its tombstone was decided."""
        group = self._groups.get(group_id)
        if group is not None and group.state is GroupState.EMPTY:
            del self._groups[group_id]
            self._rebalancer.forget_group(group)

    # Life cycle

    def loaded(self, now_ms: int) -> Outcome:
        """The partition has been replayed to its end: bring the groups to life."""
        invariant(not self.is_loaded, "a shard is loaded once")
        self.is_loaded = True
        out = Outcome()
        for group_id in (*self._logged, *self._offsets.groups_with_pending() - self._logged.keys()):
            group = self._groups[group_id] = ClassicGroup.loaded(group_id, self._logged.get(group_id))
            for member in group.members.values():
                self._rebalancer.keep_alive(group, member, now_ms)
            if len(group.members) > self._config.max_size:
                reason = f"{len(group.members)} members are more than group.max.size={self._config.max_size}"
                self._rebalancer.prepare(group, reason, now_ms, out)
        self._timers.schedule(_CLEAN_UP, now_ms + self._config.offsets_retention_check_interval_ms)
        return out

    def unload(self) -> Outcome:
        """Another broker takes over: waiting requests get NOT_COORDINATOR."""
        out = Outcome()
        for group in self._groups.values():
            for member_id in group.members:
                self._rebalancer.release(group, member_id, ErrorCode.NOT_COORDINATOR, member_id, out)
            self._rebalancer.forget_group(group)
        self._groups.clear()
        self._timers.cancel(_CLEAN_UP)
        self.is_loaded = False
        return out

    def append_failed(self, outcome: Outcome, error: ErrorCode, reason: str, now_ms: int) -> Outcome:
        code = error_for_failed_append(error)
        out = Outcome(replies=[Reply(reply.reply_to, not_committed(reply.response, code)) for reply in outcome.replies])
        if self.is_loaded:
            for compensate in reversed(outcome.compensations):
                compensate(code, now_ms, out)
        return out

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next."""
        return self._timers.next_deadline_ms()

    def tick(self, now_ms: int, wall_ms: int | None = None) -> Outcome:
        """Let every timer run that is due. Offsets expire by the earlier of both times."""
        out = Outcome()
        while (key := self._timers.pop_due(now_ms)) is not None:
            if key.kind is TimerKind.CLEAN_UP:
                self._clean_up(now_ms, now_ms if wall_ms is None else wall_ms, out)
                continue
            group = self._groups.get(key.group_id)
            if group is None:
                continue
            if key.kind is TimerKind.SESSION:
                self._rebalancer.session_expired(group, key.member_id, now_ms, out)
            elif key.kind is TimerKind.JOIN:
                self._rebalancer.join_expired(group, now_ms, out)
            else:
                self._rebalancer.sync_expired(group, now_ms, out)
        return out

    def _clean_up(self, now_ms: int, wall_ms: int, out: Outcome) -> None:
        is_done = self._sweep.go_on(min(now_ms, wall_ms), out)
        pause_ms = self._config.offsets_retention_check_interval_ms if is_done else _CLEAN_UP_PAUSE_MS
        self._timers.schedule(_CLEAN_UP, now_ms + pause_ms)

    # Administration

    def topics_deleted(self, topics: Iterable[tuple[str, uuid.UUID]]) -> Outcome:
        """Forget the offsets of deleted topics."""
        out = Outcome()
        self._sweep.topics_deleted(topics)
        if not self._sweep.go_on(None, out):
            self._timers.schedule(_CLEAN_UP, 0)
        return out

    def delete_group(self, group_id: str, reply: ReplyHandle) -> Outcome:
        """The answer of a group with many offsets is None, when some of them are gone: the shell calls it again, and
        lets nothing else be done to the group meanwhile."""
        out = Outcome()
        error = self._check_delete(group_id)
        if not error:
            out.records.extend(self.commits.tombstones_of_group(group_id, OFFSETS_DELETED_AT_ONCE_MAX))
            if len(out.records) < len(self._offsets.of_group(group_id)):
                return out.reply(reply, None)
            out.records.append(group_tombstone(group_id))
            out.notes.append(f"group {group_id}: deleted")
        return out.reply(reply, DeletableGroupResult(group_id=group_id, error_code=error))

    def _check_delete(self, group_id: str) -> ErrorCode:
        """Kafka deletes pending offsets along with a group; here a group with an open transaction is not empty, nor one
        that is being committed to."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_used = self._offsets.has_pending(group_id) or self.commits.has_in_flight(group_id)
        if group.state is not GroupState.EMPTY or is_used:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    def describe_group(self, group_id: str) -> DescribedGroup:
        """An unknown group is Dead with GROUP_ID_NOT_FOUND."""
        group = self._groups.get(group_id)
        if group is None or not self._is_in_log(group_id):
            return DescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
                group_state=GroupState.DEAD.value,
            )
        name = (group.protocol_name or "") if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=name or "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=b"" if name is None else member.metadata(name),
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    @property
    def group_count(self) -> int:
        return len(self._groups)

    def knows(self, group_id: str) -> bool:
        return group_id in self._groups

    def held_bytes(self) -> int:
        """Ids of the groups, and their members."""
        total_bytes = sum(map(len, self._groups))
        for group in self._groups.values():
            if group.members or group.expected_members:
                total_bytes += group.held_bytes
        return total_bytes

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """Filters ignore case; an empty filter lets everything through, an unknown name nothing."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {group_type.strip().lower() for group_type in types}
        if wanted_types and GROUP_TYPE_CLASSIC not in wanted_types:
            return []
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=GROUP_TYPE_CLASSIC,
            )
            for group in self._groups.values()
            if (not wanted_states or group.state.value.lower() in wanted_states) and self._is_in_log(group.group_id)
        ]

    def _is_in_log(self, group_id: str) -> bool:
        """Another coordinator would not know a new group whose first record is not committed: it is not shown yet."""
        return group_id in self._logged or self._offsets.has_pending(group_id)
