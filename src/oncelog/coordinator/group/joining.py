"""JoinGroup: who may become a member, under which id, and whether that starts a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup, JoinReply
from oncelog.coordinator.group.member import Member, unique_protocols
from oncelog.coordinator.group.metadata import GroupMetadata
from oncelog.coordinator.group.rebalance import Rebalancer
from oncelog.coordinator.group.records import group_record
from oncelog.coordinator.group.requests import JoinRequest, JoinResult
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import Outcome
from oncelog.core.errors import ErrorCode
from oncelog.core.invariant import invariant

ID_PREFIX_BYTES_MAX: Final = 32_000
"""A member id starts with the client's or the instance's, and must still fit into a string of the protocol."""


class Joining:
    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        logged: Mapping[str, GroupMetadata | None],
        rebalancer: Rebalancer,
        new_member_suffix: Callable[[], str],
    ) -> None:
        self._config = config
        self._groups = groups
        self._logged = logged
        self._rebalancer = rebalancer
        self._new_member_suffix = new_member_suffix

    def join(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> Outcome:
        out = Outcome()
        error = self._refusal(request)
        if error:
            return out.reply(reply, JoinResult(error=error, member_id=request.member_id))
        group = self._groups.get(request.group_id)
        if group is None:
            return self._join_new_group(request, reply, now_ms, out)
        if not self._has_room(group, request.member_id):
            return self._turn_away(group, request, reply, now_ms, out)
        if not request.member_id:
            self._join_as_newcomer(group, request, reply, now_ms, out)
        else:
            self._join_again(group, request, reply, now_ms, out)
        return out

    def _refusal(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low_ms, high_ms = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low_ms <= request.session_timeout_ms <= high_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(_id_prefix(request).encode()) > ID_PREFIX_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    # --- a group that did not exist --------------------------------------------------------------------------------

    def _join_new_group(self, request: JoinRequest, reply: JoinReply, now_ms: int, out: Outcome) -> Outcome:
        """The new group is logged, empty, with its first request; Kafka does so even for a request it refuses."""
        if request.member_id:
            return out.reply(reply, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id))
        group = ClassicGroup(request.group_id, now_ms)
        self._join_as_newcomer(group, request, reply, now_ms, out)
        if not group.members and not group.expected_members:
            return out
        self._groups[group.group_id] = group
        empty = GroupMetadata(
            protocol_type=None, generation_id=0, protocol_name=None, leader_id=None, state_timestamp_ms=now_ms
        )
        out.records.append(group_record(group.group_id, empty))

        out.compensations.append(lambda error, _now_ms, undone: self._undo_new_group(group, error, undone))
        return out

    def _undo_new_group(self, group: ClassicGroup, error: ErrorCode, out: Outcome) -> None:
        """Everybody who waits in it is told; the group becomes what the log knows of it, most likely nothing."""
        logged = self._logged.get(group.group_id)
        if self._groups.get(group.group_id) is not group or (logged is not None and logged.members):
            return
        for member_id in group.members:
            self._rebalancer.release(group, member_id, error, "", out)
        self._rebalancer.forget_group(group)
        del self._groups[group.group_id]
        if group.group_id in self._logged:
            self._groups[group.group_id] = ClassicGroup.loaded(group.group_id, logged)

    # --- size ------------------------------------------------------------------------------------------------------

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """While a round is open, those who have joined count, so that a limit that was lowered sheds the last ones."""
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            return member_id in group.awaiting_join or len(group.awaiting_join) < self._config.max_size
        return member_id in group.members or len(group.members) < self._config.max_size

    def _turn_away(
        self, group: ClassicGroup, request: JoinRequest, reply: JoinReply, now_ms: int, out: Outcome
    ) -> Outcome:
        if request.member_id:
            self._rebalancer.drop(group, request.member_id, out)
        out.reply(reply, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        self._rebalancer.complete_if_ready(group, now_ms, out)
        return out

    # --- newcomers -------------------------------------------------------------------------------------------------

    def _join_as_newcomer(
        self, group: ClassicGroup, request: JoinRequest, reply: JoinReply, now_ms: int, out: Outcome
    ) -> None:
        if not group.supports(request.protocol_type, unique_protocols(request.protocols)):
            out.reply(reply, JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        instance_id = request.group_instance_id
        member_id = f"{_id_prefix(request)}-{self._new_member_suffix()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, request, member_id, reply, now_ms, out)
        elif instance_id is None and request.requires_known_member_id:
            group.expected_members.add(member_id)
            self._rebalancer.expect(group, member_id, request.session_timeout_ms, now_ms)
            out.reply(reply, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(group, request, member_id, reply, now_ms, out)

    def _add(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, reply: JoinReply, now_ms: int, out: Outcome
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=unique_protocols(request.protocols),
            is_new=True,
        )
        group.newcomer_during_delay |= group.in_initial_delay
        group.add(member, request.protocol_type)
        self._rebalancer.park_join(group, member_id, reply, out)
        # It cannot send heartbeats before it is answered, and clients that gave up and came back as somebody else
        # must not stay for ever.
        self._rebalancer.expect(group, member_id, self._config.new_member_join_timeout_ms, now_ms)
        self._rebalancer.rebalance_or_complete(group, f"member {member_id} joins{_because(request)}", now_ms, out)

    # --- known members ---------------------------------------------------------------------------------------------

    def _join_again(
        self, group: ClassicGroup, request: JoinRequest, reply: JoinReply, now_ms: int, out: Outcome
    ) -> None:
        member_id = request.member_id
        if not group.supports(request.protocol_type, unique_protocols(request.protocols)):
            out.reply(reply, JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=member_id))
            return
        if member_id in group.expected_members:
            self._join_as_expected(group, request, reply, now_ms, out)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error:
            out.reply(reply, JoinResult(error=error, member_id=member_id))
        elif self._rejoin_starts_round(group, request):
            member = group.members[member_id]
            self._update(group, member, request)
            self._rebalancer.park_join(group, member_id, reply, out)
            reason = f"member {member_id} joins again{_because(request)}"
            self._rebalancer.rebalance_or_complete(group, reason, now_ms, out)
        else:
            out.reply(reply, group.join_result(member_id))

    def _join_as_expected(
        self, group: ClassicGroup, request: JoinRequest, reply: JoinReply, now_ms: int, out: Outcome
    ) -> None:
        if request.group_instance_id is not None:
            # The id was given to a dynamic member. Kafka's coordinator trips over this, which reads the same outside.
            out.reply(reply, JoinResult(error=ErrorCode.UNKNOWN_SERVER_ERROR, member_id=request.member_id))
            return
        self._add(group, request, request.member_id, reply, now_ms, out)

    def _rejoin_starts_round(self, group: ClassicGroup, request: JoinRequest) -> bool:
        """A member that only missed its answer is told again; the leader may always ask for a new round."""
        if group.state is GroupState.PREPARING_REBALANCE:
            return True
        if not group.members[request.member_id].matches(request.protocols):
            return True
        return group.state is GroupState.STABLE and group.leader_id == request.member_id

    def _update(self, group: ClassicGroup, member: Member, request: JoinRequest) -> None:
        protocols = unique_protocols(request.protocols)
        group.update(member, protocols, _rebalance_timeout_ms(request), request.session_timeout_ms)

    # --- static members that come back -----------------------------------------------------------------------------

    def _replace_static(
        self, group: ClassicGroup, request: JoinRequest, new_id: str, reply: JoinReply, now_ms: int, out: Outcome
    ) -> None:
        instance_id = request.group_instance_id
        invariant(instance_id is not None, "only a static member can be replaced")
        old_id = group.static_members[instance_id or ""]
        self._rebalancer.release(group, old_id, ErrorCode.FENCED_INSTANCE_ID, old_id, out)
        undo = self._rename(group, instance_id or "", old_id, new_id, now_ms)
        member = group.members[new_id]
        old_leader_id = old_id if group.leader_id == new_id else group.leader_id
        self._update(group, member, request)
        self._rebalancer.keep_alive(group, member, now_ms)
        reason = f"static member {instance_id} joins again as {new_id}{_because(request)}"
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._log_replacement(group, request, new_id, old_leader_id, reply, out)
            out.compensations.append(undo)
            return
        # A leader that is working on the assignment still has the old id, so CompletingRebalance must start over too.
        self._rebalancer.park_join(group, new_id, reply, out)
        self._rebalancer.rebalance_or_complete(group, reason, now_ms, out)

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

    def _log_replacement(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        new_id: str,
        old_leader_id: str | None,
        reply: JoinReply,
        out: Outcome,
    ) -> None:
        """Nothing changes for the others: the member keeps its assignment and there is no round.

        A returning leader must not assign again. Told that it is the leader, it is also told to skip that (KIP-814);
        a client that cannot be told so gets the old id as the leader's and takes itself for a follower.
        """
        group.topics = group.read_topics()
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        out.records.append(group_record(group.group_id, group.durable(assignments)))
        result = group.join_result(new_id)
        if request.supports_skipping_assignment:
            out.reply(reply, replace(result, skip_assignment=group.leader_id == new_id))
        else:
            out.reply(reply, replace(result, leader=old_leader_id or "", members=()))


def _rebalance_timeout_ms(request: JoinRequest) -> int:
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _id_prefix(request: JoinRequest) -> str:
    return request.client_id if request.group_instance_id is None else request.group_instance_id


def _because(request: JoinRequest) -> str:
    return f" ({request.reason})" if request.reason else ""
