"""A member of a classic consumer group: joining, staying alive, leaving.

Theory of operation. `join` runs JoinGroup and SyncGroup until both succeed for one generation and returns what is
assigned; it starts over whenever the group moved on meanwhile. Between joins `keep_alive` sends heartbeats and learns
what happened to the membership, which it leaves behind as flags for the consumer to act on in its next poll:

    rejoin_needed   the group rebalances: join again, keeping or giving up partitions as the protocol has it
    lost            the membership is gone (fenced, expired, or this process did not poll for too long): the partitions
                    may belong to others already, so nothing may be committed for them
    fatal           joining again would not help, such as another process with the same group.instance.id

A join that finds the membership gone while partitions are held ends with that: to join as somebody new and keep them
would pass off what was read in between, which may be others' work by now, as the new member's.

Time and requests are those of the cluster's network: a member needs no event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from oncelog.client.assignors import ASSIGNORS, Assignor
from oncelog.client.cluster import Cluster, CoordinatorKind
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError, TimedOut, error_of, is_retriable
from oncelog.client.offsets import GroupMetadata
from oncelog.client.subscription import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.core.errors import RETRIABLE
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from oncelog.protocol.schema import Message

R = TypeVar("R", bound=Message)

JOIN_CHANNEL: Final = "join"
"""JoinGroup waits for the other members; commits and heartbeats must not wait behind it."""
JOIN_MARGIN_MS: Final = 5_000
LEAVE_TIMEOUT_MS: Final = 5_000
"""How long closing a consumer waits for a coordinator that is not there."""
NO_GENERATION: Final = -1

_START_OVER: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_MOVED: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION)


class GroupMember:
    def __init__(self, cluster: Cluster, config: ConsumerConfig, changed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._config = config
        self._changed = changed
        self.group_id = config.group_id or ""
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.rejoin_needed = False
        self.lost = False
        self.fatal: KafkaError | None = None
        self.polled()
        self.joined_as = GroupMetadata(self.group_id)
        """Member id and generation of the last join, under which what was assigned then is committed, also later."""
        self._assignors = [ASSIGNORS[name] for name in config.strategies]
        self._last_assigned: tuple[TopicPartition, ...] = ()
        self._watched: set[str] = set()
        self._topic_counts: dict[str, int] | None = None
        """For the leader: how many partitions each topic of the group had when they were assigned."""

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance: only if every strategy can do that."""
        return all(assignor.cooperative for assignor in self._assignors)

    def polled(self) -> None:
        """The application is alive. Without that for `max.poll.interval.ms` the membership is given up."""
        self._polled_at_s = self._cluster.network.now_s()

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self._config.group_instance_id)

    # Joining

    async def join(self, topics: Iterable[str], owned: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Become a member of the next generation; waits for the other members as long as the coordinator does.

        Raises KafkaError for what joining again does not mend, and when the membership is lost that `owned` rests on.
        """
        backoff = self._cluster.backoff()
        wanted, held = tuple(sorted(topics)), tuple(owned)
        while True:
            try:
                joined = await self._join_group(wanted, held)
                assigned = await self._sync_group(joined, wanted)
                break
            except KafkaError as error:
                if isinstance(error, TimedOut):
                    continue
                if error.code not in _START_OVER and not is_retriable(error):
                    raise
                if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    keep_member = error.code == ErrorCode.ILLEGAL_GENERATION
                    if held:
                        self._lose(keep_member=keep_member)
                        raise
                    self._forget_membership(keep_member=keep_member)
                if error.code in _MOVED:
                    self._cluster.routes.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
                if error.code != ErrorCode.MEMBER_ID_REQUIRED:
                    await self._cluster.network.sleep(backoff.next_ms())
        self.rejoin_needed = False
        self.joined_as = self.metadata()
        return assigned

    def _forget_membership(self, *, keep_member: bool = False) -> None:
        self.generation_id = NO_GENERATION
        if not keep_member:
            self.member_id = ""

    async def _join_group(self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=assignor.name, metadata=self._subscription(assignor, topics, owned))
                for assignor in self._assignors
            ],
        )
        wait_ms = self._config.max_poll_interval_ms + JOIN_MARGIN_MS
        response = await self._ask(request, JoinGroupResponse, wait_ms)
        if response.member_id:
            self.member_id = response.member_id
        self._raise(response.error_code, "joining")
        self.generation_id = response.generation_id
        return response

    def _subscription(self, assignor: Assignor, topics: tuple[str, ...], owned: tuple[TopicPartition, ...]) -> bytes:
        user_data = assignor.user_data(self._last_assigned, self.generation_id)
        held = owned if self.cooperative else ()
        return encode_subscription(Subscription(topics, held, self.generation_id, user_data))

    async def _sync_group(self, joined: JoinGroupResponse, topics: tuple[str, ...]) -> list[TopicPartition]:
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self.member_id:
            assignments = await self._lead(joined, topics)
        else:
            self._topic_counts = None
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=joined.protocol_type or PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        wait_ms = self._config.max_poll_interval_ms + JOIN_MARGIN_MS
        response = await self._ask(request, SyncGroupResponse, wait_ms)
        self._raise(response.error_code, "getting an assignment")
        assigned = decode_assignment(bytes(response.assignment)) if len(response.assignment) else []
        self._last_assigned = tuple(assigned)
        return assigned

    async def _lead(self, joined: JoinGroupResponse, topics: tuple[str, ...]) -> list[SyncGroupRequestAssignment]:
        """What the leader hands in. It remembers how many partitions it was about, to notice when there are more."""
        members = {member.member_id: decode_subscription(bytes(member.metadata)) for member in joined.members}
        self._watched = {topic for subscription in members.values() for topic in subscription.topics} | set(topics)
        self._topic_counts = counts = await self._counts(self._watched)
        if joined.skip_assignment:
            return []
        shares = ASSIGNORS[joined.protocol_name or ""].assign(members, counts)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in shares.items()
        ]

    async def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        wanted = sorted(topics)
        if wanted:
            deadline = self._cluster.deadline()
            await self._cluster.refresh(wanted, deadline, create=self._config.client.allow_auto_create_topics)
        known = {name: self._cluster.topics.get(name) for name in wanted}
        return {name: len(info.partitions) for name, info in known.items() if info is not None}

    @property
    def misses_topics(self) -> bool:
        """For the leader: topics of the group were not there when it shared out the partitions."""
        return self._topic_counts is not None and not self._watched <= self._topic_counts.keys()

    async def check_topics(self) -> None:
        """For the leader: rebalance when a topic of the group appeared, grew or went away."""
        if self._topic_counts is not None and await self._counts(self._watched) != self._topic_counts:
            self.rejoin_needed = True
            self._changed()

    # Staying

    async def keep_alive(self) -> None:
        """Send heartbeats until the membership is gone."""
        network = self._cluster.network
        while True:
            await network.sleep(self._config.heartbeat_interval_ms)
            if network.now_s() - self._polled_at_s > self._config.max_poll_interval_ms / 1000:
                await self.leave("max.poll.interval.ms went by without a poll", wait=False)
                self._lose()
                return
            if not await self.heartbeat():
                return

    async def heartbeat(self) -> bool:
        """One heartbeat; whether to go on with them."""
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
        )
        timeout_ms = self._config.session_timeout_ms
        deadline = self._cluster.deadline(timeout_ms)
        try:
            connection = await self._cluster.coordinator(CoordinatorKind.GROUP, self.group_id, deadline)
            response = await connection.call(request, HeartbeatResponse, timeout_ms=timeout_ms)
        except KafkaError:
            self._cluster.routes.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
            return True
        return self._on_heartbeat_answer(response.error_code)

    def _on_heartbeat_answer(self, code: int) -> bool:
        """What a heartbeat's answer means; whether to go on with heartbeats."""
        if code in (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return True
        if code in RETRIABLE:
            self._cluster.routes.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
            return True
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin_needed = True
            self._changed()
            return True
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(keep_member=code == ErrorCode.ILLEGAL_GENERATION)
            return False
        self.fatal = error_of(code, self._where("heartbeat"))
        self._lose()
        return False

    def _lose(self, *, keep_member: bool = False) -> None:
        self._forget_membership(keep_member=keep_member)
        self._last_assigned = ()
        self.lost = True
        self._changed()

    def report_lost(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        """A commit was refused because the membership is gone. If the member has joined again since, nothing
        happens."""
        if not self.lost and committed_as == self.metadata():
            self._lose(keep_member=code == ErrorCode.ILLEGAL_GENERATION)

    # Leaving

    async def leave(self, reason: str, *, wait: bool = True) -> None:
        """Tell the coordinator, unless the member is static: that one is expected back."""
        member_id = self.member_id
        if not member_id or (self._config.group_instance_id and wait):
            return
        request = LeaveGroupRequest(
            group_id=self.group_id,
            member_id=member_id,
            members=[
                MemberIdentity(member_id=member_id, group_instance_id=self._config.group_instance_id, reason=reason)
            ],
        )
        self.member_id = ""  # to leave again would be somebody else's request
        # A member that cannot say goodbye is noticed by its missing heartbeats.
        timeout_ms = min(LEAVE_TIMEOUT_MS, self._config.client.default_api_timeout_ms)
        with contextlib.suppress(KafkaError, TimeoutError):
            async with self._cluster.network.limit(timeout_ms):
                await self._ask(request, LeaveGroupResponse, timeout_ms, channel="coordinator")

    async def _ask(self, request: Message, response_type: type[R], timeout_ms: float, channel: str = JOIN_CHANNEL) -> R:
        deadline = self._cluster.deadline()
        connection = await self._cluster.coordinator(CoordinatorKind.GROUP, self.group_id, deadline, channel)
        try:
            return await connection.call(request, response_type, timeout_ms=timeout_ms)
        except ConnectionLost:
            self._cluster.routes.forget_coordinator(CoordinatorKind.GROUP, self.group_id)
            raise

    def _raise(self, code: int, what: str) -> None:
        if code:
            raise error_of(code, self._where(what))

    def _where(self, what: str) -> str:
        return f"group {self.group_id}, member {self.member_id or '(new)'}: {what}"
