"""What the tests ask of a broker, through confluent-kafka: a client that is not ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)

from oncelog.client import Admin
from tests.waiting import wait_until

QUIET = {"log_level": 0}
PATIENCE_S = 240
"""Nothing here takes long, unless the machine has much else to do."""


class Seen(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None


class Kafka:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Settings with underscores for dots: `cleanup_policy="compact"`."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        wanted = NewTopic(topic, partitions, 1, config=settings)
        for future in self._admin.create_topics([wanted]).values():
            future.result(PATIENCE_S)
        self._await_partitions(topic, partitions)
        return topic

    def grow(self, topic: str, partitions: int) -> None:
        for future in self._admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(PATIENCE_S)
        self._await_partitions(topic, partitions)

    def _await_partitions(self, topic: str, partitions: int) -> None:
        """Apache Kafka's controller answers a change before its broker knows of it."""

        def is_led() -> bool:
            found = self._admin.list_topics(topic, PATIENCE_S).topics[topic].partitions
            return len(found) == partitions and all(part.error is None for part in found.values())

        wait_until(is_led)

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(PATIENCE_S)

    def delete_group(self, group: str) -> None:
        for future in self._admin.delete_consumer_groups([group]).values():
            future.result(PATIENCE_S)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        for future in self._admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(PATIENCE_S)

    def send(self, topic: str, records: Iterable[Any], **settings: Any) -> None:
        """Records are values, or (key, value) pairs, or dicts for `produce`."""
        producer = Producer({"bootstrap.servers": self.servers, **QUIET})
        for record in records:
            producer.produce(topic, **_produce_arguments(record), **settings)
        assert producer.flush(PATIENCE_S) == 0

    def send_in_transaction(self, topic: str, values: Sequence[bytes], *, commit: bool, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": f"test-{topic}", **QUIET})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=value, partition=partition)
        producer.flush(30)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)

    def read(self, topic: str, *, committed: bool = True) -> list[Seen]:
        """Everything in a topic up to its end now, in order of partition and offset."""
        self._await_decided()
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                # The end of a partition is told when a fetch comes back with nothing: by default half a second later.
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                **QUIET,
            }
        )
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            return _drain(consumer, len(partitions))
        finally:
            consumer.close()

    def _await_decided(self) -> None:
        """The end of a transaction is answered when it is decided, and seen by readers a moment later."""
        with Admin({"bootstrap.servers": self.servers}) as admin:
            wait_until(lambda: not admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]))

    def values(self, topic: str, *, committed: bool = True) -> list[bytes | None]:
        return sorted((seen.value for seen in self.read(topic, committed=committed)), key=lambda v: v or b"")

    def invisible(self, topic: str) -> set[tuple[int, int]]:
        """Partition and offset of each record that is aborted, or whose transaction is open."""
        visible, in_log = (
            {(seen.partition, seen.offset) for seen in self.read(topic, committed=committed)}
            for committed in (True, False)
        )
        return in_log - visible

    def group_offsets(self, group: str, topic: str, partitions: int) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, **QUIET})
        try:
            asked = [TopicPartition(topic, number) for number in range(partitions)]
            return [answer.offset for answer in consumer.committed(asked, PATIENCE_S)]
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, **QUIET})
        try:
            wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
            consumer.commit(offsets=wanted, asynchronous=False)
        finally:
            consumer.close()


def _produce_arguments(record: Any) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    if isinstance(record, tuple):
        return {"key": record[0], "value": record[1]}
    return {"value": record}


def _drain(consumer: Consumer, partitions: int) -> list[Seen]:
    seen: list[Seen] = []
    ended: set[int] = set()
    deadline_s = time.monotonic() + PATIENCE_S
    trouble: list[str] = []
    while len(ended) < partitions:
        assert time.monotonic() < deadline_s, f"the topic did not end within {PATIENCE_S} s: {trouble}"
        message = consumer.poll(1)
        if message is None:
            continue
        if (error := message.error()) is None:
            seen.append(Seen(message.partition(), message.offset(), message.key(), message.value(), message.headers()))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            trouble.append(str(error))  # it goes on by itself, if it can
    return sorted(seen, key=lambda one: (one.partition, one.offset))
