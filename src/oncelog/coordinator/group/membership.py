"""SyncGroup, Heartbeat and LeaveGroup: what members say once they have joined."""

from __future__ import annotations

from oncelog.coordinator.group.group import ClassicGroup, SyncReply
from oncelog.coordinator.group.rebalance import Rebalancer
from oncelog.coordinator.group.records import group_record
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import Outcome, Reply, ReplyHandle
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.group_metadata_log import GroupMetadataValue
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class Membership:
    def __init__(self, groups: dict[str, ClassicGroup], rebalancer: Rebalancer) -> None:
        self._groups = groups
        self._rebalancer = rebalancer

    # SyncGroup

    def sync(self, request: SyncGroupRequest, reply: SyncReply, now_ms: int) -> Outcome:
        out = Outcome()
        if not request.group_id:
            return out.reply(reply, SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._groups.get(request.group_id)
        if group is None:
            return out.reply(reply, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        error = _check_sync(group, request)
        if error:
            return out.reply(reply, SyncGroupResponse(error_code=error))
        self._rebalancer.received_sync(group, request.member_id)
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalancer.keep_alive(group, member, now_ms)
            return out.reply(reply, group.sync_response(member.assignment))
        self._rebalancer.park_sync(group, request.member_id, reply, out)
        if request.member_id == group.leader_id and not group.is_storing_assignment:
            assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            self._assign(group, assignments, now_ms, out)
        return out

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """Log the leader's assignment. The group is Stable, and answered, when the record is replayed: see `adopt`."""
        forgotten = sorted(member_id for member_id in group.members if member_id not in assignments)
        if forgotten:
            out.notes.append(f"group {group.group_id}: the leader assigned nothing to {', '.join(forgotten)}")
        metadata = group.durable(assignments)
        metadata.current_state_timestamp = now_ms
        out.records.append(group_record(group.group_id, metadata))
        generation_id = group.stored_generation_id = group.generation_id
        out.compensations.append(
            lambda error, undo_ms, undone: self._undo_assign(group, generation_id, error, undo_ms, undone)
        )

    def _undo_assign(
        self, group: ClassicGroup, generation_id: int, error: ErrorCode, now_ms: int, out: Outcome
    ) -> None:
        """A generation without its assignment in the log does not count: its members start over."""
        has_moved_on = group.generation_id != generation_id or self._groups.get(group.group_id) is not group
        if has_moved_on or group.state is not GroupState.COMPLETING_REBALANCE:
            return
        self._rebalancer.reset_assignments(group, error, now_ms, out)
        self._rebalancer.prepare(group, f"the assignment could not be stored ({error.name})", now_ms, out)

    def adopt(self, group: ClassicGroup, metadata: GroupMetadataValue, now_ms: int) -> tuple[Reply, ...]:
        """The assignment that a group waits for is committed: it is Stable now, and its members are answered."""
        waits_for_it = group.state is GroupState.COMPLETING_REBALANCE and group.generation_id == metadata.generation
        if not waits_for_it:
            return ()
        for member in metadata.members:
            group.members[member.member_id].assignment = bytes(member.assignment)
        group.move_to(GroupState.STABLE, max(metadata.current_state_timestamp, 0))
        waiting, group.awaiting_sync = group.awaiting_sync, {}
        for member_id in waiting:
            self._rebalancer.keep_alive(group, group.members[member_id], now_ms)
        return tuple(
            Reply(reply, group.sync_response(group.members[member_id].assignment))
            for member_id, reply in waiting.items()
        )

    # Heartbeat

    def heartbeat(self, request: HeartbeatRequest, reply: ReplyHandle, now_ms: int) -> Outcome:
        return Outcome().reply(reply, HeartbeatResponse(error_code=self._heartbeat(request, now_ms)))

    def _heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(request.member_id, request.group_instance_id)
        if error:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.keep_alive(group, group.members[request.member_id], now_ms)
        is_rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE

    # LeaveGroup

    def leave(self, request: LeaveGroupRequest, reply: ReplyHandle, now_ms: int) -> Outcome:
        out = Outcome()
        if not request.group_id:
            return out.reply(reply, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._groups.get(request.group_id)
        left = [
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=self._leave_one(group, member, out),
            )
            for member in request.members
        ]
        gone = [entry.member_id or entry.group_instance_id or "" for entry in left if not entry.error_code]
        if group is not None and gone:
            reason = f"{', '.join(gone)} left"
            if group.state is not GroupState.EMPTY:
                self._rebalancer.rebalance_or_complete(group, reason, now_ms, out)
        return out.reply(reply, LeaveGroupResponse(members=left))

    def _leave_one(self, group: ClassicGroup | None, leaving: MemberIdentity, out: Outcome) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = leaving.member_id
        if not member_id:
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
        if member_id not in group.expected_members:
            error = group.check_member(member_id, leaving.group_instance_id)
            if error:
                return error
        self._rebalancer.drop(group, member_id, out)
        return ErrorCode.NONE


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(said: str | None, known: str | None) -> bool:
    """SyncGroup before v5 says nothing about protocols."""
    return said is not None and known is not None and said != known
