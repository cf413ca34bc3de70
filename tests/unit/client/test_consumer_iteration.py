"""Iterating over a consumer: its position follows the loop, not what was fetched for the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog.client import Admin, AsyncConsumer, Consumer, NewTopic, Producer, TopicPartition
from tests.unit.client.client_factory import client_factory, numbers

COUNT = 20


@pytest.fixture(scope="module")
def topic(module_admin: Admin, oncelog_broker: Any) -> str:
    """Two partitions with ten records each, values 0 to 19."""
    module_admin.create_topics([NewTopic("iterated", 2, 1)])
    with Producer({"bootstrap.servers": oncelog_broker.bootstrap_servers}) as producer:
        for number in range(COUNT):
            producer.send("iterated", str(number), partition=number % 2)
    return "iterated"


@pytest.fixture
def consumer(servers: str) -> Iterator[Callable[..., Consumer]]:
    with client_factory(Consumer, {"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as make:
        yield make


def take(client: Consumer, count: int) -> list[int]:
    taken = []
    for record in client:
        taken.append(record)
        if len(taken) == count:
            break
    return numbers(taken)


def test_a_loop_that_is_left_leaves_the_rest_to_the_next(consumer: Any, topic: str) -> None:
    client = consumer()
    client.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    seen = take(client, 3) + take(client, 8)
    seen += numbers(client.poll(5000))
    while len(seen) < COUNT:
        seen += numbers(client.poll(5000))
    assert sorted(seen) == list(range(COUNT))


def test_a_commit_within_the_loop_is_of_what_the_loop_has_seen(consumer: Any, topic: str, unique: Any) -> None:
    group, place = unique("group"), TopicPartition(topic, 0)
    client = consumer(group_id=group, enable_auto_commit=False)
    client.assign([place])
    for record in client:
        client.commit()
        following = record.offset + 1
        assert client.committed([place])[place].offset == client.position(place) == following
        assert client.lag(place) == COUNT // 2 - following
        if following == COUNT // 2:
            break


@pytest.mark.parametrize("how", ["break", "error"])
def test_closing_commits_what_the_loop_has_seen(consumer: Any, topic: str, unique: Any, how: str) -> None:
    group = unique("group")
    seen = []
    with contextlib.suppress(ZeroDivisionError), consumer(group_id=group) as client:
        client.subscribe([topic])
        for record in client:
            seen.append(int(record.value))
            if len(seen) == 3:
                if how == "error":
                    raise ZeroDivisionError
                break
    heir = consumer(group_id=group)
    heir.subscribe([topic])
    assert sorted(seen + take(heir, COUNT - 3)) == list(range(COUNT))


def test_a_seek_within_the_loop_counts_at_once(consumer: Any, topic: str) -> None:
    client, place = consumer(), TopicPartition(topic, 0)
    client.assign([place])
    seen = []
    for record in client:
        seen.append(record.offset)
        if seen == [0, 1]:
            client.seek(place, 7)
        if record.offset == 9:
            break
    assert seen == [0, 1, 7, 8, 9]


def test_a_partition_that_is_paused_or_given_up_within_the_loop_gives_no_more(consumer: Any, topic: str) -> None:
    client = consumer(max_poll_records=COUNT)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    client.assign([first, second])
    seen = []
    for record in client:
        seen.append(record)
        if len(seen) == 2:
            client.pause([record.topic_partition])
        if len(seen) == 2 + COUNT // 2:
            break
    others = {record.topic_partition for record in seen[2:]}
    assert others == {first, second} - {seen[0].topic_partition}
    client.resume(client.paused())
    rest = take(client, COUNT - len(seen))
    assert sorted(numbers(seen) + rest) == list(range(COUNT))

    client.seek_to_beginning()
    loop = iter(client)
    given_up = next(loop).topic_partition
    client.assign([first, second][given_up == first :][:1])
    assert {next(loop).topic_partition for _ in range(COUNT // 2)} == {first, second} - {given_up}


def test_a_loop_that_is_taken_up_again_repeats_nothing(consumer: Any, topic: str) -> None:
    client = consumer()
    client.assign([TopicPartition(topic, 0)])
    loop = iter(client)
    seen = [int(next(loop).value), int(next(loop).value)]
    seen += numbers(client.poll(60_000, max_records=3))
    seen += [int(next(loop).value) for _ in range(5)]
    assert seen == list(range(0, COUNT, 2))


def test_the_asynchronous_consumer_does_the_same(servers: str, topic: str, unique: Any) -> None:
    settings = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "group.id": unique("group")}

    async def take_async(count: int) -> list[int]:
        taken = []
        async with AsyncConsumer(settings) as client:
            await client.subscribe([topic])
            async for record in client:
                taken.append(record)
                if len(taken) == count:
                    break
        return numbers(taken)

    async def everything() -> list[int]:
        return await take_async(3) + await take_async(COUNT - 3)

    assert sorted(asyncio.run(everything())) == list(range(COUNT))
