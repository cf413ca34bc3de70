"""CreateTopics, CreatePartitions, DeleteTopics, and where replicas go."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import pytest

from oncelog.controller.placement import Placement, UsableBroker
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NULL_UUID
from oncelog.protocol.messages.cluster_metadata import (
    ClearElrRecord,
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.security.acl import Operation, Resource
from tests.unit.controller.rig import Asker, Rig


def create(rig: Rig, *topics: CreatableTopic, who: Asker | None = None, **fields: Any) -> list[int]:
    answer = rig.ask(CreateTopicsRequest(topics=list(topics), **fields), who)
    return [topic.error_code for topic in answer.topics]


def placed(name: str, count: int = 1, factor: int = 1) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=count, replication_factor=factor)


def three_brokers(**settings: str) -> Rig:
    rig = Rig(**settings)
    rig.start(1, 2, 3)
    return rig


def test_a_topic_is_one_batch_of_records_in_kafkas_order() -> None:
    rig = three_brokers()
    result = rig.create("orders", [2, 1], [3, 2], min_insync_replicas="2")
    topic_id = result.topic_id
    directories = {broker_id: uuid.UUID(int=50_000 + broker_id) for broker_id in (1, 2, 3)}

    def partition(index: int, *replicas: int) -> PartitionRecord:
        return PartitionRecord(
            partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=list(replicas), leader=replicas[0],
            leader_epoch=0, partition_epoch=0, directories=[directories[each] for each in replicas],
        )  # fmt: skip

    assert rig.last == [
        TopicRecord(name="orders", topic_id=topic_id),
        ConfigRecord(resource_type=2, resource_name="orders", name="min.insync.replicas", value="2"),
        ClearElrRecord(topic_name="orders"),
        partition(0, 2, 1),
        partition(1, 3, 2),
    ]
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    configs = {config.name: (config.value, config.config_source) for config in result.configs or []}
    assert configs["min.insync.replicas"] == ("2", 1)
    assert configs["cleanup.policy"] == ("delete", 5)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (placed("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (placed(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (placed("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (placed("with.dot"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (placed("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (placed("new", 0), ErrorCode.INVALID_PARTITIONS),
        (placed("new", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (placed("new", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_created(topic: CreatableTopic, code: ErrorCode) -> None:
    rig = three_brokers()
    create(rig, placed("there"), placed("with_dot"))
    assert create(rig, topic, placed("fine")) == [code, ErrorCode.NONE]
    assert "fine" in rig.image.topic_ids and topic.name not in rig.image.topic_ids.keys() - {"there"}


@pytest.mark.parametrize("replicas", [[[]], [[1, 1]], [[1, 9]], [[1, 2], [3]]])
def test_assignments_that_are_not_possible(replicas: list[list[int]]) -> None:
    rig = three_brokers()
    assert rig.create("orders", *replicas).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert rig.last == []


def test_a_topic_named_twice_and_too_many_partitions_are_refused() -> None:
    rig = three_brokers()
    assert create(rig, placed("twice"), placed("twice")) == [ErrorCode.INVALID_REQUEST]
    with pytest.raises(KafkaError) as caught:
        create(rig, placed("many", 9_000), placed("more", 1_001))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_only_active_brokers_are_in_sync_and_one_is_needed() -> None:
    rig = three_brokers()
    rig.heartbeat(1, want_fence=True)
    rig.create("orders", [1, 2])
    assert (rig.partition("orders").leader, rig.partition("orders").isr) == (2, (2,))
    assert rig.create("none", [1]).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_counts_that_are_left_open_come_from_the_settings_of_the_controller() -> None:
    rig = three_brokers(num_partitions="5", default_replication_factor="2")
    assert create(rig, placed("orders", -1, -1)) == [0]
    assert len(rig.partition("orders", 4).replicas) == 2


def test_validate_only_writes_nothing() -> None:
    rig = three_brokers()
    assert create(rig, placed("orders"), validate_only=True) == [0]
    assert rig.last == [] and "orders" not in rig.image.topic_ids


def test_who_may_create_and_delete() -> None:
    rig = three_brokers()
    create(rig, placed("theirs"))
    operations = (Operation.CREATE, Operation.DELETE, Operation.DESCRIBE)
    who = Asker(allowed=frozenset((operation, Resource.TOPIC, "mine") for operation in operations))
    assert create(rig, placed("mine"), placed("yours"), who=who) == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    topics = [DeleteTopicState(name=name) for name in ("mine", "theirs", "nowhere")]
    answer = rig.ask(DeleteTopicsRequest(topics=topics), who)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [each.error_code for each in answer.responses] == [0, refused, refused]
    assert list(rig.image.topic_ids) == ["theirs"]


def test_topics_are_deleted_by_name_or_id_and_not_twice() -> None:
    rig = three_brokers()
    create(rig, placed("a"), placed("b"), placed("c"))
    ids = dict(rig.image.topic_ids)
    topics = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=ids["b"]), DeleteTopicState(name="b"),
              DeleteTopicState(name="x"), DeleteTopicState(topic_id=uuid.UUID(int=5)), DeleteTopicState(name="c"),
              DeleteTopicState(name="c"), DeleteTopicState(name="c", topic_id=ids["c"]),
              DeleteTopicState()]  # fmt: skip
    answer = rig.ask(DeleteTopicsRequest(topics=topics))
    bad = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in answer.responses] == [
        0, bad, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, bad, bad, bad,
    ]  # fmt: skip
    assert rig.last == [RemoveTopicRecord(topic_id=ids["a"])]
    assert (answer.responses[1].name, answer.responses[1].topic_id) == ("b", ids["b"])
    assert answer.responses[2].topic_id == NULL_UUID


def test_an_id_is_deleted_by_whoever_may_not_know_that_it_has_the_name_given_beside_it() -> None:
    rig = three_brokers()
    create(rig, placed("a"))
    by_id = DeleteTopicState(topic_id=rig.image.topic_ids["a"])
    who = Asker(allowed=frozenset({(Operation.DELETE, Resource.TOPIC, "a")}))
    answer = rig.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), by_id]), who)
    assert [each.error_code for each in answer.responses] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]
    assert not rig.image.topics


def test_deletion_can_be_switched_off() -> None:
    rig = three_brokers(delete_topic_enable="false")
    with pytest.raises(KafkaError) as caught:
        rig.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]))
    assert caught.value.code is ErrorCode.TOPIC_DELETION_DISABLED


def grow(rig: Rig, count: int, *replicas: list[int], **fields: Any) -> int:
    assignments = [CreatePartitionsAssignment(broker_ids=each) for each in replicas] or None
    topic = CreatePartitionsTopic(name="orders", count=count, assignments=assignments)
    code: int = rig.ask(CreatePartitionsRequest(topics=[topic], **fields)).results[0].error_code
    return code


def test_the_partitions_that_a_request_adds_are_bounded_over_all_its_topics() -> None:
    rig = Rig()
    rig.start(1)
    rig.create("orders", [1])
    rig.create("payments", [1])
    topics = [CreatePartitionsTopic(name=name, count=6000, assignments=None) for name in ("orders", "payments")]
    with pytest.raises(KafkaError) as error:
        rig.ask(CreatePartitionsRequest(topics=topics, validate_only=True))
    assert error.value.code == ErrorCode.POLICY_VIOLATION


def test_topics_grow_with_the_factor_they_have() -> None:
    rig = three_brokers()
    rig.create("orders", [1, 2])
    assert grow(rig, 1) == grow(rig, 0) == ErrorCode.INVALID_PARTITIONS
    assert grow(rig, 3, [1, 2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(rig, 2, [1, 2, 3]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(rig, 2, [3, 1]) == 0
    assert rig.partition("orders", 1).replicas == (3, 1)
    assert grow(rig, 9) == 0
    assert all(len(rig.partition("orders", index).replicas) == 2 for index in range(9))
    assert grow(rig, 12, validate_only=True) == 0
    assert len(rig.image.topics[rig.image.topic_ids["orders"]].partitions) == 9


@pytest.mark.parametrize("seed", range(30))
def test_replicas_are_spread_over_racks_and_brokers(seed: int) -> None:
    chance = random.Random(seed)
    racks = [f"rack{number}" for number in range(chance.randint(1, 4))]
    brokers = [
        UsableBroker(number, chance.choice([*racks, None]) if chance.random() < 0.2 else racks[number % len(racks)],
                     chance.random() < 0.2)
        for number in range(chance.randint(1, 9))
    ]  # fmt: skip
    unfenced = [each.broker_id for each in brokers if not each.is_fenced]
    factor = chance.randint(1, len(brokers))
    if not unfenced:
        with pytest.raises(KafkaError):
            Placement(brokers, chance.randrange).place(1, factor)
        return
    found = list(Placement(brokers, chance.randrange).place(40, factor))
    used = {each.rack for each in brokers}
    by_id = {each.broker_id: each for each in brokers}
    for replicas in found:
        assert len(set(replicas)) == len(replicas) == factor
        assert not by_id[replicas[0]].is_fenced
        assert len({by_id[each].rack for each in replicas}) == min(factor, len(used))
    assert set(Counter(replicas[0] for replicas in found)) == set(unfenced)
    with pytest.raises(KafkaError):
        Placement(brokers, chance.randrange).place(1, len(brokers) + 1)


def test_the_stripes_of_three_racks_with_three_brokers_each() -> None:
    brokers = [UsableBroker(10 * rack + number, f"r{rack}", False) for rack in (1, 2, 3) for number in range(3)]
    assert list(Placement(brokers, lambda _: 0).place(3, 3)) == [[10, 20, 30], [21, 31, 11], [32, 12, 22]]


def test_names_that_metrics_would_not_tell_apart_exclude_each_other_until_one_is_gone() -> None:
    rig = three_brokers()
    collides = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert create(rig, placed("a.b"), placed("a_b"), placed("a-b"), placed("ab")) == [0, collides, 0, 0]
    assert create(rig, placed("a_b")) == [collides]
    rig.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a.b")]))
    assert create(rig, placed("a_b")) == [0]
    assert create(rig, placed("a.b")) == [collides]
