"""The client of a process: how often it asks, and what it leaves open."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.client.config import ClientConfig
from oncelog.client.connection import Connection
from oncelog.spark import worker_client as module
from oncelog.spark.worker_client import CLIENTS_MAX, WorkerClient, worker_client
from tests.spark.kafka import Kafka
from tests.spark.waiting import wait_for


@pytest.fixture
def client(kafka: Kafka) -> Iterator[WorkerClient]:
    with WorkerClient(ClientConfig(bootstrap_servers=kafka.servers, allow_auto_create_topics=False)) as made:
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By name, those that the client sends from now on."""
    sent: Counter[str] = Counter()
    call = Connection.call

    async def counted(self: Connection, request: Any, *rest: Any, **more: Any) -> Any:
        sent[type(request).__name__] += 1
        return await call(self, request, *rest, **more)

    monkeypatch.setattr(Connection, "call", counted)
    return sent


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_more_client_settings_than_are_kept_leave_no_connections(kafka: Kafka) -> None:
    def use(number: int) -> None:
        config = ClientConfig(bootstrap_servers=kafka.servers, client_id=f"leaking-{number}")
        assert worker_client(config).partitions_of(None) is not None

    for number in range(CLIENTS_MAX):
        use(number)
    before = open_descriptors()
    for number in range(CLIENTS_MAX, 4 * CLIENTS_MAX):
        use(number)
    gc.collect()
    # Others in this process open and close some meanwhile; those that leak would be three times as many.
    wait_for(lambda: open_descriptors() <= before + CLIENTS_MAX)


def test_a_client_in_use_is_not_closed_when_others_take_its_place(kafka: Kafka) -> None:
    held = worker_client(ClientConfig(bootstrap_servers=kafka.servers, client_id="held"))
    for number in range(2 * CLIENTS_MAX):
        worker_client(ClientConfig(bootstrap_servers=kafka.servers, client_id=f"other-{number}"))
    gc.collect()
    assert held.partitions_of(None) is not None


def test_many_topics_are_looked_up_at_once(
    kafka: Kafka, name: Callable[[str], str], client: WorkerClient, requests: Counter[str]
) -> None:
    topics = [kafka.create(name(f"t{number}"), 1 + number % 3) for number in range(20)]
    found = client.topic_facts([*topics, "no-such-topic"])
    assert {topic: facts.partitions for topic, facts in found.items()} == {
        topic: 1 + number % 3 for number, topic in enumerate(topics)
    }
    assert (requests["MetadataRequest"], requests["DescribeConfigsRequest"]) == (1, 1)
    for _ in range(10):
        client.topic_facts(topics)
    assert (requests["MetadataRequest"], requests["DescribeConfigsRequest"]) == (1, 1)


def test_what_is_known_of_a_topic_is_renewed_without_waiting(
    kafka: Kafka,
    name: Callable[[str], str],
    client: WorkerClient,
    requests: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create(name("growing"))
    assert client.topic_facts([topic])[topic].partitions == 1
    kafka.grow(topic, 2)
    monkeypatch.setattr(module, "FACTS_AGE_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(client, "_run", None)
        assert client.topic_facts([topic])[topic].partitions == 1
        wait_for(lambda: client.topic_facts([topic])[topic].partitions == 2)
    monkeypatch.setattr(module, "FACTS_AGE_MAX_S", 0.0)
    kafka.grow(topic, 3)
    assert client.topic_facts([topic])[topic].partitions == 3


def test_a_topic_that_was_not_there_is_asked_for_again(
    kafka: Kafka, name: Callable[[str], str], client: WorkerClient
) -> None:
    assert client.topic_facts([name("late")]) == {}
    kafka.create(name("late"), cleanup_policy="compact", max_message_bytes="5000")
    facts = client.topic_facts([name("late")])[name("late")]
    assert (facts.partitions, facts.is_compacted, facts.message_bytes_max) == (1, True, 5000)
