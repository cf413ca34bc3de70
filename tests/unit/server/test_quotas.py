"""Quotas at work: who is silenced for how long, what is not sent, what stays free of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.client import Admin, Consumer, Producer
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import INT_MAX, ConfigError
from oncelog.core.errors import KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.security.quotas import QuotaTable
from oncelog.server.authorization import AllowClients
from oncelog.server.broker import Broker
from oncelog.server.connection_limits import ConnectionLimits, ListenerLimits, parse_overrides
from oncelog.server.context import Peer, RequestContext
from oncelog.server.listener import parse_listeners
from oncelog.server.memory_budget import CONNECTION_BYTES, CONNECTIONS_MIN
from oncelog.server.quotas import FORGOTTEN_AFTER_MS, MEASURED_MAX, Quotas
from oncelog.server.replication_throttle import ReplicationThrottle
from oncelog.server.server import Server
from oncelog.server.turns import SLICE_MS, Steps
from oncelog.testing.broker import BrokerProcess
from tests.conformance.wire import Wire
from tests.unit.server.harness import BrokerInProcess
from tests.virtual_clock import VirtualScheduler
from tests.waiting import wait_until


def give(node: BrokerInProcess, key: str, value: float | None, user: str | None = "ann") -> None:
    op = OpData(key=key, value=value or 0.0, remove=value is None)
    entry = EntryData(entity=[EntityData(entity_type="user", entity_name=user)], ops=[op])
    assert [each.error_code for each in node.call(AlterClientQuotasRequest(entries=[entry]), 1).entries] == [0]


@pytest.fixture
def ann(node: BrokerInProcess) -> Peer:
    node.create("tea")
    node.peer = Peer("127.0.0.1", "127.0.0.1", principal="User:ann")
    return node.peer


def fetch(node: BrokerInProcess, offset: int = 0) -> Any:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic="tea", partitions=[partition])], session_epoch=-1
    )
    return node.call(request, 12)


def test_a_producer_above_its_rate_is_silenced_and_what_it_sent_is_kept(node: BrokerInProcess, ann: Peer) -> None:
    give(node, "producer_byte_rate", 1000.0)
    ann.throttle_ms = 0
    assert node.produce("tea", [b"x" * 5000]).error_code == 0
    assert ann.throttle_ms == 0, "5,000 bytes of ten seconds"
    assert node.produce("tea", [b"x" * 10_000]).base_offset == 1
    assert 4000 < ann.throttle_ms < 8000
    ann.principal, ann.throttle_ms = "User:bob", 0
    node.produce("tea", [b"x" * 50_000])
    assert ann.throttle_ms == 0, "bob has no quota"


def test_a_reader_above_its_rate_gets_an_empty_answer_that_says_how_long(node: BrokerInProcess, ann: Peer) -> None:
    for _ in range(3):
        node.produce("tea", [b"x" * 6000])
    give(node, "consumer_byte_rate", 1000.0)
    assert len(fetch(node).responses[0].partitions[0].records) > 6000
    answer = fetch(node, 1)
    assert (answer.responses, answer.error_code) == ([], 0)
    assert answer.throttle_time_ms > 0
    assert ann.throttle_ms == answer.throttle_time_ms
    node.clock.advance_ms(11_000)
    answer = fetch(node, 1)
    assert answer.responses[0].partitions[0].records


def test_a_batch_larger_than_the_quota_still_arrives(node: BrokerInProcess, ann: Peer) -> None:
    node.produce("tea", [b"x" * 50_000])
    give(node, "consumer_byte_rate", 100.0)
    answer = fetch(node)
    assert len(answer.responses[0].partitions[0].records) > 50_000
    assert answer.throttle_time_ms > 0


def test_time_spent_on_requests_is_limited(node: BrokerInProcess, ann: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    give(node, "request_percentage", 0.5)
    seconds = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    answer = node.call(DescribeClientQuotasRequest(), 1)
    assert answer.throttle_time_ms == 1000, "at most one window"


def test_time_of_all_slices_of_a_long_request_is_charged(
    node: BrokerInProcess, ann: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(node, "request_percentage", 100.0)
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    charged_s: list[float] = []
    monkeypatch.setattr(node.broker.quotas, "charge_request", lambda _key, _context, _size, s: charged_s.append(s))

    def slow(broker: Broker, request: Any, context: RequestContext) -> Steps[DescribeClientQuotasResponse]:
        for _ in range(3):
            seconds[0] += 1
            node.clock._now_ms += SLICE_MS
            yield
        return DescribeClientQuotasResponse(entries=[])

    node.broker.dispatcher.wrap_handler(ApiKey.DESCRIBE_CLIENT_QUOTAS, lambda _: slow)
    for _ in range(2):
        promise = node.send(DescribeClientQuotasRequest(), 1)
        assert not promise.done
        node.clock.advance_ms(10 * SLICE_MS)
        assert promise.value.entries == []
    assert charged_s == [3.0, 3.0]


def topics(node: BrokerInProcess, version: int, *names: str, partitions: int = 10) -> Any:
    wanted = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return node.call(CreateTopicsRequest(topics=wanted), version)


def test_changes_of_topics_are_refused_above_the_rate_by_newer_versions(node: BrokerInProcess, ann: Peer) -> None:
    give(node, "controller_mutation_rate", 1.0)
    answer = topics(node, 7, "a", "b", "c")
    assert [topic.error_code for topic in answer.topics] == [0, 0, 89], "11 may be saved up, and overdrawn once"
    assert answer.throttle_time_ms == 9000
    assert topics(node, 5, "c").topics[0].error_code == 0, "older clients do not know the error"
    more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=20, assignments=None)])
    assert node.call(more, 3).results[0].error_code == 89
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
    assert node.call(gone, 6).responses[0].error_code == 89
    node.clock.advance_ms(60_000)
    assert node.call(gone, 6).responses[0].error_code == 0


def test_quotas_outlive_a_restart_and_are_gone_when_removed(node: BrokerInProcess, ann: Peer) -> None:
    assert not node.broker.quotas.are_set
    give(node, "producer_byte_rate", 1000.0)
    give(node, "consumer_byte_rate", 2000.0, user=None)
    node.restart()
    assert node.broker.quotas.are_set
    entries = node.call(DescribeClientQuotasRequest(), 1).entries
    assert {(entry.entity[0].entity_name, entry.values[0].key, entry.values[0].value) for entry in entries} == {
        ("ann", "producer_byte_rate", 1000.0),
        (None, "consumer_byte_rate", 2000.0),
    }
    give(node, "producer_byte_rate", None)
    give(node, "consumer_byte_rate", None, user=None)
    assert not node.broker.quotas.are_set
    node.restart()
    assert node.call(DescribeClientQuotasRequest(), 1).entries == []


def test_clients_with_many_and_long_names_are_measured_in_bounded_memory() -> None:
    clock = VirtualScheduler()
    entries = {(("client-id", None),): {"producer_byte_rate": 1.0, "controller_mutation_rate": 1.0}}
    quotas = Quotas(entries, clock.monotonic_ms)

    def silenced_ms(client_id: str) -> int:
        context = RequestContext(7, client_id, Peer("127.0.0.1", "127.0.0.1"), api_key=ApiKey.CREATE_TOPICS)
        with contextlib.suppress(KafkaError):
            quotas.take_mutations(context, 100)
        quotas.charge_request(ApiKey.PRODUCE, context, 1000, 0.0)
        return context.throttle_ms

    tracemalloc.start()
    try:
        for number in range(MEASURED_MAX + 1000):
            silenced_ms(f"{number}{'x' * 10_000}")
            if number % 1000 == 0:
                assert silenced_ms("busy") >= number, "whoever goes on is not forgotten"
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 50_000_000, "half of what the names alone would take"
    clock.advance_ms(FORGOTTEN_AFTER_MS)
    quotas.forget_idle()
    assert not quotas._rates
    assert not quotas._buckets


# Connections


def limits(
    quotas: QuotaTable | None = None, between_brokers: str | None = None, **entries: str
) -> tuple[ConnectionLimits, VirtualScheduler]:
    settings = BROKER_CONFIG.parse({key.replace("_", "."): text for key, text in entries.items()})
    clock = VirtualScheduler()
    made = ConnectionLimits(
        lambda: settings,
        {"SMALL": ListenerLimits(2, 1), "LARGE": ListenerLimits()},
        parse_overrides(settings),
        1000,
        quotas or QuotaTable({}),
        clock.monotonic_ms,
        between_brokers,
    )
    return made, clock


@pytest.mark.parametrize(
    ("budget_bytes", "count"), [(131_072, CONNECTIONS_MIN), (200 * CONNECTION_BYTES + 5, 200)], ids=["small", "larger"]
)
def test_connections_have_their_buffers_in_a_bounded_amount_of_memory(budget_bytes: int, count: int) -> None:
    made, _ = limits(oncelog_connections_max_bytes=str(budget_bytes))
    assert {made.admit("10.0.0.1", "LARGE").refusal for _ in range(count)} == {None}
    refusal = f"the number of connections whose buffers fit into oncelog.connections.max.bytes is {count}"
    assert made.admit("10.0.0.1", "LARGE").refusal == refusal
    made.forget("10.0.0.1", "LARGE")
    assert made.admit("10.0.0.1", "LARGE").refusal is None


def test_connections_of_an_address_and_of_a_listener_are_limited() -> None:
    made, _ = limits(max_connections_per_ip="2", max_connections_per_ip_overrides="10.0.0.9:3")
    assert [made.admit("10.0.0.1", "LARGE").refusal for _ in range(3)] == [None, None, "max.connections.per.ip is 2"]
    assert [made.admit("10.0.0.9", "LARGE").refusal is None for _ in range(4)] == [True, True, True, False]
    made.forget("10.0.0.1", "LARGE")
    assert made.admit("10.0.0.1", "LARGE").refusal is None
    assert [made.admit(f"10.0.1.{number}", "SMALL").refusal is None for number in range(3)] == [True, True, False]


def test_brokers_find_room_among_each_other_where_clients_have_taken_all() -> None:
    made, _ = limits(between_brokers="SMALL", max_connections="3", max_connections_per_ip="4")
    assert [made.admit("10.0.0.1", "LARGE").refusal for _ in range(4)] == [None] * 3 + ["max.connections is 3"]
    assert made.admit("10.0.0.2", "SMALL") == (None, 0, "max.connections is 3"), "a client makes room"
    made.forget("10.0.0.1", "LARGE")
    assert made.admit("10.0.0.1", "LARGE").refusal == "max.connections is 3"
    made.forget("10.0.0.1", "LARGE")
    assert made.admit("10.0.0.2", "SMALL").displaces is None
    assert made.admit("10.0.0.2", "SMALL").refusal == "max.connections of listener SMALL is 2"
    alone, _ = limits(between_brokers="SMALL", max_connections="1", max_connections_per_ip="1")
    assert alone.admit("10.0.0.2", "SMALL").refusal is None
    assert alone.admit("10.0.0.2", "SMALL").refusal == "max.connections.per.ip is 1"


def test_the_listener_between_brokers_is_bound_by_descriptors_and_by_no_rate_for_all() -> None:
    made, _ = limits(between_brokers="LARGE", max_connection_creation_rate="1")
    admissions = [made.admit(f"10.0.0.{number}", "LARGE") for number in range(1001)]
    assert {(each.refusal, each.delay_ms) for each in admissions[:1000]} == {(None, 0)}
    assert admissions[1000].refusal == "what `ulimit -n` leaves for connections is 1000"


def test_connections_that_come_too_fast_wait() -> None:
    made, clock = limits(max_connection_creation_rate="1")
    delays = [made.admit("10.0.0.1", "LARGE").delay_ms for _ in range(15)]
    assert delays[:10] == [0] * 10
    assert all(delays[10:])
    clock.advance_ms(20_000)
    assert made.admit("10.0.0.1", "LARGE").delay_ms == 0


def test_an_address_above_its_quota_is_held_and_closed() -> None:
    made, _ = limits(QuotaTable({(("ip", "10.0.0.1"),): {"connection_creation_rate": 1.0}}))
    found = [made.admit("10.0.0.1", "LARGE") for _ in range(12)]
    assert [each.refusal is None for each in found] == [True] * 10 + [False] * 2
    assert found[-1].delay_ms > 0
    assert made.admit("10.0.0.2", "LARGE").refusal is None


@pytest.mark.parametrize("written", ["2001:DB8:0:0:0:0:0:1", "2001:db8::1", "2001:0db8::0001"])
def test_an_address_is_the_same_in_each_way_to_write_it(written: str) -> None:
    made, _ = limits(QuotaTable({(("ip", written),): {"connection_creation_rate": 1.0}}))
    assert [made.admit("2001:db8::1", "LARGE").refusal is None for _ in range(12)] == [True] * 10 + [False] * 2
    made, _ = limits(max_connections_per_ip="1", max_connections_per_ip_overrides=f"[{written}]:2,localhost:3")
    assert [made.admit("2001:db8::1", "LARGE").refusal is None for _ in range(3)] == [True, True, False]
    assert [made.admit("127.0.0.1", "LARGE").refusal is None for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("text", "why"),
    [("10.0.0.9", "ADDRESS:NUMBER"), ("10.0.0.9:x", "NUMBER"), ("no.host.invalid:2", "no host")],
)
def test_overrides_that_are_not_understood_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        limits(max_connections_per_ip_overrides=text)


# On sockets


def test_a_client_that_is_throttled_is_not_read_from(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        with Admin(settings) as admin:
            admin.create_topics(["tea"])
            set_quota(broker.bootstrap_servers, "slow", "producer_byte_rate", 10_000.0)
        with Producer({**settings, "client.id": "slow", "linger.ms": 0}) as producer:
            started = time.monotonic()
            producer.send("tea", b"x" * 110_000).result(60)
            producer.send("tea", b"y").result(60)
            assert time.monotonic() - started > 0.8, "it is silenced for a second"
        with Producer({**settings, "client.id": "fast", "linger.ms": 0}) as producer:
            producer.send("tea", b"x" * 110_000).result(60)
        with Consumer({**settings, "client.id": "reader"}) as consumer:
            consumer.assign([TopicPartition("tea", 0)])
            consumer.seek(TopicPartition("tea", 0), 1)
            assert consumer.poll(60_000)[0].value == b"y"


def set_quota(servers: str, name: str, key: str, value: float, kind: str = "client-id") -> None:
    with Wire(servers) as wire:
        entity = [{"entity_type": kind, "entity_name": name}]
        ops = [{"key": key, "value": value, "remove": False}]
        answer = wire.call("alter_client_quotas", 1, entries=[{"entity": entity, "ops": ops}])
    assert answer["entries"][0]["error_code"] == 0


def test_an_address_above_its_rate_of_new_connections_is_held_and_cut_off(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        host, _, port = broker.bootstrap_servers.rpartition(":")

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=60))

        def is_served(client: socket.socket) -> bool:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
                return client.recv(1) != b""
            return False

        assert is_served(connect())
        set_quota(broker.bootstrap_servers, host, "connection_creation_rate", 1.0, kind="ip")
        assert [is_served(connect()) for _ in range(5)] == [True] * 5, "as many as in ten seconds come at once"
        started = time.monotonic()
        clients = [connect() for _ in range(40)]
        assert not is_served(clients[-1])
        assert time.monotonic() - started > 0.3, "it is held before it is closed"
        wait_until(lambda: "connection_creation_rate of this address is 1" in broker.log_path.read_text())


def test_another_broker_takes_the_place_of_the_client_that_was_silent_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
        "max.connections": "3",
    }
    monkeypatch.setattr(Server, "_between_brokers", lambda _: "INNER")
    versions = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"

    async def body() -> None:
        server = Server(tmp_path / "data", BROKER_CONFIG.parse(settings))
        await server.start()
        try:
            outer, inner = (server.broker.advertised[name] for name in ("PLAINTEXT", "INNER"))
            clients = [await asyncio.open_connection(*outer) for _ in range(3)]
            for reader, writer in (*clients, clients[0]):
                writer.write(versions)
                assert await reader.readexactly(4)
            refused, _ = await asyncio.open_connection(*outer)
            assert await refused.read() == b""
            reader, writer = await asyncio.open_connection(*inner)
            writer.write(versions)
            assert await reader.readexactly(4)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(_rest(clients[1][0]), 60)
            clients[0][1].write(versions)
            clients[2][1].write(versions)
            assert await clients[0][0].readexactly(4)
            assert await clients[2][0].readexactly(4)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(body(), 180))


async def _rest(reader: asyncio.StreamReader) -> bool:
    while await reader.read(4096):
        pass
    return True


def test_the_listener_between_brokers_is_known_in_a_cluster_only(tmp_path: Path) -> None:
    async def name_of(settings: dict[str, str]) -> str | None:
        server = Server(tmp_path / "data", BROKER_CONFIG.parse(settings))
        server._bound = [(listener, listener.address) for listener in parse_listeners(server._settings)]
        return server._between_brokers()

    both = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
    }
    member = {"process.roles": "broker", "node.id": "1", "controller.quorum.bootstrap.servers": "127.0.0.1:1"}
    assert asyncio.run(name_of(both)) is None
    assert asyncio.run(name_of({**both, **member})) == "INNER"


def test_a_client_far_above_its_rate_is_told_a_time_that_fits_its_field(node: BrokerInProcess, ann: Peer) -> None:
    give(node, "producer_byte_rate", 1.0)
    ann.throttle_ms = 0
    for number in range(5):
        assert node.produce("tea", [b"x" * 900_000]).base_offset == number
    assert ann.throttle_ms == INT_MAX


def test_followers_are_not_silenced(node: BrokerInProcess, ann: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    give(node, "request_percentage", 0.5)
    node.broker.authorizer = AllowClients(cluster_action=True)
    node.broker.is_in_cluster = True
    throttle = ReplicationThrottle(node.broker, "leader")
    node.broker.replication = cast(
        Any, SimpleNamespace(stop=lambda: None, leader_throttle=throttle, fetch_sessions=node.broker.fetch_sessions)
    )
    seconds = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    request = FetchRequest(
        replica_id=2, max_wait_ms=0, topics=[FetchTopic(topic="none", partitions=[FetchPartition()])]
    )
    ann.throttle_ms = 0
    assert node.call(request, 12).throttle_time_ms == 0
    assert ann.throttle_ms == 0
