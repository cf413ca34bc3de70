"""Administration with real clients: topics, partitions, settings, records, groups and their offsets, and errors by
code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.conformance.brokers import Broker
from tests.conformance.clients import Message
from tests.conformance.libraries import CLIENTS
from tests.conformance.test_produce_consume import await_topic, create_topic
from tests.conformance.test_transactions import admin_of, committed_offset
from tests.waiting import wait_until

UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE, INVALID_TOPIC, TOPIC_EXISTS = 3, 1, 17, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, NON_EMPTY_GROUP, GROUP_NOT_FOUND = 37, 38, 40, 68, 69


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return admin_of(broker.bootstrap_servers)


def code_of(future: Any) -> int:
    """Kafka's error code of a failed administrative call, 0 if it succeeded."""
    try:
        future.result(120)
    except confluent_kafka.KafkaException as error:
        return int(error.args[0].code())
    return 0


def test_topics_are_created_described_and_deleted(admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("t")
    assert code_of(admin.create_topics([NewTopic(name, 3, 1)])[name]) == 0
    assert code_of(admin.create_topics([NewTopic(name, 3, 1)])[name]) == TOPIC_EXISTS
    await_topic(admin, name, 3)
    found = admin.list_topics(name, 60).topics[name]
    assert sorted(found.partitions) == [0, 1, 2]
    described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(120)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert not described.is_internal
    assert code_of(admin.delete_topics([name])[name]) == 0
    wait_until(lambda: name not in admin.list_topics(timeout=60).topics, "the topic is gone")
    assert code_of(admin.delete_topics([name])[name]) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "ä", "n" * 250])
def test_invalid_names_are_refused(admin: AdminClient, name: str) -> None:
    assert code_of(admin.create_topics([NewTopic(name, 1, 1)])[name]) == INVALID_TOPIC


def test_invalid_shapes_and_settings_are_refused(admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("t")
    assert code_of(admin.create_topics([NewTopic(name, 0, 1)])[name]) == INVALID_PARTITIONS
    assert code_of(admin.create_topics([NewTopic(name, 1, 3)])[name]) == INVALID_REPLICATION_FACTOR
    for settings in ({"no.such.key": "1"}, {"retention.ms": "many"}, {"cleanup.policy": "nonsense"}):
        assert code_of(admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name]) == INVALID_CONFIG
    assert name not in admin.list_topics(timeout=60).topics


def test_a_topic_made_again_is_empty(broker: Broker, admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = create_topic(broker, unique("t"))
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, name, [Message(b"old")])
    assert code_of(admin.delete_topics([name])[name]) == 0
    wait_until(lambda: code_of(admin.create_topics([NewTopic(name, 1, 1)])[name]) == 0, "the name is free again")
    offsets = CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, name, [Message(b"new")])
    assert offsets == [0]
    assert [message.value for message in CLIENTS["aiokafka"].consume(broker.bootstrap_servers, name, 1)] == [b"new"]


def test_partitions_are_added(broker: Broker, admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = create_topic(broker, unique("t"))
    assert code_of(admin.create_partitions([NewPartitions(name, 4)])[name]) == 0
    assert code_of(admin.create_partitions([NewPartitions(name, 4)])[name]) == INVALID_PARTITIONS
    assert code_of(admin.create_partitions([NewPartitions(name, 2)])[name]) == INVALID_PARTITIONS
    await_topic(admin, name, 4)
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, name, [Message(b"v", partition=3)])
    assert len(CLIENTS["confluent-kafka"].consume(broker.bootstrap_servers, name, 1, partition=3)) == 1


def test_settings_are_described_and_altered(broker: Broker, admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = create_topic(broker, unique("t"), retention_ms="60000")
    resource = ConfigResource(ResourceType.TOPIC, name)

    def described(key: str) -> tuple[str, bool]:
        entry = admin.describe_configs([resource])[resource].result(120)[key]
        return entry.value, entry.is_default

    assert described("retention.ms") == ("60000", False)
    assert described("cleanup.policy") == ("delete", True)
    operation = ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[operation])
    assert code_of(next(iter(admin.incremental_alter_configs([changed]).values()))) == 0
    wait_until(lambda: described("retention.ms") == ("70000", False), "the setting is changed")
    wrong = ConfigEntry("no.such.key", "1", incremental_operation=AlterConfigOpType.SET)
    refused = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[wrong])
    assert code_of(next(iter(admin.incremental_alter_configs([refused]).values()))) == INVALID_CONFIG
    removed = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    restored = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[removed])
    assert code_of(next(iter(admin.incremental_alter_configs([restored]).values()))) == 0
    wait_until(lambda: described("retention.ms")[0] == "-1", "the broker's setting shows again")


def test_records_are_deleted(broker: Broker, admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = create_topic(broker, unique("t"))
    messages = [Message(b"%d" % number) for number in range(10)]
    CLIENTS["confluent-kafka"].produce(broker.bootstrap_servers, name, messages)
    where = TopicPartition(name, 0, 6)
    assert admin.delete_records([where])[where].result(120).low_watermark == 6
    found = CLIENTS["confluent-kafka"].consume(broker.bootstrap_servers, name, 4, start=6)
    assert [message.offset for message in found] == [6, 7, 8, 9]
    beyond = TopicPartition(name, 0, 99)
    assert code_of(admin.delete_records([beyond])[beyond]) == OFFSET_OUT_OF_RANGE


def test_group_offsets_are_altered_and_groups_deleted(
    broker: Broker, admin: AdminClient, unique: Callable[[str], str]
) -> None:
    topic, group = create_topic(broker, unique("t")), unique("g")
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 42)])
    admin.alter_consumer_group_offsets([wanted])[group].result(120)
    assert committed_offset(broker, group, topic) == 42
    assert group in {found.group_id for found in admin.list_consumer_groups().result(120).valid}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "session.timeout.ms": 60_000}
    )
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the member is assigned")
    assert code_of(admin.delete_consumer_groups([group])[group]) == NON_EMPTY_GROUP
    consumer.close()
    wait_until(lambda: state_of(admin, group) == "EMPTY", "the member has left")
    assert code_of(admin.delete_consumer_groups([group])[group]) == 0
    assert code_of(admin.delete_consumer_groups([group])[group]) == GROUP_NOT_FOUND
    assert committed_offset(broker, group, topic) < 0


def state_of(admin: AdminClient, group: str) -> str:
    return str(admin.describe_consumer_groups([group])[group].result(120).state.name)


def test_the_cluster_is_described(admin: AdminClient) -> None:
    found = admin.describe_cluster().result(120)
    assert [node.id for node in found.nodes] == [found.controller.id]
    assert len(found.cluster_id) == 22


def test_kafka_python_s_admin_client(broker: Broker, unique: Callable[[str], str]) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    name = unique("t")
    client.create_topics([kafka.admin.NewTopic(name, 2, 1)])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        client.create_topics([kafka.admin.NewTopic(name, 2, 1)])
    wait_until(lambda: name in client.list_topics(), "the topic is there")
    (described,) = client.describe_topics([name])
    assert len(described["partitions"]) == 2
    client.create_partitions({name: 3})
    wait_until(lambda: len(client.describe_topics([name])[0]["partitions"]) == 3, "three partitions are there")
    CLIENTS["kafka-python"].produce(broker.bootstrap_servers, name, [Message(b"v") for _ in range(5)])
    where = kafka.TopicPartition(name, 0)
    client.delete_records({where: 3})
    found = CLIENTS["kafka-python"].consume(broker.bootstrap_servers, name, 2, start=3)
    assert [message.offset for message in found] == [3, 4]
    client.delete_topics([name])
    wait_until(lambda: name not in client.list_topics(), "the topic is gone")
    client.close()


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_broker_settings_that_few_brokers_have_a_use_for_are_taken_and_shown(admin: AdminClient) -> None:
    """Both ways of changing settings; librdkafka's own tests use this one."""
    node = next(iter(admin.list_topics(timeout=60).brokers))
    name = "sasl.kerberos.min.time.before.relogin"

    def shown() -> str | None:
        (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node))]).values()
        entry = future.result(120).get(name)
        return entry.value if entry is not None else None

    def altered(value: str, operation: AlterConfigOpType) -> int:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        return code_of(future)

    assert altered("58000", AlterConfigOpType.SET) == 0
    wait_until(lambda: shown() == "58000", "the setting is shown")
    (future,) = admin.alter_configs([ConfigResource(ResourceType.BROKER, str(node), {name: "57000"})]).values()
    assert code_of(future) == 0
    wait_until(lambda: shown() == "57000", "the setting is shown")
    assert altered("", AlterConfigOpType.DELETE) == 0
    wait_until(lambda: shown() != "57000", "the setting is gone")


def test_settings_of_tiered_storage_that_do_not_ask_for_it_are_taken(
    admin: AdminClient, unique: Callable[[str], str]
) -> None:
    name = unique("t")
    harmless = {"remote.storage.enable": "false", "local.retention.ms": "1000"}
    assert code_of(admin.create_topics([NewTopic(name, 1, 1, config=harmless)])[name]) == 0
    asking = {"remote.storage.enable": "true"}
    other = unique("t")
    assert code_of(admin.create_topics([NewTopic(other, 1, 1, config=asking)])[other]) == INVALID_CONFIG
