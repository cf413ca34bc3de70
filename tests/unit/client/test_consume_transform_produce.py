"""Members of a group that read, write and commit in transactions while the group is turned over: each record once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.client import AbortableError, Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from tests.unit.client.client_factory import drain

COUNT = 1600
PARTITIONS = 4
WORKERS = 3


class Worker(threading.Thread):
    """Copies one topic to another. Sometimes it is slow, so that it is expelled in the middle of a transaction."""

    def __init__(self, number: int, settings: dict[str, Any], source: str, target: str) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._draw = random.Random(number)
        self._consumer = Consumer(settings)
        self._producer = Producer(
            {"bootstrap.servers": settings["bootstrap.servers"], "transactional.id": f"{target}-{number}"}
        )
        self._source, self._target = source, target

    def run(self) -> None:
        try:
            with self._consumer as consumer, self._producer as producer:
                producer.init_transactions()
                consumer.subscribe([self._source])
                while not self.ended.is_set():
                    self._copy(consumer, producer)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.failure = error

    def _copy(self, consumer: Consumer, producer: Producer) -> None:
        records = consumer.poll(50)
        if not records:
            return
        producer.begin_transaction()
        try:
            for record in records:
                producer.send(self._target, record.value, partition=0)
            if self._draw.random() < 0.3:
                time.sleep(0.15)
            read = {record.topic_partition: record.offset + 1 for record in records}
            producer.send_offsets_to_transaction(read, consumer.group_metadata())
            producer.commit_transaction()
        except AbortableError:
            producer.abort_transaction()
            consumer.seek_to_committed()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_each_record_is_copied_once_while_members_are_expelled(
    module_admin: Admin, servers: str, unique: Callable[[str], str], strategy: str
) -> None:
    source, target, group = unique("in"), unique("out"), unique("group")
    module_admin.create_topics([NewTopic(source, PARTITIONS, 1), NewTopic(target, 1, 1)])
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in range(COUNT):
            producer.send(source, str(number), partition=number % PARTITIONS)
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 20,
        "max.poll.records": 20,
        "retry.backoff.ms": 5,
        "retry.backoff.max.ms": 20,
    }
    workers = [Worker(number, settings, source, target) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    expel_until_done(module_admin, group, workers)
    reader = Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"})
    with reader:
        place = TopicPartition(target, 0)
        reader.assign([place])
        reader.seek(place, 0)
        copies = Counter(int(record.value) for record in drain(reader, COUNT))
        copies.update(int(record.value) for record in reader.poll(300))
    assert [worker.failure for worker in workers] == [None] * WORKERS
    assert copies == Counter(range(COUNT))


def expel_until_done(admin: Admin, group: str, workers: list[Worker]) -> None:
    draw = random.Random(0)
    deadline = time.monotonic() + 120
    try:
        while sum(entry.offset for entry in admin.group_offsets(group).values()) < COUNT:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            members = admin.describe_groups([group])[group].members
            if members and draw.random() < 0.3:
                try:
                    admin.remove_members(group, [draw.choice(members).member_id])
                except KafkaError:
                    continue  # it was gone already
    finally:
        for worker in workers:
            worker.ended.set()
        for worker in workers:
            worker.join(120)
