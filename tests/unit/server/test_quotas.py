"""Quotas at work: who is silenced for how long, what is not sent, what stays free of it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.client import Admin, Consumer, Producer
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import INT_MAX, ConfigError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.security.quotas import QuotaTable
from oncelog.server.authorization import AllowClients
from oncelog.server.connection_limits import ConnectionLimits, ListenerLimits, parse_overrides
from oncelog.server.context import Peer
from oncelog.testing.broker import BrokerProcess
from tests.conformance.wire import Wire
from tests.unit.server.harness import BrokerInProcess
from tests.virtual_clock import VirtualScheduler


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


# Connections


def limits(quotas: QuotaTable | None = None, **entries: str) -> tuple[ConnectionLimits, VirtualScheduler]:
    settings = BROKER_CONFIG.parse({key.replace("_", "."): text for key, text in entries.items()})
    clock = VirtualScheduler()
    made = ConnectionLimits(
        lambda: settings,
        {"SMALL": ListenerLimits(2, 1), "LARGE": ListenerLimits()},
        parse_overrides(settings),
        1000,
        quotas or QuotaTable({}),
        clock.monotonic_ms,
    )
    return made, clock


def test_connections_of_an_address_and_of_a_listener_are_limited() -> None:
    made, _ = limits(max_connections_per_ip="2", max_connections_per_ip_overrides="10.0.0.9:3")
    assert [made.admit("10.0.0.1", "LARGE").refusal for _ in range(3)] == [None, None, "max.connections.per.ip is 2"]
    assert [made.admit("10.0.0.9", "LARGE").refusal is None for _ in range(4)] == [True, True, True, False]
    made.forget("10.0.0.1", "LARGE")
    assert made.admit("10.0.0.1", "LARGE").refusal is None
    assert [made.admit(f"10.0.1.{number}", "SMALL").refusal is None for number in range(3)] == [True, True, False]


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


def test_overrides_that_are_not_understood_are_refused() -> None:
    with pytest.raises(ConfigError, match="ADDRESS:NUMBER"):
        limits(max_connections_per_ip_overrides="10.0.0.9")


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
            producer.send("tea", b"x" * 110_000).result(20)
            started = time.monotonic()
            producer.send("tea", b"y").result(20)
            assert time.monotonic() - started > 0.5, "it is silenced for a second"
        with Producer({**settings, "client.id": "fast", "linger.ms": 0}) as producer:
            producer.send("tea", b"x" * 110_000).result(20)
        with Consumer({**settings, "client.id": "reader"}) as consumer:
            consumer.assign([TopicPartition("tea", 0)])
            consumer.seek(TopicPartition("tea", 0), 1)
            assert consumer.poll(20_000)[0].value == b"y"


def set_quota(servers: str, client_id: str, key: str, value: float) -> None:
    with Wire(servers) as wire:
        entity = [{"entity_type": "client-id", "entity_name": client_id}]
        ops = [{"key": key, "value": value, "remove": False}]
        answer = wire.call("alter_client_quotas", 1, entries=[{"entity": entity, "ops": ops}])
    assert answer["entries"][0]["error_code"] == 0


def test_a_client_far_above_its_rate_is_told_a_time_that_fits_its_field(node: BrokerInProcess, ann: Peer) -> None:
    give(node, "producer_byte_rate", 1.0)
    ann.throttle_ms = 0
    for number in range(5):
        assert node.produce("tea", [b"x" * 900_000]).base_offset == number
    assert ann.throttle_ms == INT_MAX


def test_followers_are_not_silenced(node: BrokerInProcess, ann: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    give(node, "request_percentage", 0.5)
    node.broker.authorizer = AllowClients(cluster_action=True)
    node.broker.replication = cast(Any, SimpleNamespace(stop=lambda: None))
    seconds = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    request = FetchRequest(
        replica_id=2, max_wait_ms=0, topics=[FetchTopic(topic="none", partitions=[FetchPartition()])]
    )
    ann.throttle_ms = 0
    assert node.call(request, 12).throttle_time_ms == 0
    assert ann.throttle_ms == 0
