"""A shell for a `GroupShard` as small as can be: a list for a log, appends that commit at once or fail on demand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.group.requests import (
    DeleteGroupsResult,
    HeartbeatRequest,
    HeartbeatResult,
    JoinProtocol,
    JoinRequest,
    JoinResult,
    LeaveRequest,
    LeaveResult,
    LeavingMember,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetDeleteRequest,
    OffsetDeleteResult,
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionToFetch,
    SyncRequest,
    SyncResult,
    TxnOffsetCommitRequest,
)
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, Reply
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_PRODUCER_ID, TopicPartition
from oncelog.protocol.compiler import encode_versioned
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

T = TypeVar("T")

START_MS = 1_700_000_000_000
GROUP = "g1"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
QUICK = GroupConfig(initial_rebalance_delay_ms=0)


def subscription(*topics: str, version: int = 1) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), version)


RANGE = (JoinProtocol("range", subscription("in")),)


class Pending(list[T]):
    """The answers to one request: none while it is parked, one when it is answered; more would be a fault."""

    @property
    def answer(self) -> T:
        assert len(self) == 1, f"expected one answer, there are {len(self)}"
        return self[0]

    @property
    def is_parked(self) -> bool:
        return not self


@dataclass
class LogEntry:
    key: bytes | None
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID
    commit: bool = False
    """Of a transaction marker, which has no key here."""


@dataclass
class Shell:
    config: GroupConfig = QUICK
    now_ms: int = START_MS
    log: list[LogEntry] = field(default_factory=list)
    failure: ErrorCode | None = None
    """The error that the next append answers."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._suffixes = itertools.count()
        self.shard = self.load()

    def load(self, config: GroupConfig | None = None) -> GroupShard:
        """A new shard, replayed from the log."""
        shard = GroupShard(config or self.config, new_member_suffix=lambda: f"id{next(self._suffixes)}")
        for offset, entry in enumerate(self.log):
            if entry.key is None:
                shard.replay_marker(entry.producer_id, commit=entry.commit)
            else:
                record = CoordinatorRecord(entry.key, entry.value)
                replayed = shard.replay(record, offset=offset, producer_id=entry.producer_id, now_ms=self.now_ms)
                assert replayed.warning is None
        shard.loaded(self.now_ms)
        return shard

    def restart(self, config: GroupConfig | None = None) -> None:
        self.shard = self.load(config)

    def run(self, outcome: Outcome) -> None:
        if outcome.records and self.failure is not None:
            error, self.failure = self.failure, None
            self.run(self.shard.append_failed(outcome, error, "refused", self.now_ms))
            return
        self.notes += outcome.notes
        effects = self._append(outcome)
        for reply_to, response in (*outcome.replies, *effects):
            reply_to(response)

    def _append(self, outcome: Outcome) -> list[Reply]:
        """Committed at once."""
        producer_id = NO_PRODUCER_ID if outcome.producer is None else outcome.producer.producer_id
        effects: list[Reply] = []
        for record in outcome.records:
            self.log.append(LogEntry(record.key, record.value, producer_id))
            offset = len(self.log) - 1
            effects += self.shard.replay(record, offset=offset, producer_id=producer_id, now_ms=self.now_ms).effects
        return effects

    def marker(self, producer_id: int, *, commit: bool) -> None:
        self.log.append(LogEntry(None, None, producer_id, commit))
        self.shard.replay_marker(producer_id, commit=commit)

    def advance(self, delta_ms: int) -> None:
        """Let time pass, ticking at every deadline on the way."""
        target_ms = self.now_ms + delta_ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= target_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.run(self.shard.tick(self.now_ms))
        self.now_ms = target_ms

    def ask(self, operation: Callable[..., Outcome], *arguments: Any) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        self.run(operation(*arguments[:1], pending.append, *arguments[1:]))
        return pending

    # --- requests ------------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", instance_id: str | None = None, **fields: Any) -> Pending[JoinResult]:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "requires_known_member_id": False,
        }
        request = JoinRequest(**(values | fields), member_id=member_id, group_instance_id=instance_id)
        return self.ask(self.shard.join, request, self.now_ms)

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Pending[SyncResult]:
        values: dict[str, Any] = {"group_id": GROUP, "assignments": assignments or {}} | fields
        request = SyncRequest(member_id=member_id, generation_id=generation_id, **values)
        return self.ask(self.shard.sync, request, self.now_ms)

    def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation_id, group_instance_id=instance_id
        )
        result: HeartbeatResult = self.ask(self.shard.heartbeat, request, self.now_ms).answer
        return result.error

    def leave(self, *members: LeavingMember | str) -> LeaveResult:
        leaving = tuple(LeavingMember(member) if isinstance(member, str) else member for member in members)
        result: LeaveResult = self.ask(
            self.shard.leave, LeaveRequest(group_id=GROUP, members=leaving), self.now_ms
        ).answer
        return result

    def commit(
        self,
        offset: int = 1,
        *,
        topic: str = "in",
        partition: int = 0,
        group_id: str = GROUP,
        generation_id: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        **fields: Any,
    ) -> ErrorCode:
        entry = {key: fields.pop(key) for key in ("metadata", "topic_id", "leader_epoch") if key in fields}
        request = OffsetCommitRequest(
            group_id=group_id,
            offsets=(OffsetToCommit(topic, partition, offset, **entry),),
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            **fields,
        )
        result: OffsetCommitResult = self.ask(self.shard.commit_offsets, request, self.now_ms).answer
        return result.partitions[0].error

    def commit_in_transaction(
        self,
        producer_id: int,
        offset: int = 1,
        *,
        partition: int = 0,
        group_id: str = GROUP,
        generation_id: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        **fields: Any,
    ) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            offsets=(OffsetToCommit("in", partition, offset),),
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            **fields,
        )
        result: OffsetCommitResult = self.ask(self.shard.commit_offsets_in_transaction, request, self.now_ms).answer
        return result.partitions[0].error

    def fetch(
        self, partition: int = 0, *, topic: str = "in", group_id: str = GROUP, stable: bool = False
    ) -> tuple[int, ErrorCode]:
        request = OffsetFetchRequest(
            group_id=group_id, partitions=(PartitionToFetch(topic, partition),), require_stable=stable
        )
        (fetched,) = self.shard.fetch_offsets(request).offsets
        return fetched.offset, fetched.error

    def delete_offsets(self, *partitions: TopicPartition, group_id: str = GROUP) -> OffsetDeleteResult:
        result: OffsetDeleteResult = self.ask(
            self.shard.delete_offsets, OffsetDeleteRequest(group_id=group_id, partitions=partitions)
        ).answer
        return result

    def delete_group(self, group_id: str = GROUP) -> ErrorCode:
        result: DeleteGroupsResult = self.ask(self.shard.delete_groups, [group_id]).answer
        return result.groups[0].error

    # --- shortcuts -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.shard.describe_group(GROUP).state

    def stable_group(self, *instance_ids: str | None, **fields: Any) -> list[str]:
        """A Stable group; the first of the returned member ids leads. Everybody is assigned its own id."""
        member_ids: list[str] = []
        known = instance_ids or (None,)
        for count, instance_id in enumerate(known):
            newcomer = self.join("", instance_id, **fields)
            joins = [self.join(*who, **fields) for who in zip(member_ids, known[:count], strict=True)] + [newcomer]
            member_ids = [self._resolve(join) for join in joins]
            generation_id = joins[0].answer.generation_id
            for member_id in reversed(member_ids):
                self.sync(member_id, generation_id, {each: each.encode() for each in member_ids})
        assert self.state == "Stable"
        return member_ids

    def _resolve(self, join: Pending[JoinResult]) -> str:
        if join.is_parked:
            self.advance(self.config.initial_rebalance_delay_ms)
        return join.answer.member_id

    @property
    def generation_id(self) -> int:
        return self.shard._groups[GROUP].generation_id
