"""The client of a process: how often it asks, and what it leaves open."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import Admin, ClientConfig, NewTopic, WorkerClient, worker_client
from oncelog.client import worker as module
from oncelog.client.connection import Connection
from oncelog.client.worker import CLIENTS_MAX
from tests.descriptors import open_descriptors
from tests.waiting import wait_until


@pytest.fixture
def client(servers: str) -> Iterator[WorkerClient]:
    with WorkerClient(ClientConfig(bootstrap_servers=servers, allow_auto_create_topics=False)) as made:
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


def test_more_client_settings_than_are_kept_leave_no_connections(servers: str) -> None:
    def use(number: int) -> None:
        config = ClientConfig(bootstrap_servers=servers, client_id=f"leaking-{number}")
        assert worker_client(config).partitions_of(None) is not None

    for number in range(CLIENTS_MAX):
        use(number)
    before = open_descriptors()
    for number in range(CLIENTS_MAX, 4 * CLIENTS_MAX):
        use(number)
    gc.collect()
    # Others in this process open and close some meanwhile; those that leak would be three times as many.
    wait_until(lambda: open_descriptors() <= before + CLIENTS_MAX)


def test_a_client_in_use_is_not_closed_when_others_take_its_place(servers: str) -> None:
    held = worker_client(ClientConfig(bootstrap_servers=servers, client_id="held"))
    for number in range(2 * CLIENTS_MAX):
        worker_client(ClientConfig(bootstrap_servers=servers, client_id=f"other-{number}"))
    gc.collect()
    assert held.partitions_of(None) is not None


def test_many_topics_are_looked_up_at_once(
    module_admin: Admin, unique: Callable[[str], str], client: WorkerClient, requests: Counter[str]
) -> None:
    topics = [unique("many") for _ in range(20)]
    module_admin.create_topics([NewTopic(topic, 1 + number % 3) for number, topic in enumerate(topics)])
    requests.clear()
    found = client.topic_facts([*topics, "no-such-topic"])
    assert {topic: facts.partitions for topic, facts in found.items()} == {
        topic: 1 + number % 3 for number, topic in enumerate(topics)
    }
    assert (requests["MetadataRequest"], requests["DescribeConfigsRequest"]) == (1, 1)
    for _ in range(10):
        client.topic_facts(topics)
    assert (requests["MetadataRequest"], requests["DescribeConfigsRequest"]) == (1, 1)


def test_what_is_known_of_a_topic_is_renewed_without_waiting(
    module_admin: Admin,
    unique: Callable[[str], str],
    client: WorkerClient,
    requests: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = unique("growing")
    module_admin.create_topics([NewTopic(topic, 1)])
    assert client.topic_facts([topic])[topic].partitions == 1
    module_admin.create_partitions({topic: 2})
    monkeypatch.setattr(module, "FACTS_AGE_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(client, "_run", None)
        assert client.topic_facts([topic])[topic].partitions == 1
        wait_until(lambda: client.topic_facts([topic])[topic].partitions == 2)
    monkeypatch.setattr(module, "FACTS_AGE_MAX_S", 0.0)
    module_admin.create_partitions({topic: 3})
    assert client.topic_facts([topic])[topic].partitions == 3


def test_a_topic_that_was_not_there_is_asked_for_again(
    module_admin: Admin, unique: Callable[[str], str], client: WorkerClient
) -> None:
    topic = unique("late")
    assert client.topic_facts([topic]) == {}
    settings = {"cleanup.policy": "compact", "max.message.bytes": "5000"}
    module_admin.create_topics([NewTopic(topic, 1, configs=settings)])
    facts = client.topic_facts([topic])[topic]
    assert (facts.partitions, facts.is_compacted, facts.message_bytes_max) == (1, True, 5000)


def test_a_name_that_no_topic_can_have_is_unknown_however_long(
    module_admin: Admin, unique: Callable[[str], str], client: WorkerClient, requests: Counter[str]
) -> None:
    """A column of rows may hold anything, and a broker closes the connection at a string beyond 32 KiB."""
    topic = unique("there")
    module_admin.create_topics([NewTopic(topic, 1)])
    long = ["x" * 250, "x" * 40_000, "\u00e4" * 20_000]
    assert client.topic_facts([*long, topic]).keys() == {topic}
    assert client.topic_facts(long) == {}
    assert requests["MetadataRequest"] <= 2
