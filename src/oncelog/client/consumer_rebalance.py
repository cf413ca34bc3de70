"""The phases of a subscribed consumer: what its application is told when partitions come and go.

Pure: `advance` is called with each poll, and returns the next change that the application is to handle. The phases:

    phase       left when
    OUT         subscribed: -> JOINING
    GIVING_UP   the callback for revoked or lost partitions was handled
    JOINING     the join has succeeded: -> TAKING, by way of GIVING_UP if the cooperative protocol took something away
    TAKING      the callback for assigned partitions was handled: -> STABLE
    STABLE      the group rebalances (-> JOINING, by way of GIVING_UP if eager) or the membership is lost (-> GIVING_UP)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from oncelog.client.consumer_positions import Positions
from oncelog.client.group_member import GroupMember
from oncelog.core.ids import TopicPartition


class Phase(Enum):
    OUT = "out"
    GIVING_UP = "giving up"
    JOINING = "joining"
    TAKING = "taking"
    STABLE = "stable"


class RebalanceKind(Enum):
    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class Rebalance(NamedTuple):
    """Partitions that come or go; the consumer waits for `handled`."""

    kind: RebalanceKind
    partitions: list[TopicPartition]


class Rebalances:
    def __init__(self, member: GroupMember, positions: Positions) -> None:
        self.phase = Phase.OUT
        self.topics: frozenset[str] = frozenset()
        """The topics that the present membership was joined with, or is being joined with."""
        self.member = member
        self._positions = positions
        self._target: list[TopicPartition] | None = None
        """What the last join has assigned, until it is taken."""
        self._announced: Rebalance | None = None
        """The change that the application is to handle. It is told again, if the poll that told it was cancelled."""

    def advance(self, topics: frozenset[str]) -> Rebalance | None:
        """The next change. In the phase JOINING `GroupMember.join` is to run, and to end with `joined` or `not_joined`.

        What is REVOKED may still be committed; it is removed by `handled`.
        """
        member = self.member
        if member.lost and self.phase is not Phase.JOINING:
            member.lost = False
            if len(self._positions):
                return self._give_up(RebalanceKind.LOST, self._positions.partitions())
            self.phase, self._announced = Phase.OUT, None
        if self._announced is not None:
            return self._announced
        if self.phase is Phase.STABLE and (member.rejoin_needed or topics != self.topics):
            if not member.cooperative and len(self._positions):
                return self._give_up(RebalanceKind.REVOKED, self._positions.partitions())
            self.phase = Phase.OUT
        if self.phase is Phase.OUT:
            self.phase, self.topics, self._target = Phase.JOINING, topics, None
        if self.phase is not Phase.JOINING or self._target is None:
            return None
        gone = self._positions.partitions() - set(self._target)
        if not gone:
            return self._take_target(self._target)
        # Only the cooperative protocol keeps partitions through a join. What it took away is somebody else's after the
        # next rebalance, so that one is asked for as soon as this one is done.
        member.rejoin_needed = True
        return self._give_up(RebalanceKind.REVOKED, gone)

    def joined(self, assigned: list[TopicPartition]) -> None:
        self._target = assigned

    def not_joined(self) -> None:
        self.phase = Phase.OUT

    def left(self) -> None:
        self.phase, self._target, self._announced = Phase.OUT, None, None

    def handled(self, rebalance: Rebalance) -> Rebalance | None:
        """The callback for a change is done. There may be a next change at once."""
        self._announced = None
        if rebalance.kind is RebalanceKind.ASSIGNED:
            self._positions.add(rebalance.partitions)
            self.phase, self._target = Phase.STABLE, None
            return None
        self._positions.remove(rebalance.partitions)
        if self._target is not None and rebalance.kind is RebalanceKind.REVOKED:
            return self._take_target(self._target)
        self.phase = Phase.OUT
        return None

    def _give_up(self, kind: RebalanceKind, partitions: Iterable[TopicPartition]) -> Rebalance:
        self.phase, self._announced = Phase.GIVING_UP, Rebalance(kind, sorted(partitions))
        return self._announced

    def _take_target(self, target: list[TopicPartition]) -> Rebalance:
        self.phase = Phase.TAKING
        self._announced = Rebalance(RebalanceKind.ASSIGNED, sorted(set(target) - self._positions.partitions()))
        return self._announced
