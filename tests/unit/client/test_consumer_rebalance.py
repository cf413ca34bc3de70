"""The phases of a subscribed consumer, without a broker and without an event loop."""

from __future__ import annotations

from typing import Any

from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import Positions
from oncelog.client.consumer_rebalance import Phase, Rebalance, RebalanceKind, Rebalances
from oncelog.client.group_member import GroupMember
from oncelog.core.ids import TopicPartition
from tests.unit.client.scripted_network import CONFIG, ScriptedNetwork

TOPICS = frozenset({"orders"})
A, B, C = (TopicPartition("orders", number) for number in range(3))


def subscribed(strategy: str) -> Rebalances:
    settings = {"bootstrap.servers": "boot:1", "group.id": "g", "partition.assignment.strategy": strategy}

    def script(peer: str, request: Any) -> Any:
        raise AssertionError("the phases ask nobody")

    cluster = Cluster(CONFIG, ScriptedNetwork(script))
    return Rebalances(GroupMember(cluster, ConsumerConfig.parse(settings), lambda: None), Positions())


def assigned(rebalances: Rebalances, positions: Positions, *partitions: TopicPartition) -> None:
    assert rebalances.advance(TOPICS) is None
    assert rebalances.phase is Phase.JOINING
    rebalances.joined(list(partitions))
    change = rebalances.advance(TOPICS)
    assert change is not None and change.kind is RebalanceKind.ASSIGNED
    assert rebalances.handled(change) is None
    assert rebalances.phase is Phase.STABLE
    assert positions.partitions() == frozenset(partitions)


def test_an_eager_member_gives_everything_up_before_it_joins_again() -> None:
    rebalances = subscribed("range")
    assigned(rebalances, rebalances._positions, A, B)
    rebalances.member.rejoin_needed = True
    revoked = rebalances.advance(TOPICS)
    assert revoked == Rebalance(RebalanceKind.REVOKED, [A, B])
    assert rebalances.handled(revoked) is None
    assert rebalances._positions.partitions() == frozenset()
    rebalances.member.rejoin_needed = False
    assigned(rebalances, rebalances._positions, B)


def test_a_cooperative_member_gives_up_only_what_a_join_took_away_and_asks_for_another_rebalance() -> None:
    rebalances = subscribed("cooperative-sticky")
    assigned(rebalances, rebalances._positions, A, B)
    rebalances.member.rejoin_needed = True
    assert rebalances.advance(TOPICS) is None
    rebalances.member.rejoin_needed = False
    rebalances.joined([B, C])
    revoked = rebalances.advance(TOPICS)
    assert revoked == Rebalance(RebalanceKind.REVOKED, [A])
    assert rebalances.member.rejoin_needed
    assert rebalances.handled(revoked) == Rebalance(RebalanceKind.ASSIGNED, [C])


def test_partitions_of_a_lost_membership_are_lost_and_an_older_assignment_is_not_taken() -> None:
    rebalances = subscribed("cooperative-sticky")
    assigned(rebalances, rebalances._positions, A)
    rebalances.member.rejoin_needed = True
    assert rebalances.advance(TOPICS) is None
    rebalances.joined([B])
    assert rebalances.advance(TOPICS) == Rebalance(RebalanceKind.REVOKED, [A])
    rebalances.member.lost = True
    lost = rebalances.advance(TOPICS)
    assert lost == Rebalance(RebalanceKind.LOST, [A])
    assert rebalances.handled(lost) is None
    assert rebalances.advance(TOPICS) is None, "the assignment of the lost membership was taken"
    assert rebalances.phase is Phase.JOINING


def test_a_join_that_failed_is_tried_again_and_a_new_subscription_joins_again() -> None:
    rebalances = subscribed("range")
    assert rebalances.advance(TOPICS) is None
    rebalances.not_joined()
    assert rebalances.phase is Phase.OUT
    assigned(rebalances, rebalances._positions)
    assert rebalances.advance(frozenset({"orders", "payments"})) is None
    assert rebalances.phase is Phase.JOINING


def test_a_change_that_a_cancelled_poll_took_along_is_told_again() -> None:
    rebalances = subscribed("range")
    assigned(rebalances, rebalances._positions, A, B)
    rebalances.member.rejoin_needed = True
    revoked = rebalances.advance(TOPICS)
    assert revoked is not None and rebalances.advance(TOPICS) == revoked
    assert rebalances.handled(revoked) is None
    rebalances.member.rejoin_needed = False
    assert rebalances.advance(TOPICS) is None
    rebalances.joined([B])
    taken = rebalances.advance(TOPICS)
    assert taken is not None and rebalances.advance(TOPICS) == taken
    rebalances.member.lost = True
    assert rebalances.advance(TOPICS) is None and rebalances.phase is Phase.JOINING
