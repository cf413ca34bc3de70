"""A shell for a `GroupShard` as small as can be: a list for a log, appends that commit at once or fail on demand."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.joining import JoiningClient
from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, Reply
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_PRODUCER_ID, NULL_UUID, TopicPartition
from oncelog.protocol.compiler import encode_versioned
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

T = TypeVar("T")

START_MS = 1_700_000_000_000
GROUP = "g1"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
QUICK = GroupConfig(initial_rebalance_delay_ms=0)


def subscription(*topics: str, version: int = 1) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), version)


def protocol(name: str, metadata: bytes) -> JoinGroupRequestProtocol:
    return JoinGroupRequestProtocol(name=name, metadata=metadata)


def leaving(member_id: str, instance_id: str | None = None) -> MemberIdentity:
    return MemberIdentity(member_id=member_id, group_instance_id=instance_id)


def sync_request(member_id: str, generation_id: int, assignments: dict[str, bytes], **fields: Any) -> SyncGroupRequest:
    return SyncGroupRequest(
        member_id=member_id,
        generation_id=generation_id,
        assignments=[SyncGroupRequestAssignment(member_id=to, assignment=data) for to, data in assignments.items()],
        **({"group_id": GROUP} | fields),
    )


def entry(partition: int, offset: int, *, leader_epoch: int = -1, metadata: str | None = "") -> Any:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        committed_metadata=metadata,
    )


def commit_request(topic: str, *entries: Any, **fields: Any) -> tuple[OffsetCommitRequest, OffsetCommitResponse]:
    """With the answer that a handler prepares: one place for each partition."""
    answers = [OffsetCommitResponsePartition(partition_index=each.partition_index) for each in entries]
    return (
        OffsetCommitRequest(
            topics=[OffsetCommitRequestTopic(name=topic, partitions=list(entries))], **({"group_id": GROUP} | fields)
        ),
        OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=topic, partitions=answers)]),
    )


def txn_commit_request(
    producer_id: int, partition: int, offset: int, **fields: Any
) -> tuple[TxnOffsetCommitRequest, TxnOffsetCommitResponse]:
    place = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    answer = TxnOffsetCommitResponsePartition(partition_index=partition)
    return (
        TxnOffsetCommitRequest(
            producer_id=producer_id,
            topics=[TxnOffsetCommitRequestTopic(name="in", partitions=[place])],
            **({"group_id": GROUP} | fields),
        ),
        TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="in", partitions=[answer])]),
    )


RANGE = [protocol("range", subscription("in"))]


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

    def commit_all(self, topic: str, *entries: Any, topic_id: uuid.UUID = NULL_UUID, **fields: Any) -> Any:
        """The answers for these entries."""
        request, response = commit_request(topic, *entries, **fields)
        pending: Pending[Any] = Pending()
        self.run(self.shard.commits.commit(request, response, pending.append, self.now_ms, {topic: topic_id}, 9))
        return pending.answer.topics[0].partitions

    # --- requests ------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        *,
        requires_known_member_id: bool = False,
        supports_skipping_assignment: bool = True,
        client_id: str = "c",
        **fields: Any,
    ) -> Pending[JoinGroupResponse]:
        """With a version of JoinGroup that has these features. Static members are not asked to come back with an id."""
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
        }
        version = 3 if instance_id is None and not requires_known_member_id else 8 + supports_skipping_assignment
        request = JoinGroupRequest(**(values | fields), member_id=member_id, group_instance_id=instance_id)
        client = JoiningClient(client_id, "/127.0.0.1", version)
        return self.ask(self.shard.joining.join, request, self.now_ms, client)

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Pending[SyncGroupResponse]:
        request = sync_request(member_id, generation_id, assignments or {}, **fields)
        return self.ask(self.shard.membership.sync, request, self.now_ms)

    def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation_id, group_instance_id=instance_id
        )
        return ErrorCode(self.ask(self.shard.membership.heartbeat, request, self.now_ms).answer.error_code)

    def leave(self, *members: MemberIdentity | str) -> LeaveGroupResponse:
        gone = [leaving(member) if isinstance(member, str) else member for member in members]
        request = LeaveGroupRequest(group_id=GROUP, members=gone)
        result: LeaveGroupResponse = self.ask(self.shard.membership.leave, request, self.now_ms).answer
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
        retention_ms: int = -1,
        topic_id: uuid.UUID = NULL_UUID,
        understands_group_id_not_found: bool = True,
        **values: Any,
    ) -> ErrorCode:
        request, response = commit_request(
            topic,
            entry(partition, offset, **values),
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
        )
        pending: Pending[Any] = Pending()
        version = 8 + understands_group_id_not_found
        self.run(self.shard.commits.commit(request, response, pending.append, self.now_ms, {topic: topic_id}, version))
        return ErrorCode(pending.answer.topics[0].partitions[0].error_code)

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
        understands_group_id_not_found: bool = False,
    ) -> ErrorCode:
        request, response = txn_commit_request(
            producer_id,
            partition,
            offset,
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
        )
        pending: Pending[Any] = Pending()
        version = 5 + understands_group_id_not_found
        self.run(self.shard.commits.commit_in_transaction(request, response, pending.append, self.now_ms, {}, version))
        return ErrorCode(pending.answer.topics[0].partitions[0].error_code)

    def fetch(
        self,
        partition: int = 0,
        *,
        topic: str = "in",
        group_id: str = GROUP,
        stable: bool = False,
        topic_id: uuid.UUID = NULL_UUID,
    ) -> tuple[int, ErrorCode]:
        (fetched,) = self.shard.commits.fetch(group_id, topic, topic_id, [partition], require_stable=stable)
        return fetched.committed_offset, ErrorCode(fetched.error_code)

    def delete_offsets(self, *partitions: TopicPartition, group_id: str = GROUP) -> OffsetDeleteResponse:
        answer = OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    name=topic, partitions=[OffsetDeleteResponsePartition(partition_index=partition)]
                )
                for topic, partition in partitions
            ]
        )
        pending: Pending[OffsetDeleteResponse] = Pending()
        self.run(self.shard.commits.delete(group_id, answer, pending.append))
        return pending.answer

    def delete_group(self, group_id: str = GROUP) -> ErrorCode:
        return ErrorCode(self.ask(self.shard.delete_group, group_id).answer.error_code)

    def fetch_all(self, group_id: str = GROUP, *, stable: bool = False) -> list[tuple[str, int, int, ErrorCode]]:
        """Topic, partition, offset and error of everything that a group has committed."""
        shard = self.shard
        return [
            (topic, fetched.partition_index, fetched.committed_offset, ErrorCode(fetched.error_code))
            for topic, index in sorted(shard.commits.committed_partitions(group_id))
            for fetched in shard.commits.fetch(group_id, topic, NULL_UUID, [index], require_stable=stable)
        ]

    # --- shortcuts -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.shard.describe_group(GROUP).group_state

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

    def _resolve(self, join: Pending[JoinGroupResponse]) -> str:
        if join.is_parked:
            self.advance(self.config.initial_rebalance_delay_ms)
        return join.answer.member_id

    @property
    def generation_id(self) -> int:
        return self.shard._groups[GROUP].generation_id
