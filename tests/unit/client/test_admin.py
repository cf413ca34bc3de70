"""The admin client on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.client import (
    Admin,
    AsyncAdmin,
    ClientConfig,
    ConfigurationError,
    Consumer,
    IsolationLevel,
    KafkaError,
    NewTopic,
    OffsetSpec,
    Producer,
    TimedOut,
    TopicPartition,
)
from oncelog.client.admin import ConfigResource, ConfigSource, ResourceType
from oncelog.client.admin_topics import TopicAdmin
from oncelog.client.errors import ErrorCode
from tests.waiting import wait_until


def code_of(call: Any, *arguments: Any, **options: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_topics_are_created_listed_grown_and_deleted(module_admin: Admin, unique: Any) -> None:
    name = unique("topic")
    module_admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)
    assert name not in module_admin.list_topics()
    module_admin.create_topics([NewTopic(name, 1, 1)])
    assert len(module_admin.list_topics()[name].partitions) == 1
    module_admin.create_partitions({name: 2})
    assert [p.leader for p in module_admin.describe_topics([name])[name].partitions] == [1, 1]
    assert code_of(module_admin.create_partitions, {name: 1}) is ErrorCode.INVALID_PARTITIONS
    module_admin.delete_topics([name])
    assert code_of(module_admin.describe_topics, [name]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(module_admin.delete_topics, [name]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_is_created_unless_it_is_there(
    module_admin: Admin, unique: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("topic")
    assert len(module_admin.ensure_topic(NewTopic(name, 3)).partitions) == 3
    # Who may not create topics may use one that is there.
    monkeypatch.delattr(TopicAdmin, "create_topics")
    assert len(module_admin.ensure_topic(NewTopic(name, 5)).partitions) == 3


def test_offsets_by_meaning_and_by_time(module_admin: Admin, servers: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=0, timestamp_ms=1000 * number)
    answers = {
        spec: module_admin.list_offsets({place: spec})[place]
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, 4500, 99_999)
    }
    assert [answer.offset for answer in answers.values()] == [0, 10, 9, 5, -1]
    assert answers[4500].timestamp_ms == 5000
    assert module_admin.delete_records({place: 4}) == {place: 4}
    assert module_admin.list_offsets({place: OffsetSpec.EARLIEST})[place].offset == 4
    assert code_of(module_admin.delete_records, {place: 400}) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_partition_that_is_not_there_is_no_silent_cluster(servers: str, topic: str) -> None:
    with (
        Admin({"bootstrap.servers": servers, "default.api.timeout.ms": 3_000}) as admin,
        pytest.raises(TimedOut, match=f"topic {topic} has 2 partitions, there is no 99"),
    ):
        admin.list_offsets({TopicPartition(topic, 99): OffsetSpec.LATEST})


def test_settings_are_read_and_changed_one_by_one(module_admin: Admin, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    before = module_admin.describe_configs(resource)["retention.ms"]
    assert (before.value, before.is_default) == ("604800000", True)
    module_admin.alter_configs(resource, {"retention.ms": "5000"}, append={"cleanup.policy": "compact"})
    after = module_admin.describe_configs(resource, ["retention.ms", "cleanup.policy"], documentation=True)
    assert (after["retention.ms"].value, after["retention.ms"].source) == ("5000", ConfigSource.TOPIC)
    assert set((after["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
    module_admin.alter_configs(resource, delete=["retention.ms"], subtract={"cleanup.policy": "compact"})
    assert module_admin.describe_configs(resource)["retention.ms"].is_default
    assert code_of(module_admin.alter_configs, resource, {"no.such.key": "1"}) is ErrorCode.INVALID_CONFIG
    with pytest.raises(ConfigurationError, match="nothing to change"):
        module_admin.alter_configs(resource)
    assert "node.id" in module_admin.describe_configs(ConfigResource(ResourceType.BROKER, "1"))


def test_groups_and_their_offsets(module_admin: Admin, servers: str, topic: str, unique: Any) -> None:
    group, place = unique("group"), TopicPartition(topic, 0)
    module_admin.alter_group_offsets(group, {place: 5})
    assert module_admin.group_offsets(group)[place].offset == 5
    assert group in [listing.group_id for listing in module_admin.list_groups()]
    assert group in [listing.group_id for listing in module_admin.list_groups(states=["Empty"])]
    with Consumer({"bootstrap.servers": servers, "group.id": group, "client.id": "reader"}) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(50) or consumer.assignment())
        description = module_admin.describe_groups([group])[group]
        assert (description.state, description.protocol_type, description.protocol) == ("Stable", "consumer", "range")
        (member,) = description.members
        assert (member.client_id, member.topics, len(member.partitions)) == ("reader", [topic], 2)
        assert code_of(module_admin.delete_groups, [group]) is ErrorCode.NON_EMPTY_GROUP
    module_admin.delete_group_offsets(group, [place])
    assert place not in module_admin.group_offsets(group)
    module_admin.delete_groups([group])
    assert module_admin.describe_groups([group])[group].state == "Dead"


def test_transactions_and_producers_are_seen_and_fenced(
    module_admin: Admin, servers: str, topic: str, unique: Any
) -> None:
    name, place = unique("txn"), TopicPartition(topic, 1)
    with Producer({"bootstrap.servers": servers, "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x", partition=1)
        producer.flush()
        found = module_admin.describe_transactions([name])[name]
        assert (found.state, found.partitions) == ("Ongoing", [place])
        assert name in [t.transactional_id for t in module_admin.list_transactions(states=["Ongoing"])]
        assert name in [t.transactional_id for t in module_admin.list_transactions(pattern=f"^{name}$")]
        assert module_admin.list_transactions(producer_ids=[10**9]) == []
        (seen,) = module_admin.describe_producers([place])[place]
        assert (seen.producer_id, seen.transaction_start_offset) == (found.producer_id, 0)
        fenced = module_admin.fence_producers([name])[name]
        assert fenced.epoch == found.producer_epoch + 2
        with pytest.raises(KafkaError):
            producer.commit_transaction()
    assert code_of(module_admin.describe_transactions, ["nobody"]) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert code_of(module_admin.list_transactions, states=["Sleeping"]) is ErrorCode.INVALID_REQUEST


def test_a_hanging_transaction_is_aborted_on_its_partition(
    module_admin: Admin, servers: str, topic: str, unique: Any
) -> None:
    place = TopicPartition(topic, 0)
    with Producer({"bootstrap.servers": servers, "transactional.id": unique("txn")}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "x", partition=0)
        producer.flush()
        assert code_of(module_admin.abort_transaction, place, 77) is ErrorCode.INVALID_TXN_STATE
        module_admin.abort_transaction(place, 0)
        stable = module_admin.list_offsets({place: OffsetSpec.LATEST}, isolation=IsolationLevel.READ_COMMITTED)
        assert stable[place].offset == 2


def test_the_cluster_is_described(module_admin: Admin) -> None:
    description = module_admin.describe_cluster()
    assert [broker.node_id for broker in description.brokers] == [1]
    assert description.features["transaction.version"] == 2
    assert len(description.cluster_id) == 22


def test_features_are_described_as_they_are_and_not_as_when_the_connection_was_opened(module_admin: Admin) -> None:
    assert module_admin.describe_cluster().features["transaction.version"] == 2
    try:
        module_admin.update_features({"transaction.version": 1}, downgrade=True)
        assert module_admin.describe_cluster().features["transaction.version"] == 1
    finally:
        module_admin.update_features({"transaction.version": 2})
    assert module_admin.describe_cluster().features["transaction.version"] == 2


def test_a_broker_that_is_not_there_cannot_be_unregistered(module_admin: Admin) -> None:
    with pytest.raises(KafkaError, match="Broker ID 7 is not currently registered"):
        module_admin.unregister_broker(7)


def test_log_directories_have_the_bytes_of_their_partitions(module_admin: Admin, config: ClientConfig) -> None:
    module_admin.create_topics([NewTopic("sized", 2)])
    with Producer({"bootstrap.servers": config.bootstrap_servers}) as producer:
        producer.send("sized", b"x" * 1000, partition=1)
        producer.flush()
    written, unused = TopicPartition("sized", 1), TopicPartition("sized", 0)
    (directory,) = module_admin.describe_log_dirs([written, unused, TopicPartition("nowhere", 0)])
    assert directory.partition_bytes.keys() == {written, unused}
    assert directory.partition_bytes[unused] == 0
    assert 1000 < directory.partition_bytes[written] < 1200
    assert 0 < directory.usable_bytes <= directory.total_bytes
    (everything,) = module_admin.describe_log_dirs()
    assert everything.partition_bytes[written] == directory.partition_bytes[written]


def test_asyncio_programs_manage_too(config: ClientConfig) -> None:
    async def scenario() -> None:
        async with AsyncAdmin.connect(config) as admin:
            assert (await admin.describe_cluster()).controller_id >= 0

    asyncio.run(asyncio.wait_for(scenario(), 60))
