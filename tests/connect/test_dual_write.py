"""The example of a dual write: PostgreSQL and the topic never disagree, wherever the process dies."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable

import psycopg
import pytest
from examples.connect.dual_write import OrderService

from oncelog.client import Consumer, TopicPartition
from tests.connect.children import Child, kill_self

STEPS = ["prepared", "decided", "completed"]


def events(servers: str, topic: str) -> list[int]:
    place = TopicPartition(topic, 0)
    found: list[int] = []
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            found += [json.loads(record.value)["id"] for record in consumer.poll(timeout_ms=500)]
    return found


def orders(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("select id from orders order by id")]


def test_orders_and_events_are_the_same_whatever_dies(
    database: str, servers: str, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    dice = random.Random(11)
    kills = 0

    def write(first: int, at: Callable[[str], None]) -> None:
        service = OrderService(servers, database, topic, topic, at)
        for number in range(first, first + 6):
            service.order(number, "tea")
        service.close()

    for first in range(0, 60, 6):
        seed = dice.randrange(10**9)

        def die_sometimes(step: str, dice: random.Random = random.Random(seed)) -> None:  # noqa: B008
            if dice.random() < 0.12:
                kill_self()

        kills += Child(lambda first=first, at=die_sometimes: write(first, at)).wait() == -signal.SIGKILL  # type: ignore[misc]
    OrderService(servers, database, topic, topic).close()
    found = events(servers, topic)
    assert sorted(found) == orders(database) and len(found) == len(set(found))
    assert 0 < kills < 10


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_lost_around_the_commit_is_resolved_by_what_is_stored(
    step: str, database: str, servers: str, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")

    def cut(at: str) -> None:
        if at == step:
            service._database.close()

    service = OrderService(servers, database, topic, topic, cut)
    if step == "prepared":
        with pytest.raises(psycopg.OperationalError):
            service.order(1, "tea")
    else:
        service.order(1, "tea")
    service.close()
    again = OrderService(servers, database, topic, topic)
    again.order(2, "cake")
    again.close()
    assert events(servers, topic) == orders(database) == ([2] if step == "prepared" else [1, 2])


def test_an_order_that_is_refused_has_no_event(database: str, servers: str, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    service = OrderService(servers, database, topic, topic)
    service.order(1, "tea")
    with pytest.raises(psycopg.IntegrityError):
        service.order(1, "cake")
    service.order(2, "soup")
    service.close()
    assert events(servers, topic) == [1, 2]
