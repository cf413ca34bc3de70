"""Every call of the client that changes something, while the answers to its request are lost.

The broker carries the request out and the connection closes before the answer. So whatever a call says in the end, it
must not be that nothing was done: it finds out that it was, or it raises an error that leaves the outcome open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from oncelog import client
from oncelog.client import (
    AbortableError,
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    BatchProducer,
    ClientConfig,
    CommitFailed,
    Completion,
    Consumer,
    KafkaError,
    OffsetSpec,
    Producer,
    ProducerFenced,
    ProducerPool,
    RangeReader,
    TimedOut,
    TopicPartition,
    TransactionClient,
    WorkerClient,
)
from oncelog.client.admin import (
    Acl,
    AclFilter,
    ConfigResource,
    Operation,
    Pattern,
    Permission,
    Resource,
    ResourceType,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from oncelog.client.attempts import IN_DOUBT
from oncelog.client.columns import encode_columns
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.server.forwarding import FORWARDED
from tests.unit.client.chaos import Accident, Chaos, Kind
from tests.unit.client.reading import Reading
from tests.waiting import wait_until

CLASSES = (Admin, Producer, ProducerPool, Consumer, TransactionClient, BatchProducer, RangeReader, WorkerClient)
TWINS = {AsyncAdmin: Admin, AsyncProducer: Producer, AsyncConsumer: Consumer}
"""They run the same code: each of their calls is one of the class that blocks."""
VALUES = {
    *("ClientConfig", "Completion", "ConsumerRecord", "EncodedBatch", "FetchedChunk", "GroupMetadata", "NewTopic"),
    *("IsolationLevel", "OffsetAndMetadata", "OffsetSpec", "PreparedTransaction", "ProduceSummary"),
    *("ProducerIdAndEpoch", "RecordFuture", "RecordMetadata", "SharedTransaction", "TopicFacts", "TopicPartition"),
}
"""They send nothing at all."""
LOCAL = {
    "Admin.close",
    "TransactionClient.close",
    "BatchProducer.close",
    "RangeReader.close",
    "Producer.state",
    "Producer.transaction_version",
    "Producer.begin_transaction",
    "ProducerPool.idle_count",
    "ProducerPool.in_use_count",
    "ProducerPool.close",
    "Consumer.subscribe",
    "Consumer.assign",
    "Consumer.assignment",
    "Consumer.subscription",
    "Consumer.pause",
    "Consumer.resume",
    "Consumer.paused",
    "Consumer.seek",
    "Consumer.group_metadata",
    "TransactionClient.identity",
    "TransactionClient.transaction_version",
    "TransactionClient.uses_tv2",
}
"""They send nothing that changes anything."""
READING = {
    *(f"Admin.{name}" for name in ("list_topics", "describe_topics", "list_offsets", "describe_configs")),
    *(f"Admin.{name}" for name in ("list_groups", "describe_groups", "group_offsets", "describe_cluster")),
    *(f"Admin.{name}" for name in ("list_transactions", "describe_transactions", "describe_producers")),
    "Admin.describe_log_dirs",
    "Admin.describe_quorum",
    "Admin.eligible_leaders",
    "Admin.list_reassignments",
    "Admin.describe_user_scram_credentials",
    "Admin.describe_acls",
    "Admin.describe_client_quotas",
    *(f"Consumer.{name}" for name in ("seek_to_beginning", "seek_to_end", "seek_to_time", "seek_to_committed")),
    *(f"Consumer.{name}" for name in ("beginning_offsets", "end_offsets", "position", "lag", "committed")),
    "TransactionClient.fetch_offsets",
    "TransactionClient.share",
    "RangeReader.read",
    *(f"WorkerClient.{name}" for name in ("partitions_of", "topic_facts", "topic_ids", "topics_now")),
}
REFUSALS = dict.fromkeys((ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""A code that calls with this request do not get over, if it is not the usual one."""
CHANGED_BY_GROUPS = {ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE, ApiKey.LEAVE_GROUP}
PATIENT = {"request.timeout.ms": 10_000, "default.api.timeout.ms": 20_000, "delivery.timeout.ms": 20_000}
QUICK = {"request.timeout.ms": 300, "default.api.timeout.ms": 800, "delivery.timeout.ms": 800}
LESS_QUICK = {"request.timeout.ms": 1000, "default.api.timeout.ms": 8000, "delivery.timeout.ms": 8000}
LOST = Accident(Kind.LOSE_ANSWER)
BACKOFF = {"retry.backoff.ms": 20, "retry.backoff.max.ms": 50}


class World:
    """A topic of the case's own, clients whose answers can be lost, and others that see what is true."""

    def __init__(self, chaos: Chaos, truth: Admin, reading: Reading, servers: str, name: str) -> None:
        self.chaos, self.truth, self.reading, self.servers, self.name = chaos, truth, reading, servers, name
        self.topic, self.place = name, TopicPartition(name, 0)
        self.told: Any = None
        self.times: dict[str, int] = PATIENT
        self.stack = ExitStack()
        self._lost: Callable[[], Accident | None] = lambda: None
        self._key: ApiKey | None = None
        truth.create_topics([name])

    def losing(self, key: ApiKey, *accidents: Accident) -> None:
        """From the next `with world.lost():` on, these answers do not arrive, or not as they were given."""
        left = iter(accidents)
        self._key, self._lost = key, lambda: next(left, None)

    @contextlib.contextmanager
    def lost(self) -> Iterator[None]:
        self.chaos.accident = lambda key, request: self._lost() if key is self._key else None
        try:
            yield
        finally:
            self.chaos.accident = lambda key, request: None

    @property
    def settings(self) -> dict[str, Any]:
        """Of any client whose answers can be lost."""
        times = {name: value for name, value in self.times.items() if name != "delivery.timeout.ms"}
        return {"bootstrap.servers": self.chaos.bootstrap_servers, **BACKOFF, **times}

    @property
    def producer_settings(self) -> dict[str, Any]:
        return {**self.settings, **self.times, "linger.ms": 0}

    @property
    def config(self) -> ClientConfig:
        return ClientConfig.parse(self.settings)

    def admin(self) -> Admin:
        return self.stack.enter_context(Admin(self.config))

    def producer(self, *, transactional: bool = False) -> Producer:
        named = {"transactional.id": self.name} if transactional else {}
        client = Producer({**self.producer_settings, **named})
        self.stack.callback(client.close)
        return client

    def in_transaction(self) -> Producer:
        client = self.producer(transactional=True)
        client.init_transactions()
        client.begin_transaction()
        client.send(self.topic, "x").result(60)
        return client

    def consumer(self, servers: str | None = None, **settings: Any) -> Consumer:
        properties = {"group.id": self.name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        properties |= {"bootstrap.servers": servers or self.chaos.bootstrap_servers, "heartbeat.interval.ms": 200}
        client = Consumer({**self.settings, **properties, **settings})
        self.stack.callback(client.close)
        return client

    def driver(self, version: int = 2) -> TransactionClient:
        config = ClientConfig.parse({**self.settings, "oncelog.transaction.version.max": version})
        driver = self.stack.enter_context(TransactionClient(config))
        driver.init(self.name)
        return driver

    def write(self, count: int = 3) -> None:
        """Records that are there before the call."""
        with Producer({"bootstrap.servers": self.servers}) as producer:
            for number in range(count):
                producer.send(self.topic, str(number))

    # What is true

    def values(self) -> list[bytes]:
        return self.reading.values(self.topic, [0])

    def offset(self) -> int | None:
        found = self.truth.group_offsets(self.name, [self.place], require_stable=True)
        return found[self.place].offset if self.place in found else None

    def state(self) -> str:
        return self.truth.describe_transactions([self.name])[self.name].state

    def is_user(self) -> bool:
        return self.name in self.truth.describe_user_scram_credentials()

    def is_open(self) -> bool:
        return any(p.transaction_start_offset >= 0 for p in self.truth.describe_producers([self.place])[self.place])

    def members(self) -> list[str]:
        return [member.member_id for member in self.truth.describe_groups([self.name])[self.name].members]


@dataclass(frozen=True)
class Case:
    """`call` arms the loss with `world.lost()` around the call it is for. `holds` is what the call was to bring."""

    answer: ApiKey
    call: Callable[[World], Any]
    holds: Callable[[World], bool]
    finds_out: bool = True
    """Whether a repetition whose answer arrives tells that the first attempt was carried out."""
    returns: Callable[[World, Any], bool] = lambda world, result: True
    leaves_open: tuple[type[KafkaError], ...] = field(default=(TimedOut,))
    """Errors that say nothing about what became of the request."""


CASES: dict[str, Case] = {}


def case(name: str, answer: ApiKey, holds: Callable[[World], bool], **options: Any) -> Callable[..., Any]:
    """`name` is Class.call, and what is special about it behind a space."""

    def add(call: Callable[[World], Any]) -> Callable[[World], Any]:
        CASES[name] = Case(answer, call, holds, **options)
        return call

    return add


def join(member: Consumer, topic: str) -> None:
    member.subscribe([topic])
    wait_until(lambda: bool(member.poll(50) or member.assignment()))


# Admin


@case(
    "Admin.create_topics",
    ApiKey.CREATE_TOPICS,
    lambda world: f"{world.name}-new" in world.truth.list_topics(),
    finds_out=False,
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        return admin.create_topics([f"{world.name}-new"])


@case(
    "Admin.create_topics if they do not exist",
    ApiKey.CREATE_TOPICS,
    lambda world: f"{world.name}-new" in world.truth.list_topics(),
    returns=lambda world, created: created == [f"{world.name}-new"],
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        return admin.create_topics([world.topic, f"{world.name}-new"], if_not_exists=True)


@case(
    "Admin.ensure_topic",
    ApiKey.CREATE_TOPICS,
    lambda world: f"{world.name}-new" in world.truth.list_topics(),
    returns=lambda world, info: info.name == f"{world.name}-new",
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        return admin.ensure_topic(f"{world.name}-new")


@case(
    "Admin.delete_topics",
    ApiKey.DELETE_TOPICS,
    lambda world: world.topic not in world.truth.list_topics(),
    finds_out=False,
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.delete_topics([world.topic])


@case(
    "Admin.create_partitions",
    ApiKey.CREATE_PARTITIONS,
    lambda world: len(world.truth.list_topics()[world.topic].partitions) == 4,
    finds_out=False,
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.create_partitions({world.topic: 4})


@case(
    "Admin.delete_records",
    ApiKey.DELETE_RECORDS,
    lambda world: world.truth.list_offsets({world.place: OffsetSpec.EARLIEST})[world.place].offset == 2,
    returns=lambda world, starts: starts == {world.place: 2},
)
def _(world: World) -> Any:
    world.write()
    admin = world.admin()
    with world.lost():
        return admin.delete_records({world.place: 2})


@case(
    "Admin.alter_configs",
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    lambda world: (
        world.truth.describe_configs(ConfigResource(ResourceType.TOPIC, world.topic))["cleanup.policy"].value
        == "delete,compact"
    ),
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, world.topic), append={"cleanup.policy": "compact"})


@case("Admin.delete_groups", ApiKey.DELETE_GROUPS, lambda world: world.offset() is None, finds_out=False)
def _(world: World) -> Any:
    world.truth.alter_group_offsets(world.name, {world.place: 5})
    admin = world.admin()
    with world.lost():
        admin.delete_groups([world.name])


@case("Admin.alter_group_offsets", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 5)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.alter_group_offsets(world.name, {world.place: 5})


@case("Admin.delete_group_offsets", ApiKey.OFFSET_DELETE, lambda world: world.offset() is None, finds_out=False)
def _(world: World) -> Any:
    world.truth.alter_group_offsets(world.name, {world.place: 5})
    admin = world.admin()
    with world.lost():
        admin.delete_group_offsets(world.name, [world.place])


@case(
    "Admin.remove_members",
    ApiKey.LEAVE_GROUP,
    lambda world: world.told not in world.members(),
    finds_out=False,
)
def _(world: World) -> Any:
    member = world.consumer(world.servers, **{"heartbeat.interval.ms": 6000})
    join(member, world.topic)
    (world.told,) = world.members()
    admin = world.admin()
    with world.lost():
        admin.remove_members(world.name, [world.told])


@case("Admin.alter_user_scram_credentials", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, lambda world: world.is_user())
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.alter_user_scram_credentials([ScramUpsertion(world.name, ScramMechanism.SHA_256, "pw")])


@case(
    "Admin.alter_user_scram_credentials that deletes",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    lambda world: not world.is_user(),
    finds_out=False,
)
def _(world: World) -> Any:
    world.truth.alter_user_scram_credentials([ScramUpsertion(world.name, ScramMechanism.SHA_256, "pw")])
    admin = world.admin()
    with world.lost():
        admin.alter_user_scram_credentials(delete=[ScramDeletion(world.name, ScramMechanism.SHA_256)])


def acl_of(world: World) -> Acl:
    return Acl(Resource.TOPIC, world.name, Pattern.LITERAL, "User:nobody", "*", Operation.READ, Permission.ALLOW)


@case(
    "Admin.create_acls",
    ApiKey.CREATE_ACLS,
    lambda world: world.truth.describe_acls(AclFilter(name=world.name)) == [acl_of(world)],
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.create_acls([acl_of(world)])


@case(
    "Admin.delete_acls",
    ApiKey.DELETE_ACLS,
    lambda world: world.truth.describe_acls(AclFilter(name=world.name)) == [],
)
def _(world: World) -> Any:
    world.truth.create_acls([acl_of(world)])
    admin = world.admin()
    with world.lost():
        admin.delete_acls([AclFilter(name=world.name)])


@case(
    "Admin.update_features",
    ApiKey.UPDATE_FEATURES,
    lambda world: world.truth.describe_cluster().features["transaction.version"] == 2,
)
def _(world: World) -> Any:
    world.truth.update_features({"transaction.version": 1}, downgrade=True)
    admin = world.admin()
    with world.lost():
        admin.update_features({"transaction.version": 2})


@case(
    "Admin.alter_client_quotas",
    ApiKey.ALTER_CLIENT_QUOTAS,
    lambda world: world.truth.describe_client_quotas({"user": world.name})[0].quotas == {"request_percentage": 50.0},
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.alter_client_quotas({"user": world.name}, {"request_percentage": 50.0})


@case(
    "Admin.elect_leaders",
    ApiKey.ELECT_LEADERS,
    lambda world: world.truth.list_topics()[world.topic].partitions[0].leader == 1,
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.elect_leaders([world.place])


@case(
    "Admin.reassign_partitions",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    lambda world: world.truth.list_reassignments() == {},
)
def _(world: World) -> Any:
    admin = world.admin()
    with world.lost():
        admin.reassign_partitions({world.place: [1]})


@case("Admin.fence_producers", ApiKey.INIT_PRODUCER_ID, lambda world: world.state() != "Ongoing")
def _(world: World) -> Any:
    world.in_transaction()
    admin = world.admin()
    with world.lost():
        admin.fence_producers([world.name])


@case("Admin.force_terminate_transaction", ApiKey.INIT_PRODUCER_ID, lambda world: world.state() != "Ongoing")
def _(world: World) -> Any:
    world.in_transaction()
    admin = world.admin()
    with world.lost():
        admin.force_terminate_transaction(world.name)


@case("Admin.abort_transaction", ApiKey.WRITE_TXN_MARKERS, lambda world: not world.is_open())
def _(world: World) -> Any:
    world.in_transaction()
    admin = world.admin()
    with world.lost():
        admin.abort_transaction(world.place, 0)


# Producer


@case(
    "Producer.send",
    ApiKey.PRODUCE,
    lambda world: world.values() == [b"x"],
    returns=lambda world, where: (where.topic, where.partition, where.offset) == (world.topic, 0, 0),
)
def _(world: World) -> Any:
    client = world.producer()
    with world.lost():
        return client.send(world.topic, "x").result(60)


@case(
    "Producer.send_columns",
    ApiKey.PRODUCE,
    lambda world: world.values() == [b"x"],
    returns=lambda world, delivered: delivered.base_offset == 0,
)
def _(world: World) -> Any:
    client = world.producer()
    with world.lost():
        (future,) = client.send_columns(world.topic, pa.array(["x"]))
        return future.result(60)


@case("Producer.flush", ApiKey.PRODUCE, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    client = world.producer()
    with world.lost():
        future = client.send(world.topic, "x")
        client.flush()
        return future.result(0)


@case("Producer.init_transactions", ApiKey.INIT_PRODUCER_ID, lambda world: world.state() == "Empty")
def _(world: World) -> Any:
    client = world.producer(transactional=True)
    with world.lost():
        client.init_transactions()


@case("Producer.send_offsets_to_transaction", ApiKey.TXN_OFFSET_COMMIT, lambda world: world.offset() == 5)
def _(world: World) -> Any:
    client = world.in_transaction()
    try:
        with world.lost():
            client.send_offsets_to_transaction({world.place: 5}, world.name)
    finally:
        client.commit_transaction()


@case("Producer.commit_transaction", ApiKey.END_TXN, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    client = world.in_transaction()
    with world.lost():
        client.commit_transaction()


@case("Producer.abort_transaction", ApiKey.END_TXN, lambda world: not world.is_open() and world.values() == [])
def _(world: World) -> Any:
    client = world.in_transaction()
    with world.lost():
        client.abort_transaction()


@case("Producer.transaction", ApiKey.END_TXN, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    client = world.producer(transactional=True)
    client.init_transactions()
    with world.lost(), client.transaction():
        client.send(world.topic, "x")


@case(
    "Producer.prepare",
    ApiKey.PRODUCE,
    lambda world: world.is_open(),
    leaves_open=(AbortableError,),
)
def _(world: World) -> Any:
    client = world.producer(transactional=True)
    client.init_transactions()
    client.begin_transaction()
    with world.lost():
        client.send(world.topic, "x")
        return client.prepare()


@case(
    "Producer.complete",
    ApiKey.END_TXN,
    lambda world: world.values() == [b"x"],
    returns=lambda world, outcome: outcome is Completion.COMMITTED,
)
def _(world: World) -> Any:
    client = world.in_transaction()
    prepared = client.prepare()
    with world.lost():
        return client.complete(prepared)


@case(
    "Producer.complete of the next process",
    ApiKey.END_TXN,
    lambda world: world.values() == [b"x"],
    returns=lambda world, outcome: outcome is Completion.COMMITTED,
)
def _(world: World) -> Any:
    prepared = world.in_transaction().prepare()
    client = world.producer(transactional=True)
    with world.lost():
        return client.complete(prepared)


@case("Producer.close", ApiKey.END_TXN, lambda world: not world.is_open() and world.values() == [])
def _(world: World) -> Any:
    client = world.in_transaction()
    with world.lost():
        client.close(timeout_ms=1500)


@case("ProducerPool.transaction", ApiKey.END_TXN, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    pool = world.stack.enter_context(ProducerPool(world.producer_settings, world.name))
    with world.lost(), pool.transaction() as client:
        client.send(world.topic, "x")


# Consumer


def poll_until_lost(world: World, client: Consumer) -> None:
    """What a consumer asks beside its polls comes when it comes."""
    before = world.chaos.happened.total()
    wait_until(lambda: [client.poll(100)] and world.chaos.happened.total() > before)


def assigned(world: World, **settings: Any) -> Consumer:
    world.write()
    client = world.consumer(**settings)
    client.assign([world.place])
    records = []
    while not records:
        records = client.poll(1000)
    return client


@case("Consumer.commit", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 3)
def _(world: World) -> Any:
    client = assigned(world)
    with world.lost():
        client.commit()


@case("Consumer.commit_async", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 3)
def _(world: World) -> Any:
    client = assigned(world)
    done, errors = threading.Event(), []

    def on_done(error: BaseException | None) -> None:
        errors.append(error)
        done.set()

    with world.lost():
        client.commit_async(on_done=on_done)
        assert done.wait(180)
    if errors[0] is not None:
        raise errors[0]


@case("Consumer.poll that joins", ApiKey.JOIN_GROUP, lambda world: len(world.members()) == 1)
def _(world: World) -> Any:
    client = world.consumer()
    client.subscribe([world.topic])
    with world.lost():
        poll_until_lost(world, client)
    wait_until(lambda: bool(client.poll(50) or client.assignment()))


@case("Consumer.poll that commits", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 3)
def _(world: World) -> Any:
    client = assigned(world, **{"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    with world.lost():
        poll_until_lost(world, client)
    wait_until(lambda: client.poll(100) == [] and world.offset() == 3)


@case("Consumer.poll_columns", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 3)
def _(world: World) -> Any:
    client = assigned(world, **{"enable.auto.commit": True, "auto.commit.interval.ms": 100})
    with world.lost():
        client.poll_columns(700)
    wait_until(lambda: client.poll(100) == [] and world.offset() == 3)


@case("Consumer.unsubscribe", ApiKey.LEAVE_GROUP, lambda world: world.members() == [])
def _(world: World) -> Any:
    client = world.consumer()
    join(client, world.topic)
    assert len(world.members()) == 1
    with world.lost():
        client.unsubscribe()


@case("Consumer.close", ApiKey.OFFSET_COMMIT, lambda world: world.offset() == 3)
def _(world: World) -> Any:
    client = assigned(world, **{"enable.auto.commit": True, "auto.commit.interval.ms": 60_000})
    with world.lost():
        client.close()


# One transaction over many processes


@case("TransactionClient.init", ApiKey.INIT_PRODUCER_ID, lambda world: world.state() == "Empty")
def _(world: World) -> Any:
    driver = world.stack.enter_context(TransactionClient(world.config))
    with world.lost():
        driver.init(world.name)


@case("TransactionClient.fresh_epoch", ApiKey.INIT_PRODUCER_ID, lambda world: world.state() == "Empty")
def _(world: World) -> Any:
    driver = world.driver(version=1)
    with world.lost():
        driver.fresh_epoch()


@case("TransactionClient.add_partitions", ApiKey.ADD_PARTITIONS_TO_TXN, lambda world: world.state() == "Ongoing")
def _(world: World) -> Any:
    driver = world.driver(version=1)
    with world.lost():
        driver.add_partitions([world.place])


@case("TransactionClient.add_offsets", ApiKey.ADD_OFFSETS_TO_TXN, lambda world: world.state() == "Ongoing")
def _(world: World) -> Any:
    driver = world.driver(version=1)
    with world.lost():
        driver.add_offsets(world.name)


@case("TransactionClient.commit_offsets", ApiKey.TXN_OFFSET_COMMIT, lambda world: world.offset() == 5)
def _(world: World) -> Any:
    driver = world.driver()
    try:
        with world.lost():
            driver.commit_offsets(world.name, {world.place: 5})
    finally:
        driver.end(commit=True)


def written(world: World) -> tuple[TransactionClient, BatchProducer]:
    driver = world.driver()
    task = BatchProducer(
        world.config,
        driver.share(),
        delivery_timeout_ms=world.times["delivery.timeout.ms"],
    )
    return driver, world.stack.enter_context(task)


@case("TransactionClient.end", ApiKey.END_TXN, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    driver, task = written(world)
    task.produce(world.topic, 0, encode_columns(pa.array(["x"]), timestamp_ms=0))
    with world.lost():
        driver.end(commit=True)


@case("TransactionClient.resume", ApiKey.END_TXN, lambda world: world.values() == [b"x"])
def _(world: World) -> Any:
    driver, task = written(world)
    task.produce(world.topic, 0, encode_columns(pa.array(["x"]), timestamp_ms=0))
    other = world.stack.enter_context(TransactionClient(world.config))
    with world.lost():
        other.resume(driver.share(), commit=True)


@case(
    "BatchProducer.produce",
    ApiKey.PRODUCE,
    lambda world: world.is_open(),
    returns=lambda world, summary: summary.records == 1,
    leaves_open=(AbortableError,),
)
def _(world: World) -> Any:
    _, task = written(world)
    with world.lost():
        return task.produce(world.topic, 0, encode_columns(pa.array(["x"]), timestamp_ms=0))


@case("BatchProducer.write", ApiKey.PRODUCE, lambda world: world.is_open(), leaves_open=(AbortableError,))
@case("BatchProducer.flush", ApiKey.PRODUCE, lambda world: world.is_open(), leaves_open=(AbortableError,))
def _(world: World) -> Any:
    _, task = written(world)
    with world.lost():
        task.write(world.place, encode_columns(pa.array(["x"]), timestamp_ms=0)[0])
        task.flush()


@case("Admin.unregister_broker", ApiKey.UNREGISTER_BROKER, lambda world: True, finds_out=False)
def _(world: World) -> Any:
    """Of a broker that is not there: the one that asks again is told the same if it was there."""
    admin = world.admin()
    with world.lost():
        admin.unregister_broker(7)


# The tests


@pytest.fixture
def make_world(
    chaos: Chaos, module_admin: Admin, reading: Reading, servers: str, unique: Any
) -> Iterator[Callable[[], World]]:
    with ExitStack() as stack:

        def make() -> World:
            made = World(chaos, module_admin, reading, servers, unique("lost"))
            stack.enter_context(made.stack)
            return made

        yield make


@pytest.fixture
def world(make_world: Callable[[], World]) -> World:
    return make_world()


def calls_of(cls: type) -> set[str]:
    """All but those that it has of another class that is played."""
    inherited = {name for base in cls.__mro__[1:] if base in CLASSES for name in dir(base)}
    return {name for name in dir(cls) if not name.startswith("_")} - inherited


def test_every_class_is_played_or_sends_nothing() -> None:
    public = {name: getattr(client, name) for name in client.__all__}
    classes = {name for name, each in public.items() if isinstance(each, type) and not issubclass(each, BaseException)}
    played = {cls.__name__ for cls in (*CLASSES, *TWINS)}
    assert classes == played | VALUES, "a class that may change something is not played"
    assert not played & VALUES


def test_every_call_is_one_that_changes_nothing_or_has_a_case() -> None:
    calls = {f"{cls.__name__}.{name}" for cls in CLASSES for name in calls_of(cls)}
    played = {name.split(" ")[0] for name in CASES}
    assert played | LOCAL | READING == calls, "a call that may change something has no case, or is there no more"
    assert not played & (LOCAL | READING)


@pytest.mark.parametrize(("asynchronous", "blocking"), TWINS.items(), ids=lambda cls: cls.__name__)
def test_an_asynchronous_class_has_no_call_that_is_not_played(asynchronous: type, blocking: type) -> None:
    assert calls_of(asynchronous) - {"connect"} <= calls_of(blocking)


@pytest.mark.parametrize("name", CASES)
def test_a_call_whose_first_answer_is_lost_finds_out_or_says_that_it_does_not_know(name: str, world: World) -> None:
    played = CASES[name]
    world.losing(played.answer, LOST)
    try:
        result = played.call(world)
    except KafkaError as error:
        assert not played.finds_out, f"{error!r}"
        assert IN_DOUBT in str(error)
    else:
        assert played.returns(world, result), result
    assert world.chaos.happened[Kind.LOSE_ANSWER] == 1
    wait_until(lambda: played.holds(world))


@pytest.mark.parametrize(
    "name",
    [name for name, played in CASES.items() if played.answer in FORWARDED or played.answer in CHANGED_BY_GROUPS],
)
def test_a_call_that_is_told_of_an_error_after_it_was_carried_out_does_not_say_that_nothing_was_done(
    name: str, world: World
) -> None:
    """A broker that waited in vain for a controller says REQUEST_TIMED_OUT, a coordinator that lost its office while it
    wrote NOT_COORDINATOR: both do not know what became of it."""
    played = CASES[name]
    code = ErrorCode.REQUEST_TIMED_OUT if played.answer in FORWARDED else ErrorCode.NOT_COORDINATOR
    world.losing(played.answer, Accident(Kind.LIE, code))
    try:
        played.call(world)
    except KafkaError as error:
        assert IN_DOUBT in str(error)
        assert code != ErrorCode.REQUEST_TIMED_OUT or error.in_doubt
    assert world.chaos.happened[Kind.LIE] == 1
    wait_until(lambda: played.holds(world))


def test_records_that_a_leader_has_deleted_are_not_said_to_be_there(world: World) -> None:
    """It says REQUEST_TIMED_OUT until all its followers have deleted them too."""
    world.write()
    world.times = LESS_QUICK
    world.losing(ApiKey.DELETE_RECORDS, *[Accident(Kind.LIE, ErrorCode.REQUEST_TIMED_OUT)] * 1000)
    pauses = dict.fromkeys(("retry.backoff.ms", "retry.backoff.max.ms"), 60_000)  # the time is over in one of them
    with Admin({**world.settings, **pauses}) as admin, world.lost(), pytest.raises(TimedOut, match=IN_DOUBT):
        admin.delete_records({world.place: 2})
    assert CASES["Admin.delete_records"].holds(world)


def test_what_was_done_is_told_beside_what_was_refused(world: World) -> None:
    names = [f"{world.name}-1", "no/name", f"{world.name}-2"]
    with pytest.raises(KafkaError, match=r"creating topic no/name: .*; the other 2 are done"):
        world.admin().create_topics(names)
    assert names[0] in world.truth.list_topics()
    with pytest.raises(KafkaError, match=r"deleting topic none: .*; the other 1 is done"):
        world.admin().delete_topics(["none", names[0]])
    with pytest.raises(KafkaError, match=r"creating topic no/name: [^;]*$"):
        world.admin().create_topics(["no/name"])
    world.truth.alter_group_offsets(world.name, {world.place: 5})
    with pytest.raises(KafkaError, match=r"deleting the offset of none-0 in group [^;]*$"):
        world.admin().delete_group_offsets(world.name, [TopicPartition("none", 0)])


def test_what_was_refused_or_not_sent_at_all_is_not_said_to_be_done(world: World) -> None:
    admin = world.admin()
    refused: dict[str, Callable[[], object]] = {
        "OFFSET_OUT_OF_RANGE": lambda: admin.delete_records({world.place: 1000}),
        "a number is out of range": lambda: admin.create_partitions({world.topic: 2**40}),
        "a text is not UTF-8": lambda: admin.delete_topics(["\ud800"]),
        "does not serve": lambda: admin.unregister_broker(1),
    }
    connection = admin._run(admin.cluster.any_broker())
    del connection.wire.versions[ApiKey.UNREGISTER_BROKER]
    for why, call in refused.items():
        with pytest.raises(KafkaError, match=why) as caught:
            call()
        assert not caught.value.in_doubt, why
        assert IN_DOUBT not in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_a_call_whose_answers_are_all_lost_does_not_say_that_nothing_was_done(
    name: str, make_world: Callable[[], World]
) -> None:
    played = CASES[name]
    for times in (QUICK, LESS_QUICK):
        world = make_world()
        world.times = times
        world.losing(played.answer, *[LOST] * 1000)
        try:
            played.call(world)
        except KafkaError as error:
            has_asked = world.chaos.happened[Kind.LOSE_ANSWER]
            assert not has_asked or isinstance(error, played.leaves_open) or IN_DOUBT in str(error), f"{error!r}"
        if world.chaos.happened[Kind.LOSE_ANSWER]:
            break  # on a busy machine the time may be over before anything is asked
    assert world.chaos.happened[Kind.LOSE_ANSWER] >= 1
    wait_until(lambda: played.holds(world))


@pytest.mark.parametrize("name", [name for name, played in CASES.items() if played.answer is not ApiKey.JOIN_GROUP])
def test_a_call_that_is_refused_after_its_first_answer_was_lost_says_that_it_may_have_done_it(
    name: str, world: World
) -> None:
    """Two faults in a row: whoever asks again may meet rights that were taken away, a rebalance, a newer producer."""
    played = CASES[name]
    code = REFUSALS.get(played.answer, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    world.losing(played.answer, LOST, Accident(Kind.REFUSE, code))
    try:
        played.call(world)
    except AbortableError:
        return  # nothing of it counts before the commit
    except KafkaError as error:
        assert IN_DOUBT in str(error), f"{error!r}"
        assert error.in_doubt
    assert world.chaos.happened[Kind.LOSE_ANSWER] == 1
    wait_until(lambda: played.holds(world))


def test_a_commit_whose_answer_was_lost_before_a_newer_producer_came_is_not_said_to_be_aborted(world: World) -> None:
    client = world.in_transaction()
    lost = iter([LOST])

    def interfere(key: ApiKey, request: Any) -> Accident | None:
        if key is not ApiKey.END_TXN:
            return None
        if (accident := next(lost, None)) is None:
            world.truth.fence_producers([world.name])
        return accident

    world.chaos.accident = interfere
    with pytest.raises(ProducerFenced, match=IN_DOUBT) as caught:
        client.commit_transaction()
    world.chaos.accident = lambda key, request: None
    assert caught.value.in_doubt
    assert world.values() == [b"x"]


def test_an_offset_that_was_committed_before_a_rebalance_is_not_said_to_be_lost(world: World) -> None:
    world.write()
    member = world.consumer()
    member.subscribe([world.topic])
    wait_until(lambda: bool(member.poll(100)))
    world.losing(ApiKey.OFFSET_COMMIT, LOST, Accident(Kind.REFUSE, ErrorCode.ILLEGAL_GENERATION))
    with world.lost(), pytest.raises(CommitFailed, match=IN_DOUBT) as caught:
        member.commit()
    assert caught.value.in_doubt
    assert world.offset() == 3


def test_a_hanging_transaction_that_was_aborted_without_an_answer_does_not_take_the_next_one_with_it(
    world: World,
) -> None:
    """Before TV2 the next transaction of a producer has the same epoch: a second marker would abort that one."""
    config = ClientConfig.parse({"bootstrap.servers": world.servers, "oncelog.transaction.version.max": 1})
    driver = world.stack.enter_context(TransactionClient(config))
    driver.init(world.name)
    driver.add_partitions([world.place])
    task = world.stack.enter_context(BatchProducer(config, driver.share()))
    rows = encode_columns(pa.array(["x"]), timestamp_ms=0)
    task.produce(world.topic, 0, rows)
    lost = iter([LOST])
    next_one = iter([True])

    def interfere(key: ApiKey, request: Any) -> Accident | None:
        if key is ApiKey.WRITE_TXN_MARKERS and (accident := next(lost, None)) is not None:
            return accident
        if not world.is_open() and next(next_one, False):
            task.produce(world.topic, 0, rows)
        return None

    admin = world.admin()
    world.chaos.accident = interfere
    admin.abort_transaction(world.place, 0)
    world.chaos.accident = lambda key, request: None
    assert next(next_one, None) is None, "the next transaction was not begun"
    assert world.is_open()
