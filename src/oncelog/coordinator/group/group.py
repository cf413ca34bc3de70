"""A classic group as it lives in memory: members, parked requests, the generation. `state` has the theory.

Nothing here decides or logs; `rebalance`, `joining` and `membership` do. The methods keep the group's own books in
order: leader, static members, which protocols everyone knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from sys import getsizeof

from oncelog.coordinator.group.member import EXPECTED_BYTES, Member
from oncelog.coordinator.group.state import GroupState, may_move
from oncelog.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.core.invariant import invariant
from oncelog.protocol.messages.group_metadata_log import GroupMetadataValue
from oncelog.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from oncelog.protocol.messages.sync_group import SyncGroupResponse

JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]


class ClassicGroup:
    def __init__(self, group_id: str, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state: GroupState | None = None
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.stored_generation_id = -1
        """The last generation whose assignment was handed to the log."""
        self.protocol_type: str | None = None
        """None for a group that only stores offsets."""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Member id by group instance id."""
        self.expected_members: set[str] = set()
        """Ids that were handed out with MEMBER_ID_REQUIRED and have not come back yet."""
        self.awaiting_join: dict[str, JoinReply] = {}
        self.awaiting_sync: dict[str, SyncReply] = {}
        self.missing_sync: set[str] = set()
        """Members that have not asked for the assignment of this generation yet."""
        self.topics: frozenset[str] | None = None
        """The topics that the members subscribe to; None if the broker cannot read them."""
        self.newcomer_during_delay = False
        self.delay_left_ms = 0
        """How much longer than the current wait the initial delay may still be extended."""
        self._supporters: Counter[str] = Counter()
        """How many members know a protocol."""
        self._members_bytes = 0

    @classmethod
    def loaded(cls, group_id: str, metadata: GroupMetadataValue | None) -> ClassicGroup:
        """The group that its last record in the log describes; without metadata it only stores offsets."""
        group = cls(group_id, None)
        if metadata is None:
            return group
        group.state = GroupState.STABLE if metadata.members else GroupState.EMPTY
        # Records of old brokers have no time.
        is_timed = metadata.current_state_timestamp != NO_TIMESTAMP
        group.state_timestamp_ms = metadata.current_state_timestamp if is_timed else None
        group.generation_id = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol_name = metadata.protocol
        for member in metadata.members:
            group._insert(Member.loaded(member, metadata.protocol))
        if metadata.leader in group.members:
            group.leader_id = metadata.leader
        group.topics = group.read_topics()
        return group

    # State

    def move_to(self, state: GroupState, now_ms: int) -> None:
        invariant(may_move(self.state, state), "group %s: no way from %s to %s", self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    @property
    def in_initial_delay(self) -> bool:
        return self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY

    @property
    def is_storing_assignment(self) -> bool:
        return self.state is GroupState.COMPLETING_REBALANCE and self.stored_generation_id == self.generation_id

    @property
    def everyone_joined(self) -> bool:
        return len(self.members) == len(self.awaiting_join) and not self.expected_members

    @property
    def held_bytes(self) -> int:
        """Memory of the members, also of those that have not come back with their ids."""
        return self._members_bytes + sum([EXPECTED_BYTES + getsizeof(member_id) for member_id in self.expected_members])

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # Members

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE for a member; a static one must be the latest of its instance id."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        invariant(self.protocol_type == protocol_type, "group %s: a member of another type", self.group_id)
        self._insert(member)
        self.expected_members.discard(member.member_id)

    def _insert(self, member: Member) -> None:
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self._supporters.update(member.protocols.keys())
        self._members_bytes += member.held_bytes
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member. The caller has answered its parked requests."""
        invariant(
            member_id not in self.awaiting_join and member_id not in self.awaiting_sync,
            "group %s: member %s is removed with a parked request",
            self.group_id,
            member_id,
        )
        member = self.members.pop(member_id, None)
        if member is not None:
            self._withdraw(member)
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.expected_members.discard(member_id)
        self.missing_sync.discard(member_id)

    def update(
        self, member: Member, protocols: dict[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._withdraw(member)
        member.protocols = protocols
        self._supporters.update(protocols.keys())
        self._members_bytes += member.held_bytes
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename_static(self, group_instance_id: str, old_member_id: str, new_member_id: str) -> Member:
        """A static member came back under a new id: everything else stays, also its place in the order of members."""
        member = self.members[old_member_id]
        member.member_id = new_member_id
        self.members = {entry.member_id: entry for entry in self.members.values()}
        self.static_members[group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.missing_sync:
            self.missing_sync.remove(old_member_id)
            self.missing_sync.add(new_member_id)
        return member

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take one that has. False when nobody has."""
        if self.leader_id in self.awaiting_join:
            return True
        for member_id in self.members:
            if member_id in self.awaiting_join:
                self.leader_id = member_id
                return True
        return False

    def start_generation(self, now_ms: int) -> None:
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.move_to(GroupState.EMPTY, now_ms)
        self.topics = self.read_topics()

    # Protocols

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether someone who knows these protocols can be a member: one of them must be known to everybody."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(self._supporters[name] == everybody for name in names)

    def select_protocol(self) -> str:
        """Each member votes for the first one it knows of those that everybody knows; the most votes win."""
        everybody = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == everybody}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _withdraw(self, member: Member) -> None:
        self._members_bytes -= member.held_bytes
        for name in member.protocols:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def read_topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None if the broker cannot read them."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """When a group of consumers cannot be read, any topic may be one of theirs."""
        return self.uses_consumer_protocol if self.topics is None else topic in self.topics

    # Views

    def join_response(self, member_id: str) -> JoinGroupResponse:
        """The answer for a member of the current generation. The leader also gets the list of members."""
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member_id,
            members=self.joined_members() if member_id == self.leader_id else [],
        )

    def joined_members(self) -> list[JoinGroupResponseMember]:
        name = self.protocol_name
        invariant(name is not None, "group %s has no protocol in state %s", self.group_id, self.state)
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(name or ""),
            )
            for member in self.members.values()
        ]

    def sync_response(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=assignment
        )

    def durable(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """What is to be logged for the current generation when it has these assignments."""
        name = self.protocol_name
        invariant(name is not None or not self.members, "group %s has members but no protocol", self.group_id)
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=name,
            leader=self.leader_id,
            current_state_timestamp=NO_TIMESTAMP if self.state_timestamp_ms is None else self.state_timestamp_ms,
            members=[
                member.durable(name or "", assignments.get(member.member_id, b"")) for member in self.members.values()
            ],
        )
