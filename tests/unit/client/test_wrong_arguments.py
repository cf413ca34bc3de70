"""Arguments of the wrong kind are refused by the call that was given them, and leave the client usable."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client import (
    Admin,
    AsyncProducer,
    ConfigurationError,
    Consumer,
    KafkaError,
    NewTopic,
    OffsetSpec,
    Producer,
    TopicPartition,
)
from oncelog.client.admin import ConfigResource, ResourceType
from oncelog.client.columns import encode_by_partition


@pytest.fixture
def producer(servers: str) -> Iterator[Producer]:
    with Producer({"bootstrap.servers": servers, "linger.ms": 50, "delivery.timeout.ms": 40_000}) as made:
        yield made


REFUSED = [
    ({"timestamp_ms": 1.5e12}, TypeError, "timestamp_ms is a float: give whole milliseconds"),
    ({"timestamp_ms": "now"}, TypeError, "timestamp_ms is a str"),
    ({"timestamp_ms": datetime.datetime(2026, 1, 1)}, TypeError, "timestamp_ms is a datetime"),
    ({"partition": 0.0}, TypeError, "partition is a float: give a whole number"),
    ({"partition": "0"}, TypeError, "partition is a str"),
    ({"headers": {b"n": "1"}}, TypeError, "a header of a record for .* is named b'n': names are text"),
    ({"headers": [(None, "1")]}, TypeError, "is named None: names are text"),
    ({"headers": {"\ud800": "1"}}, UnicodeEncodeError, "surrogates"),
    ({"headers": "ab"}, TypeError, "headers of a record for .*: give a dict, or pairs of name and value"),
    ({"headers": [("a", "b", "c")]}, TypeError, "give a dict, or pairs of name and value"),
    ({"headers": 5}, TypeError, "give a dict, or pairs of name and value"),
    ({"headers": {"n": 1}}, TypeError, "a header of a record for .* is an? int"),
    ({"value": 5}, TypeError, "a value of a record for .* is an? int: give bytes or text, or set a value_serializer"),
    ({"key": 5}, TypeError, "a key of a record for .* is an? int: give bytes or text, or set a key_serializer"),
    ({"on_delivery": "done"}, TypeError, "on_delivery is a str: give a function"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_a_record_that_cannot_be_sent_is_refused_and_does_not_stop_others(
    producer: Producer, topic: str, wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    producer.send(topic, "before", partition=0)
    with pytest.raises(error, match=text):
        producer.send(topic, **{"value": "wrong", "partition": 1, **wrong})
    assert producer.send(topic, "after", partition=1).result(60).offset == 0
    producer.flush()


def test_the_asynchronous_producer_refuses_them_too(servers: str, topic: str) -> None:
    async def send() -> int:
        async with AsyncProducer({"bootstrap.servers": servers}) as producer:
            with pytest.raises(TypeError, match="timestamp_ms is a float"):
                await producer.send(topic, "wrong", partition=0, timestamp_ms=1.5)  # type: ignore[arg-type]
            return (await (await producer.send(topic, "after", partition=0))).offset

    assert asyncio.run(asyncio.wait_for(send(), 60)) == 0


@pytest.mark.parametrize("name", ["", "a b", "a" * 250, ".."])
def test_a_topic_name_that_is_not_allowed_is_explained(producer: Producer, name: str) -> None:
    with pytest.raises(KafkaError, match="names of topics have 1 to 249"):
        producer.send(name, "x")


@pytest.mark.parametrize("name", [None, b"orders", 5])
def test_a_topic_name_that_is_no_text_is_refused(producer: Producer, name: Any) -> None:
    with pytest.raises(TypeError, match="names of topics are text"):
        producer.send(name, "x")


COLUMNS = [
    ({"value": ["a", "b"]}, TypeError, "the value column is a list: give an Arrow array"),
    ({"value": pa.table({"value": ["a"]})}, TypeError, "the value column is a Table: give an Arrow array"),
    ({"value": pa.array([1, 2])}, TypeError, "the value column is of int64: cast it to binary or string"),
    ({"key": "k"}, TypeError, "the key column is a str"),
    ({"headers": {"a": "b"}}, TypeError, "the headers column is a dict"),
    ({"headers": pa.array(["a", "b"])}, TypeError, "the headers column is of string: .*list<struct<key, value>>"),
    ({"key": pa.array(["k"])}, ValueError, "the key column has 1 rows, the value column 2"),
    ({"key": pa.array(["k", "k", "k"])}, ValueError, "the key column has 3 rows, the value column 2"),
    ({"key": pa.array(["k", "k"]), "timestamp_ms": pa.array([1])}, ValueError, "the timestamp column has 1 rows"),
    ({"timestamp_ms": "now"}, TypeError, "timestamp_ms is a str"),
    ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms is a float"),
    ({"partition": 7}, KafkaError, "has 2 partitions, there is no 7"),
    ({"partition": 0.0}, TypeError, "partition is a float"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), COLUMNS, ids=[str(row[1:]) for row in COLUMNS])
def test_columns_that_cannot_be_sent_are_refused(
    producer: Producer, topic: str, wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        producer.send_columns(topic, **{"value": pa.array(["a", "b"]), **wrong})
    assert producer.send(topic, "after", partition=1).result(60).offset == 0
    producer.flush()


def test_rows_without_a_key_of_their_own_are_not_left_out() -> None:
    with pytest.raises(ValueError, match="the key column has 1 rows, the value column 2"):
        encode_by_partition(
            pa.array(["a", "b"]), 2, partition=None, sticky=lambda: 0, timestamp_ms=0, key=pa.array(["k"])
        )


@pytest.mark.parametrize("client", [Producer, Consumer])
@pytest.mark.parametrize("config", [None, "127.0.0.1:9092", [("bootstrap.servers", "127.0.0.1:9092")]])
def test_settings_that_are_no_dict_are_refused(client: Any, config: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a dict with Kafka's names"):
        client(config)


@pytest.mark.parametrize("name", [b"bootstrap.servers", 5])
def test_a_name_of_a_setting_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="names of settings are text"):
        Producer({name: "127.0.0.1:9092"})


def test_a_url_is_no_address_of_a_broker() -> None:
    with pytest.raises(ConfigurationError, match="'http://localhost:9092' is not of the form HOST:PORT"):
        Producer({"bootstrap.servers": "http://localhost:9092"})


def test_an_asynchronous_client_that_is_made_outside_of_a_coroutine_says_so() -> None:
    with pytest.raises(RuntimeError, match="make an AsyncProducer in a coroutine"):
        AsyncProducer({"bootstrap.servers": "127.0.0.1:9092"})


PLACE = TopicPartition("orders", 0)
MISTAKES = [
    (lambda client: client.subscribe("orders"), TypeError, "topics are 'orders': give a list"),
    (lambda client: client.subscribe([b"orders"]), TypeError, "b'orders' is no topic: names of topics are text"),
    (lambda client: client.subscribe(["^orders.*"]), ValueError, "cannot be the name of a topic; .*pattern="),
    (lambda client: client.subscribe([""]), ValueError, "'' cannot be the name of a topic"),
    (lambda client: client.subscribe(["orders"], on_assigned="x"), TypeError, "on_assigned is a str: give a function"),
    (lambda client: client.assign("orders"), TypeError, r"'o' is no partition: give TopicPartition\(topic, number\)"),
    (lambda client: client.assign(["ab"]), TypeError, "'ab' is no partition"),
    (lambda client: client.assign([("orders", "0")]), TypeError, "the partition of orders is a str"),
    (lambda client: client.assign([("orders", -1)]), ValueError, "numbers of partitions begin at 0"),
    (lambda client: client.pause(PLACE), TypeError, "'orders' is no partition: .* one or a list of them"),
    (lambda client: client.seek_to_beginning([PLACE]), TypeError, "is no partition"),
    (lambda client: client.seek(PLACE, -2), ValueError, "there is no offset -2: offsets begin at 0"),
    (lambda client: client.seek(PLACE, 2**63), ValueError, "there is no offset 9223372036854775808"),
    (lambda client: client.seek(PLACE, "3"), TypeError, "the offset is a str: give a whole number"),
    (lambda client: client.seek(PLACE, 3.0), TypeError, "the offset is a float"),
    (lambda client: client.commit({PLACE: "3"}), TypeError, "the offset is a str"),
    (lambda client: client.commit({PLACE: -3}), ValueError, "there is no offset -3"),
    (lambda client: client.commit({"orders": 3}), TypeError, "'orders' is no partition"),
]


@pytest.mark.parametrize(("call", "error", "text"), MISTAKES, ids=[str(row[1:]) for row in MISTAKES])
def test_a_consumer_refuses_at_once_what_no_poll_could_read(
    servers: str, unique: Any, call: Callable[[Consumer], None], error: type[Exception], text: str
) -> None:
    with Consumer({"bootstrap.servers": servers, "group.id": unique("group")}) as client:
        if "subscribe" not in call.__code__.co_names:
            client.assign([PLACE])
        with pytest.raises(error, match=text):
            call(client)
        assert client.assignment() <= {PLACE} and not client.subscription()
        assert client.poll() == []


TRANSACTIONAL = [
    (lambda client: client.send_offsets_to_transaction({PLACE: 1}, None), "the group is a NoneType: give the group_m"),
    (lambda client: client.send_offsets_to_transaction([PLACE], "g"), "offsets are a list: give a dict"),
    (lambda client: client.complete("1:0:2:shop"), r"PreparedTransaction.parse\(\) makes one"),
]


@pytest.mark.parametrize(("call", "text"), TRANSACTIONAL, ids=[row[1] for row in TRANSACTIONAL])
def test_a_transactional_producer_refuses_what_is_not_meant_for_it(
    servers: str, unique: Any, call: Callable[[Producer], None], text: str
) -> None:
    with Producer({"bootstrap.servers": servers, "transactional.id": unique("txn")}) as client:
        client.init_transactions()
        client.begin_transaction()
        with pytest.raises(TypeError, match=text):
            call(client)
        client.commit_transaction()


def test_the_protocol_of_groups_is_no_choice(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"group\.protocol: .*classic protocol"):
        Consumer({"bootstrap.servers": servers, "group.id": "g", "group.protocol": "consumer"})


def test_a_partition_that_its_topic_does_not_have_is_named(servers: str, topic: str) -> None:
    with (
        Consumer({"bootstrap.servers": servers, "default.api.timeout.ms": 3_000}) as client,
        pytest.raises(KafkaError, match=f"topic {topic} has 2 partitions, there is no 9"),
    ):
        client.end_offsets([TopicPartition(topic, 9)])


NAMES = [
    lambda admin: admin.create_topics("orders"),
    lambda admin: admin.delete_topics("orders"),
    lambda admin: admin.describe_topics("orders"),
    lambda admin: admin.describe_groups("billing"),
    lambda admin: admin.delete_groups("billing"),
    lambda admin: admin.remove_members("billing", "member"),
    lambda admin: admin.list_groups(states="Stable"),
    lambda admin: admin.describe_transactions("shop"),
    lambda admin: admin.fence_producers("shop"),
    lambda admin: admin.alter_configs(ConfigResource(ResourceType.TOPIC, "orders"), delete="retention.ms"),
]


@pytest.mark.parametrize("call", NAMES, ids=lambda call: str(call.__code__.co_names[0]))
def test_a_single_name_is_not_taken_for_its_letters(module_admin: Admin, call: Callable[[Admin], object]) -> None:
    before = module_admin.list_topics().keys()
    with pytest.raises(TypeError, match=r" are '\w+(\.ms)?': give a list"):
        call(module_admin)
    assert module_admin.list_topics().keys() == before


def test_settings_of_topics_may_be_numbers(module_admin: Admin, unique: Any) -> None:
    name = unique("numbers")
    resource = ConfigResource(ResourceType.TOPIC, name)
    module_admin.create_topics([NewTopic(name, 1, configs={"retention.ms": 5000, "preallocate": True})])
    module_admin.alter_configs(resource, {"segment.bytes": 2_000_000})
    shown = module_admin.describe_configs(resource, ["retention.ms", "preallocate", "segment.bytes"])
    assert {entry.value for entry in shown.values()} == {"5000", "true", "2000000"}
    with pytest.raises(TypeError, match=r"the setting retention\.ms is a list: give its value as text"):
        module_admin.alter_configs(resource, {"retention.ms": [5000]})  # type: ignore[dict-item]


def test_an_admin_that_asks_for_a_topic_does_not_create_it(servers: str, unique: Any) -> None:
    name = unique("missing")
    settings = {"bootstrap.servers": servers}
    with Admin({**settings, "default.api.timeout.ms": 2_000}) as admin, pytest.raises(KafkaError, match=name):
        admin.list_offsets({TopicPartition(name, 0): OffsetSpec.LATEST})
    with Admin(settings) as admin:
        assert name not in admin.list_topics()
    with Admin({**settings, "allow.auto.create.topics": True}) as admin:
        assert admin.list_offsets({TopicPartition(name, 0): OffsetSpec.LATEST})[TopicPartition(name, 0)].offset == 0
