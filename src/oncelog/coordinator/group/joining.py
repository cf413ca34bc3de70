"""JoinGroup: who may become a member, under which id, and whether that starts a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup, JoinReply
from oncelog.coordinator.group.member import Member, held_bytes_of, unique_protocols
from oncelog.coordinator.group.rebalance import Rebalancer
from oncelog.coordinator.group.records import group_record
from oncelog.coordinator.group.responses import join_refused
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import Outcome
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.group_metadata_log import GroupMetadataValue
from oncelog.protocol.messages.join_group import JoinGroupRequest

ID_PREFIX_BYTES_MAX: Final = 32_000
"""A member id starts with the client's or the instance's, and must still fit into a string of the protocol."""


class JoiningClient(NamedTuple):
    """What a JoinGroup does not say itself of the client that sends it."""

    client_id: str = ""
    client_host: str = ""
    api_version: int = JoinGroupRequest.VERSIONS[1]

    @property
    def can_come_back_with_id(self) -> bool:
        """KIP-394: a dynamic member is first sent away with an id to come back with."""
        return self.api_version >= 4

    @property
    def can_skip_assignment(self) -> bool:
        """KIP-814: a returning static leader can be told not to assign again."""
        return self.api_version >= 9


class _Join:
    """One JoinGroup on its way."""

    __slots__ = ("client", "now_ms", "out", "protocols", "reply_to", "request")

    def __init__(self, request: JoinGroupRequest, client: JoiningClient, reply_to: JoinReply, now_ms: int) -> None:
        self.request = request
        self.client = client
        self.reply_to = reply_to
        self.now_ms = now_ms
        self.protocols = unique_protocols(request.protocols)
        self.out = Outcome()

    @property
    def rebalance_timeout_ms(self) -> int:
        """JoinGroup v0 has none of its own."""
        timeout_ms = self.request.rebalance_timeout_ms
        return self.request.session_timeout_ms if timeout_ms < 0 else timeout_ms

    @property
    def id_prefix(self) -> str:
        instance_id = self.request.group_instance_id
        return self.client.client_id if instance_id is None else instance_id

    @property
    def because(self) -> str:
        return f" ({self.request.reason})" if self.request.reason else ""

    def refuse(self, error: ErrorCode, member_id: str = "") -> None:
        self.out.reply(self.reply_to, join_refused(error, member_id))


class Joining:
    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        logged: Mapping[str, GroupMetadataValue | None],
        rebalancer: Rebalancer,
        new_member_suffix: Callable[[], str],
    ) -> None:
        self._config = config
        self._groups = groups
        self._logged = logged
        self._rebalancer = rebalancer
        self._new_member_suffix = new_member_suffix

    def join(self, request: JoinGroupRequest, reply: JoinReply, now_ms: int, client: JoiningClient) -> Outcome:
        join = _Join(request, client, reply, now_ms)
        group = self._groups.get(request.group_id)
        error = self._refusal(join)
        if error:
            join.refuse(error, request.member_id)
        elif not self._has_memory(group, join):
            join.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif group is None:
            self._join_new_group(join)
        elif not self._has_room(group, request.member_id):
            self._turn_away(group, join)
        elif not request.member_id:
            self._join_as_newcomer(group, join)
        else:
            self._join_again(group, join)
        return join.out

    def _refusal(self, join: _Join) -> ErrorCode:
        if not join.request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low_ms, high_ms = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low_ms <= join.request.session_timeout_ms <= high_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(join.id_prefix.encode()) > ID_PREFIX_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    # A group that did not exist

    def _join_new_group(self, join: _Join) -> None:
        """The new group is logged, empty, with its first request; Kafka does so even for a request it refuses."""
        if join.request.member_id:
            join.refuse(ErrorCode.UNKNOWN_MEMBER_ID, join.request.member_id)
            return
        group = ClassicGroup(join.request.group_id, join.now_ms)
        self._join_as_newcomer(group, join)
        if not group.members and not group.expected_members:
            return
        self._groups[group.group_id] = group
        empty = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=join.now_ms)
        join.out.records.append(group_record(group.group_id, empty))
        join.out.compensations.append(lambda error, _now_ms, undone: self._undo_new_group(group, error, undone))

    def _undo_new_group(self, group: ClassicGroup, error: ErrorCode, out: Outcome) -> None:
        """Answer all members that wait, and restore the group from the log, which most likely does not have it."""
        logged = self._logged.get(group.group_id)
        if self._groups.get(group.group_id) is not group or (logged is not None and logged.members):
            return
        for member_id in group.members:
            self._rebalancer.release(group, member_id, error, "", out)
        self._rebalancer.forget_group(group)
        del self._groups[group.group_id]
        if group.group_id in self._logged:
            self._groups[group.group_id] = ClassicGroup.loaded(group.group_id, logged)

    # Size

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """In an open round only members that have joined count: if the limit was lowered, the last ones have to go."""
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            return member_id in group.awaiting_join or len(group.awaiting_join) < self._config.max_size
        return member_id in group.members or len(group.members) < self._config.max_size

    def _has_memory(self, group: ClassicGroup | None, join: _Join) -> bool:
        """Whether there is room for what the request would keep in memory."""
        member_id = join.request.member_id
        total_bytes = held_bytes_of(join.request, join.client.client_id)
        if group is not None:
            if not member_id and len(group.expected_members) >= self._config.waiting_members_max:
                return False
            before = group.members.get(member_id)
            total_bytes += group.held_bytes - (before.held_bytes if before is not None else 0)
        return total_bytes <= self._config.metadata_max_bytes

    def _turn_away(self, group: ClassicGroup, join: _Join) -> None:
        if join.request.member_id:
            self._rebalancer.drop(group, join.request.member_id, join.out)
        join.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._rebalancer.complete_if_ready(group, join.now_ms, join.out)

    # Newcomers

    def _join_as_newcomer(self, group: ClassicGroup, join: _Join) -> None:
        if not group.supports(join.request.protocol_type, join.protocols):
            join.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        instance_id = join.request.group_instance_id
        member_id = f"{join.id_prefix}-{self._new_member_suffix()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, join, instance_id, member_id)
        elif instance_id is None and join.client.can_come_back_with_id:
            group.expected_members.add(member_id)
            self._rebalancer.expect(group, member_id, join.request.session_timeout_ms, join.now_ms)
            join.refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(group, join, member_id)

    def _add(self, group: ClassicGroup, join: _Join, member_id: str) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=join.request.group_instance_id,
            client_id=join.client.client_id,
            client_host=join.client.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=join.request.session_timeout_ms,
            protocols=join.protocols,
            is_new=True,
        )
        group.newcomer_during_delay |= group.in_initial_delay
        group.add(member, join.request.protocol_type)
        self._rebalancer.park_join(group, member_id, join.reply_to, join.out)
        # It cannot send heartbeats before it is answered, and clients that gave up and came back as somebody else
        # must not stay for ever.
        self._rebalancer.expect(group, member_id, self._config.new_member_join_timeout_ms, join.now_ms)
        reason = f"member {member_id} joins{join.because}"
        self._rebalancer.rebalance_or_complete(group, reason, join.now_ms, join.out)

    # Known members

    def _join_again(self, group: ClassicGroup, join: _Join) -> None:
        member_id, instance_id = join.request.member_id, join.request.group_instance_id
        if not group.supports(join.request.protocol_type, join.protocols):
            join.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id in group.expected_members and instance_id is not None:
            # The id was given to a dynamic member. Kafka's coordinator trips over this, which reads the same outside.
            join.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, member_id)
        elif member_id in group.expected_members:
            self._add(group, join, member_id)
        elif error := group.check_member(member_id, instance_id):
            join.refuse(error, member_id)
        elif self._rejoin_starts_round(group, join):
            self._update(group, group.members[member_id], join)
            self._rebalancer.park_join(group, member_id, join.reply_to, join.out)
            reason = f"member {member_id} joins again{join.because}"
            self._rebalancer.rebalance_or_complete(group, reason, join.now_ms, join.out)
        else:
            join.out.reply(join.reply_to, group.join_response(member_id))

    def _rejoin_starts_round(self, group: ClassicGroup, join: _Join) -> bool:
        """A member that only missed its answer gets it again; the leader may always ask for a new round."""
        if group.state is GroupState.PREPARING_REBALANCE:
            return True
        member_id = join.request.member_id
        if not group.members[member_id].matches(join.protocols):
            return True
        return group.state is GroupState.STABLE and group.leader_id == member_id

    def _update(self, group: ClassicGroup, member: Member, join: _Join) -> None:
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.request.session_timeout_ms)

    # Static members that come back

    def _replace_static(self, group: ClassicGroup, join: _Join, instance_id: str, new_id: str) -> None:
        old_id = group.static_members[instance_id]
        self._rebalancer.release(group, old_id, ErrorCode.FENCED_INSTANCE_ID, old_id, join.out)
        undo = self._rename(group, instance_id, old_id, new_id, join.now_ms)
        member = group.members[new_id]
        old_leader_id = old_id if group.leader_id == new_id else group.leader_id
        self._update(group, member, join)
        self._rebalancer.keep_alive(group, member, join.now_ms)
        reason = f"static member {instance_id} joins again as {new_id}{join.because}"
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._log_replacement(group, join, new_id, old_leader_id)
            join.out.compensations.append(undo)
            return
        # A leader that is working on the assignment still has the old id, so CompletingRebalance must start over too.
        self._rebalancer.park_join(group, new_id, join.reply_to, join.out)
        self._rebalancer.rebalance_or_complete(group, reason, join.now_ms, join.out)

    def _rename(
        self, group: ClassicGroup, instance_id: str, old_id: str, new_id: str, now_ms: int
    ) -> Callable[[ErrorCode, int, Outcome], None]:
        """Give a static member its new id; returns what takes it back."""
        member = group.rename_static(instance_id, old_id, new_id)
        self._rebalancer.forget_member_timer(group, old_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)

        def undo(_error: ErrorCode, undo_ms: int, _undone: Outcome) -> None:
            if group.static_members.get(instance_id) == new_id and new_id not in group.awaiting_join:
                restored = group.rename_static(instance_id, new_id, old_id)
                group.update(restored, *before)
                group.topics = group.read_topics()
                self._rebalancer.forget_member_timer(group, new_id)
                self._rebalancer.keep_alive(group, restored, undo_ms)

        return undo

    def _log_replacement(self, group: ClassicGroup, join: _Join, new_id: str, old_leader_id: str | None) -> None:
        """Nothing changes for the others: the member keeps its assignment and there is no round.

        A returning leader must not assign again. Told that it is the leader, it is also told to skip that (KIP-814);
        a client that cannot be told so gets the old id as the leader's and takes itself for a follower.
        """
        group.topics = group.read_topics()
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        join.out.records.append(group_record(group.group_id, group.durable(assignments)))
        response = group.join_response(new_id)
        if join.client.can_skip_assignment:
            response.skip_assignment = group.leader_id == new_id
        else:
            response.leader, response.members = old_leader_id or "", []
        join.out.reply(join.reply_to, response)
