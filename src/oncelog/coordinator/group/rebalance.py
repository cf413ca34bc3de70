"""The round that a group goes through: preparing, completing, and the three timers.

`prepare` opens a round, `complete` closes its join phase, `drop` takes a member out. They answer parked requests into
the outcome they are given. See `state` for the theory.
"""

from __future__ import annotations

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup, JoinReply, SyncReply
from oncelog.coordinator.group.member import Member
from oncelog.coordinator.group.records import group_record
from oncelog.coordinator.group.responses import join_refused
from oncelog.coordinator.group.state import GroupState, may_move
from oncelog.coordinator.group.timers import TimerKey, TimerKind, TimerQueue
from oncelog.coordinator.outcome import Outcome
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.sync_group import SyncGroupResponse


class Rebalancer:
    def __init__(self, config: GroupConfig, timers: TimerQueue) -> None:
        self._config = config
        self._timers = timers

    # The round

    def rebalance_or_complete(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        """Open a round, or, when one is open, close its join phase if this was the last member to wait for."""
        if may_move(group.state, GroupState.PREPARING_REBALANCE):
            self.prepare(group, reason, now_ms, out)
        else:
            self.complete_if_ready(group, now_ms, out)

    def prepare(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
        group.missing_sync.clear()
        self._timers.cancel(_sync_key(group))
        is_initial = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, now_ms)
        out.notes.append(f"group {group.group_id}: rebalancing generation {group.generation_id}: {reason}")
        if is_initial:
            self._start_initial_delay(group, now_ms, out)
        elif group.everyone_joined:
            self.complete(group, now_ms, out)
        else:
            self._timers.schedule(_join_key(group), now_ms + group.rebalance_timeout_ms)

    def complete_if_ready(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """The first round of an empty group is not closed early: its delay is there for others to come."""
        is_preparing = group.state is GroupState.PREPARING_REBALANCE
        if is_preparing and not group.in_initial_delay and group.everyone_joined:
            self.complete(group, now_ms, out)

    def complete(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Close the join phase: dynamic members that did not come are out, those that came form a generation."""
        self._timers.cancel(_join_key(group))
        absent = [m for m in group.members.values() if m.member_id not in group.awaiting_join and not m.is_static]
        for member in absent:
            self.drop(group, member.member_id, out)
            out.notes.append(f"group {group.group_id}: member {member.member_id} did not join in time and is removed")
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and all are away. Their sessions decide; until then the round stays open.
            self._timers.schedule(_join_key(group), now_ms + group.rebalance_timeout_ms)
            return
        group.start_generation(now_ms)
        if group.state is GroupState.EMPTY:
            out.records.append(group_record(group.group_id, group.durable({})))
            out.notes.append(f"group {group.group_id}: empty as of generation {group.generation_id}")
        else:
            self._announce_generation(group, now_ms, out)

    def _announce_generation(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        for member in group.members.values():
            reply = group.awaiting_join.pop(member.member_id, None)
            if reply is not None:
                out.reply(reply, group.join_response(member.member_id))
            self.keep_alive(group, member, now_ms)
            member.is_new = False
            group.missing_sync.add(member.member_id)
        self._timers.schedule(_sync_key(group), now_ms + group.rebalance_timeout_ms)
        out.notes.append(
            f"group {group.group_id}: generation {group.generation_id} with {len(group.members)} members,"
            f" leader {group.leader_id}"
        )

    def _start_initial_delay(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        delay_ms = self._config.initial_rebalance_delay_ms
        if delay_ms <= 0:
            self.complete(group, now_ms, out)
            return
        group.newcomer_during_delay = False
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._timers.schedule(_join_key(group), now_ms + delay_ms)

    # Assignments

    def reset_assignments(self, group: ClassicGroup, error: ErrorCode, now_ms: int, out: Outcome) -> None:
        """This generation gets no assignment: members that wait for one get the error."""
        for member in group.members.values():
            member.assignment = b""
        for member_id, reply in group.awaiting_sync.items():
            out.reply(reply, SyncGroupResponse(error_code=error))
            self.keep_alive(group, group.members[member_id], now_ms)
        group.awaiting_sync.clear()

    def received_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.missing_sync.discard(member_id)
        if not group.missing_sync:
            self._timers.cancel(_sync_key(group))

    # Members

    def park_join(self, group: ClassicGroup, member_id: str, reply: JoinReply, out: Outcome) -> None:
        """A client that asks again has lost patience with its first request, which is answered so that it ends."""
        earlier = group.awaiting_join.pop(member_id, None)
        if earlier is not None:
            out.reply(earlier, join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        group.awaiting_join[member_id] = reply

    def park_sync(self, group: ClassicGroup, member_id: str, reply: SyncReply, out: Outcome) -> None:
        earlier = group.awaiting_sync.pop(member_id, None)
        if earlier is not None:
            out.reply(earlier, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        group.awaiting_sync[member_id] = reply

    def release(self, group: ClassicGroup, member_id: str, error: ErrorCode, answered_id: str, out: Outcome) -> None:
        """Answer the parked requests of a member with an error. `answered_id` is the member id in the answer."""
        join = group.awaiting_join.pop(member_id, None)
        if join is not None:
            out.reply(join, join_refused(error, answered_id))
        sync = group.awaiting_sync.pop(member_id, None)
        if sync is not None:
            out.reply(sync, SyncGroupResponse(error_code=error))

    def drop(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """Take a member out. UNKNOWN_MEMBER_ID makes a client that is still there join anew."""
        self.release(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID, "", out)
        group.remove(member_id)
        self._timers.cancel(_session_key(group, member_id))

    def keep_alive(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        self._timers.schedule(_session_key(group, member.member_id), now_ms + member.session_timeout_ms)

    def expect(self, group: ClassicGroup, member_id: str, timeout_ms: int, now_ms: int) -> None:
        """Set the time-out of a member that has no session of its own yet."""
        self._timers.schedule(_session_key(group, member_id), now_ms + timeout_ms)

    def forget_member_timer(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(_session_key(group, member_id))

    def forget_group(self, group: ClassicGroup) -> None:
        """Cancel the timers of a group that is gone."""
        self._timers.cancel(_join_key(group))
        self._timers.cancel(_sync_key(group))
        for member_id in (*group.members, *group.expected_members):
            self._timers.cancel(_session_key(group, member_id))

    # Timers

    def session_expired(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        if member_id in group.expected_members:
            group.remove(member_id)
            self.complete_if_ready(group, now_ms, out)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member_id in group.awaiting_join or member_id in group.awaiting_sync):
            # A parked request stands for its heartbeats; the timer is set again when the request is answered.
            return
        self.drop(group, member_id, out)
        self.rebalance_or_complete(group, f"member {member_id} was silent for its session time-out", now_ms, out)

    def join_expired(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.in_initial_delay and group.newcomer_during_delay and group.delay_left_ms > 0:
            delay_ms = min(self._config.initial_rebalance_delay_ms, group.delay_left_ms)
            group.newcomer_during_delay = False
            group.delay_left_ms -= delay_ms
            self._timers.schedule(_join_key(group), now_ms + delay_ms)
            return
        self.complete(group, now_ms, out)

    def sync_expired(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        in_time = group.is_in(GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if not in_time or not group.missing_sync:
            return
        missing = sorted(group.missing_sync)
        for member_id in missing:
            self.drop(group, member_id, out)
        self.prepare(group, f"members {', '.join(missing)} did not fetch their assignment", now_ms, out)


def _join_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(TimerKind.JOIN, group.group_id)


def _sync_key(group: ClassicGroup) -> TimerKey:
    return TimerKey(TimerKind.SYNC, group.group_id)


def _session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)
