"""Who leads, who is in sync: AlterPartition, elections, ELR, reassignment."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.core.config_resources import AlterOperation, ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.unit.controller.rig import SESSION_MS, Rig, state


def three(*, elr: bool = True, **configs: str) -> Rig:
    rig = Rig(elr=elr)
    rig.start(1, 2, 3)
    rig.create("orders", [1, 2, 3], **configs)
    return rig


def kill(rig: Rig, broker_id: int) -> None:
    """It sends no more heartbeats, the others do."""
    alive = [each for each in rig.epochs if each != broker_id and not rig.registration(each).is_fenced]
    rig.pass_time(SESSION_MS + 1000, *alive)
    assert rig.registration(broker_id).is_fenced


def reassign(rig: Rig, *replicas: int, **fields: Any) -> int:
    partition = ReassignablePartition(partition_index=0, replicas=list(replicas) or None)
    topic = ReassignableTopic(name="orders", partitions=[partition])
    answer = rig.ask(AlterPartitionReassignmentsRequest(topics=[topic], **fields))
    code: int = answer.responses[0].partitions[0].error_code
    return code


def elect(rig: Rig, election_type: int, *indexes: int) -> list[int]:
    asked = [TopicPartitions(topic="orders", partitions=list(indexes))] if indexes else None
    answer = rig.ask(ElectLeadersRequest(election_type=election_type, topic_partitions=asked))
    return [result.error_code for topic in answer.replica_election_results for result in topic.partition_result]


def test_a_leader_shrinks_and_expands_the_isr() -> None:
    rig = three()
    answer = rig.alter("orders", [1, 2])
    assert (answer.error_code, answer.isr, answer.partition_epoch, answer.leader_epoch) == (0, [1, 2], 1, 0)
    assert rig.last == [PartitionChangeRecord(topic_id=rig.image.topic_ids["orders"], partition_id=0, isr=[1, 2])]
    assert rig.alter("orders", [1, 2, 3]).isr == [1, 2, 3]
    assert rig.alter("orders", [1, 2, 3]).error_code == 0
    assert rig.last == []


@pytest.mark.parametrize(
    ("isr", "fields", "code"),
    [
        ([1], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ([1], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([2], {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ([1], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([1, 4], {}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"recovering": 1}, ErrorCode.INVALID_REQUEST),
        ([1], {"recovering": 1}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"epochs": {1: -1, 2: 3}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_a_leader_may_not_ask_for(isr: list[int], fields: dict[str, Any], code: ErrorCode) -> None:
    rig = three()
    assert rig.alter("orders", isr, **fields).error_code == code
    assert rig.last == []


def test_a_fenced_or_stopping_broker_does_not_join_an_isr() -> None:
    rig = three()
    kill(rig, 3)
    assert rig.alter("orders", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    rig.create("led by 2".replace(" ", "-"), [2])
    rig.heartbeat(2, want_shut_down=True)
    assert rig.alter("orders", [1, 2]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_the_eligible_leader_replicas_of_a_partition_below_its_minimum() -> None:
    """A history that a controller of Apache Kafka has played in the same way.

    Whoever stopped uncleanly may have lost what was committed, and leaves the ELR when it registers (KAFKA-18635).
    """
    rig = three(min_insync_replicas="2")
    kill(rig, 3)
    assert state(rig.partition("orders")) == (1, [1, 2], [])
    kill(rig, 2)
    assert state(rig.partition("orders")) == (1, [1], [2])
    rig.restart(2, clean=False)
    assert state(rig.partition("orders")) == (1, [1], [])
    rig.alter("orders", [1, 2])
    rig.heartbeat(2, want_fence=True, want_shut_down=True)
    assert state(rig.partition("orders")) == (1, [1], [2])
    kill(rig, 1)
    assert state(rig.partition("orders")) == (-1, [], [1, 2])
    assert list(rig.partition("orders").last_known_elr) == [1]
    rig.restart(3, clean=True)
    assert rig.partition("orders").leader == -1
    rig.restart(2, clean=True)
    assert state(rig.partition("orders")) == (2, [2], [1])
    assert list(rig.partition("orders").last_known_elr) == []
    rig.alter("orders", [2, 3])
    assert state(rig.partition("orders")) == (2, [2, 3], [])


@pytest.mark.parametrize("is_topics", [True, False], ids=["of the topic", "of the cluster"])
def test_who_was_eligible_under_another_minimum_is_not_elected(is_topics: bool) -> None:
    """KAFKA-16540, KAFKA-18649: below the old minimum nothing was committed, and under the new one it was."""
    rig = three(min_insync_replicas="2") if is_topics else three()
    if not is_topics:
        set_minimum(rig, "2", is_topics=False)
    for broker_id in (3, 2):
        kill(rig, broker_id)
    assert state(rig.partition("orders")) == (1, [1], [2])
    set_minimum(rig, "1", is_topics=is_topics)
    assert state(rig.partition("orders")) == (1, [1], []), "from here on the leader commits alone"
    set_minimum(rig, "2", is_topics=is_topics)
    kill(rig, 1)
    assert state(rig.partition("orders")) == (-1, [], [1])
    rig.restart(2, clean=True)
    assert rig.partition("orders").leader == -1
    rig.restart(1, clean=True)
    assert state(rig.partition("orders"))[:2] == (1, [1])


def test_the_minimum_of_a_partition_is_bounded_by_its_own_replicas() -> None:
    """Others of the topic may have fewer. Its leader commits nothing alone, so whoever has left has everything."""
    rig = Rig()
    rig.start(1, 2, 3)
    rig.create("orders", [1, 2, 3], [1, 2, 3], min_insync_replicas="2")
    assert reassign(rig, 1) == 0
    for broker_id in (3, 2):
        kill(rig, broker_id)
    assert state(rig.partition("orders", 1)) == (1, [1], [2])
    assert state(rig.partition("orders", 0)) == (1, [1], [])


def test_who_was_eligible_before_elr_was_off_is_not_elected_when_it_is_on_again() -> None:
    """Nobody has kept the list meanwhile, as in KAFKA-16540: the leader has committed alone."""
    rig = three(min_insync_replicas="2")
    for broker_id in (3, 2):
        kill(rig, broker_id)
    assert state(rig.partition("orders")) == (1, [1], [2])
    set_level(rig, 0)
    set_minimum(rig, "1", is_topics=True)
    set_level(rig, 1)
    assert state(rig.partition("orders")) == (1, [1], [])
    kill(rig, 1)
    rig.restart(2, clean=True)
    assert rig.partition("orders").leader == -1
    rig.restart(1, clean=True)
    assert rig.partition("orders").leader == 1


def set_level(rig: Rig, level: int) -> None:
    """Of eligible leader replicas."""
    name = "eligible.leader.replicas.version"
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=1 if level else 2)
    assert rig.ask(UpdateFeaturesRequest(feature_updates=[update])).error_code == 0


def set_minimum(rig: Rig, value: str, *, is_topics: bool) -> None:
    config = AlterableConfig(name="min.insync.replicas", config_operation=AlterOperation.SET, value=value)
    kind, name = (ResourceType.TOPIC, "orders") if is_topics else (ResourceType.BROKER, "")
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    assert rig.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0


def test_the_last_known_leader_comes_back_uncleanly_when_nobody_else_is_known() -> None:
    """Not while it is fenced (KAFKA-19522)."""
    rig = three(min_insync_replicas="1")
    for broker_id in (3, 2, 1):
        kill(rig, broker_id)
    rig.restart(3, clean=True)
    assert rig.partition("orders").leader == -1
    rig.now_ms += SESSION_MS + 1
    rig.register(1, previous_broker_epoch=-1)
    assert state(rig.partition("orders")) == (-1, [], []), "it has left the ELR, and is not in service yet"
    rig.heartbeat(1)
    found = rig.partition("orders")
    assert (found.leader, found.isr, found.is_recovering) == (1, (1,), True)
    assert rig.alter("orders", [1], recovering=0).leader_recovery_state == 0
    assert not rig.partition("orders").is_recovering


def test_without_elr_only_the_last_of_the_isr_can_lead() -> None:
    rig = three(elr=False)
    for broker_id in (2, 3, 1):
        kill(rig, broker_id)
    assert state(rig.partition("orders")) == (-1, [1], [])
    rig.restart(2, clean=True)
    assert rig.partition("orders").leader == -1
    rig.restart(1, clean=False)
    assert state(rig.partition("orders")) == (1, [1], [])


def test_an_unclean_leader_where_the_topic_allows_it() -> None:
    rig = three(elr=False, unclean_leader_election_enable="true")
    kill(rig, 3)
    rig.alter("orders", [1])
    kill(rig, 1)
    found = rig.partition("orders")
    assert (found.leader, found.isr, found.is_recovering) == (2, (2,), True)


def test_an_unclean_leader_is_elected_when_the_setting_comes_later() -> None:
    rig = three(elr=False)
    rig.alter("orders", [1])
    kill(rig, 1)
    assert elect(rig, 1, 0) == [ErrorCode.NONE]
    assert state(rig.partition("orders"))[:2] == (2, [2])
    assert elect(rig, 1, 0) == [ErrorCode.ELECTION_NOT_NEEDED]


def test_the_preferred_leader_is_elected_when_it_is_in_sync_again() -> None:
    rig = three()
    kill(rig, 1)
    assert elect(rig, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    rig.heartbeat(1)
    assert elect(rig, 0, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    rig.alter("orders", [2, 3, 1])
    assert elect(rig, 0) == [ErrorCode.NONE]
    assert rig.partition("orders").leader == 1
    assert elect(rig, 0) == []
    assert elect(rig, 0, 0, 7) == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_leadership_is_balanced_from_time_to_time() -> None:
    rig = three()
    kill(rig, 1)
    rig.heartbeat(1)
    rig.alter("orders", [2, 3, 1])
    round_ = rig.machine.round(len(rig.log))
    round_.elect_preferred()
    rig.commit(round_.records)
    assert rig.partition("orders").leader == 1


def test_a_reassignment_ends_when_the_new_replica_is_in_sync_and_moves_the_leader() -> None:
    """And not before (KAFKA-15665)."""
    rig = Rig()
    rig.start(1, 2, 3)
    rig.create("orders", [1, 2])
    assert reassign(rig, 2, 3) == 0
    found = rig.partition("orders")
    assert (found.replicas, found.removing_replicas, found.adding_replicas) == ((2, 3, 1), (1,), (3,))
    assert (found.leader, found.leader_epoch) == (1, 0)
    listed = rig.ask(ListPartitionReassignmentsRequest()).topics
    assert [(topic.name, topic.partitions[0].replicas) for topic in listed] == [("orders", [2, 3, 1])]
    assert rig.alter("orders", [1, 2, 3]).error_code == ErrorCode.NEW_LEADER_ELECTED
    found = rig.partition("orders")
    assert (found.replicas, found.removing_replicas, found.adding_replicas) == ((2, 3), (), ())
    assert (found.leader, found.leader_epoch, found.isr) == (2, 1, (2, 3))
    assert len(found.directories) == 2
    assert rig.ask(ListPartitionReassignmentsRequest()).topics == []


def test_the_leader_epoch_grows_when_a_replica_is_removed_and_the_leader_stays() -> None:
    rig = three()
    assert reassign(rig, 1, 2) == 0
    found = rig.partition("orders")
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((1, 2), (1, 2), 1, 1)


def test_a_reassignment_is_not_held_up_by_a_dead_replica_that_it_does_not_touch() -> None:
    """KAFKA-19975."""
    rig = Rig()
    rig.start(1, 2, 3, 4)
    rig.create("orders", [1, 2, 3])
    kill(rig, 3)
    assert reassign(rig, 1, 4, 3) == 0
    rig.alter("orders", [1, 2, 4])
    found = rig.partition("orders")
    assert (found.replicas, found.isr, found.removing_replicas) == ((1, 4, 3), (1, 4), ())


def test_a_reassignment_to_fewer_replicas_waits_for_one_that_is_dead() -> None:
    """The other side of KAFKA-19975: the replicas in sync must not become fewer without need."""
    rig = three()
    kill(rig, 3)
    assert reassign(rig, 1, 3) == 0
    found = rig.partition("orders")
    assert (found.isr, found.removing_replicas) == ((1, 2), (2,))


def test_a_reassignment_can_be_cancelled() -> None:
    """Nothing of it is left (KAFKA-13972)."""
    rig = Rig()
    rig.start(1, 2, 3)
    rig.create("orders", [1, 2])
    assert reassign(rig) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    reassign(rig, 3)
    assert reassign(rig) == 0
    found = rig.partition("orders")
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ((1, 2), (), ())


def test_a_reassignment_to_nowhere_is_refused() -> None:
    rig = three()
    assert reassign(rig, 1, 9) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(rig, 1, 1) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(rig, 1, allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_replica_that_was_removed_is_not_eligible_when_it_is_added_again() -> None:
    """It has deleted what it had, and would lead with an empty log."""
    rig = three(min_insync_replicas="3")
    kill(rig, 3)
    assert state(rig.partition("orders")) == (1, [1, 2], [3])
    assert reassign(rig, 1, 2) == 0
    assert list(rig.partition("orders").replicas) == [1, 2]
    assert state(rig.partition("orders")) == (1, [1, 2], [])
    rig.heartbeat(3)
    assert reassign(rig, 1, 2, 3) == 0
    kill(rig, 1)
    kill(rig, 2)
    assert state(rig.partition("orders")) == (-1, [], [1, 2])


def test_a_partition_cannot_be_reassigned_twice_in_one_request() -> None:
    rig = Rig()
    rig.start(1, 2, 3, 4)
    rig.create("orders", [1, 2])
    partitions = [ReassignablePartition(partition_index=0, replicas=each) for each in ([3, 4], [2, 1])]
    topic = ReassignableTopic(name="orders", partitions=partitions)
    answer = rig.ask(AlterPartitionReassignmentsRequest(topics=[topic]))
    codes = [each.error_code for each in answer.responses[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    found = rig.partition("orders")
    assert set(found.adding_replicas) | set(found.removing_replicas) <= set(found.replicas)
