"""The states of a classic group, and the one table of the moves between them.

Theory of operation
-------------------
A group is a set of members that share work. Members ask to join; when all that are expected have asked, or time is
up, a *generation* is born: its number goes up by one, one member is the leader, everyone is told so (JoinGroup). The
leader works out who does what and hands it in (SyncGroup); the assignment is written to the log and then told to
everyone. Heartbeats keep a member alive. Whoever joins, leaves, falls silent or changes its subscription starts the
next round. What the work is and how it is divided is the clients' business: the coordinator carries opaque bytes.

    Empty                no members. Also every group that only stores offsets.
    PreparingRebalance   collecting members: their JoinGroups are parked.
    CompletingRebalance  a generation exists, its assignment does not yet: SyncGroups are parked.
    Stable               the assignment is in the log; members heartbeat.
    Dead                 removed: deleted, expired, or the partition moved to another broker.

                          join                    all joined
            Empty ------------------> Preparing -------------> Completing
              ^                        |  ^  ^                    |    |
              +------------------------+  |  +--------------------+    | leader's assignment
                 nobody left              |     join, leave, failure   | is in the log
                                          |                            v
                                          +------------------------- Stable
                                             join, leave, failure

What is durable and what is not: the log knows a group as of its last Stable or Empty generation (`GroupMetadata`).
Everything about a round in progress (who has asked to join, parked requests, timers, the number of a generation that
has no assignment yet) lives in memory only. After a crash the group is as the log says and members find out through
ILLEGAL_GENERATION or UNKNOWN_MEMBER_ID that they must join again; no commit is accepted in between, because commits
need a member and a generation that the log knows.

Offsets, assignments and deletions count when their record is committed, and not before. Three changes are made in
memory when they are decided, as in Kafka's coordinator: a new group, which is not shown until the log has it; a
generation that is Empty; and the new id of a static member, whose old instance may learn at once that it is fenced.
Nobody takes part in the group because of them alone: what could follow from them, such as an assignment or an offset,
is behind them in the same log. An append that is refused at once takes the first and the last back (`compensations` of
an `Outcome`). One that fails later means that another broker leads or that the log has failed, and then the whole shard
is loaded anew.

Two timers drive a group besides its members: the join timer (PreparingRebalance lasts at most the longest rebalance
time-out of its members; the first rebalance of an empty group waits `group.initial.rebalance.delay.ms` for company)
and the sync timer (members that never fetch their assignment are removed). Each member has a session timer.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class GroupState(Enum):
    """The value is the name that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


def may_move(source: GroupState, target: GroupState) -> bool:
    return target in TRANSITIONS[source]
