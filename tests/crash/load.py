"""Producers that go on while their broker is killed, and readers that check what it kept."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

PARTITIONS = 3
KEYS = 7
_DEADLINE_S = 180
_BACKLOG_RECORDS_MAX = 2_000
"""That are sent and not answered. librdkafka would take fifty times as many before it refuses more."""
QUICK_RECONNECT = {
    "reconnect.backoff.max.ms": 200,
    # With its default, to start over from the bootstrap servers, librdkafka 2.16 keeps a group's coordinator in mind
    # that it has thrown away itself, and hangs in send_offsets_to_transaction.
    "metadata.recovery.strategy": "none",
}


class _NumberedLoad:
    """Sends the next numbers round robin, as many at a time as asked for. `failed` has what the broker refused."""

    def __init__(self, bootstrap: str, topic: str, batch_records: int) -> None:
        self.topic = topic
        self.failed: list[str] = []
        self._next = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": batch_records,
                "message.timeout.ms": _DEADLINE_S * 1000,
                **QUICK_RECONNECT,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        """Nothing, if the broker is behind: on a busy machine it is away for longer than it works."""
        self._producer.poll(0)
        if len(self._producer) > _BACKLOG_RECORDS_MAX:
            return
        for number in range(self._next, self._next + count):
            self._next += 1
            key, value = self._record(number)
            self._producer.produce(self.topic, value, key, partition=number % PARTITIONS, on_delivery=self._note)
            self._producer.poll(0)

    def _record(self, number: int) -> tuple[str | None, str]:
        """Key and value."""
        raise NotImplementedError

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._acknowledge(message.partition() or 0, (message.value() or b"").decode())
        else:
            self.failed.append(str(error))

    def _acknowledge(self, partition: int, value: str) -> None:
        raise NotImplementedError

    def waits_for_answers(self) -> bool:
        return bool(self._producer.flush(0.1))

    def finish(self) -> None:
        assert self._producer.flush(_DEADLINE_S) == 0, "records were neither acknowledged nor refused"


class IdempotentLoad(_NumberedLoad):
    """`acknowledged` holds the numbers the broker confirmed, by partition and in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic, batch_records=50)
        self.acknowledged: dict[int, list[int]] = defaultdict(list)

    def _record(self, number: int) -> tuple[str | None, str]:
        return None, str(number)

    def _acknowledge(self, partition: int, value: str) -> None:
        self.acknowledged[partition].append(int(value))


class TransactionalLoad:
    """Transactions of one record on each partition; every third is aborted. A value is `id:number:partition`."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str) -> None:
        self.topic = topic
        self.transactional_id = transactional_id
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self._next = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "transaction.timeout.ms": 600_000,  # a restart may take long on a busy machine
                **QUICK_RECONNECT,
                "log_level": 0,
            }
        )
        self._until_done(lambda: self._producer.init_transactions(10))

    def run(self, count: int) -> None:
        for _ in range(count):
            number = self._next
            self._next += 1
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                value = f"{self.transactional_id}:{number}:{partition}"
                self._producer.produce(self.topic, value, partition=partition)
            if number % 3 == 2:
                # Otherwise librdkafka throws the records away, and there is nothing to abort.
                assert self._producer.flush(_DEADLINE_S) == 0
                self._until_done(lambda: self._producer.abort_transaction(10))
                self.aborted.append(number)
            else:
                self._until_done(lambda: self._producer.commit_transaction(10))
                self.committed.append(number)

    def _until_done(self, call: Any) -> None:
        """librdkafka wants a call repeated when it says so; its own clock decides how long one try takes."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise


class KeyedLoad(_NumberedLoad):
    """Ever greater numbers under few keys; `acknowledged` has the last confirmed one, by partition and key."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic, batch_records=20)
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)

    def _record(self, number: int) -> tuple[str | None, str]:
        key = number // PARTITIONS % KEYS
        return str(key), f"{key}:{number}"

    def _acknowledge(self, partition: int, value: str) -> None:
        key, number = value.split(":")
        self.acknowledged[partition][int(key)] = int(number)


def consume(
    bootstrap: str, topic: str, isolation: str = "read_committed", settings: Mapping[str, object] = MappingProxyType({})
) -> Iterator[Message]:
    """The records that a new reader gets, up to the end of every partition. Where records are deleted under it, it
    goes on at the start of the log."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "crash-check",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended: set[int] = set()
        deadline_s = time.monotonic() + _DEADLINE_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline_s, "a reader did not get to the end of every partition"
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, list[str]]:
    """Everything a new reader gets, by partition, in order."""
    return by_partition(consume(bootstrap, topic, isolation))


def by_partition(messages: Iterable[Message], starts: Mapping[int, int] = MappingProxyType({})) -> dict[int, list[str]]:
    """The values, by partition, in order; without those below the offset where their partition starts, if that is
    given: then the first one must be there."""
    values: dict[int, list[str]] = defaultdict(list)
    for message in messages:
        partition, offset = message.partition(), message.offset()
        if offset >= starts.get(partition, 0):
            is_first = partition in starts and partition not in values
            assert not is_first or offset == starts[partition], "acknowledged records were lost, the oldest ones"
            values[partition].append(message.value().decode())
    return values


def read_retained(bootstrap: str, topic: str) -> dict[int, list[str]]:
    """As `read`, of a log whose oldest records may be deleted meanwhile.

    A reader that is overtaken by retention has read records that are gone now, and has missed others that are gone as
    well. Only what the log still holds after the reading tells about losses: all of it was there when the reader came.
    """
    messages = list(consume(bootstrap, topic))
    return by_partition(messages, log_starts(bootstrap, topic))


def log_starts(bootstrap: str, topic: str) -> dict[int, int]:
    """By partition: the offset at which its log starts now."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = {TopicPartition(topic, partition): OffsetSpec.earliest() for partition in range(PARTITIONS)}
    return {place.partition: found.result(_DEADLINE_S).offset for place, found in admin.list_offsets(wanted).items()}


def check_idempotent(load: IdempotentLoad, values: dict[int, list[str]]) -> None:
    assert not load.failed, Counter(load.failed)
    for partition, numbers in load.acknowledged.items():
        kept = [int(value) for value in values[partition]]
        assert kept == sorted(kept), "order was not kept"
        assert not [number for number, count in Counter(kept).items() if count > 1], "records were doubled"
        assert set(numbers) <= set(kept), "acknowledged records were lost"


def check_transactional(load: TransactionalLoad, values: dict[int, list[str]]) -> None:
    seen = {partition: [int(value.split(":")[1]) for value in values[partition]] for partition in range(PARTITIONS)}
    assert all(numbers == seen[0] for numbers in seen.values()), "the partitions of a transaction disagree"
    assert seen[0] == load.committed, "what is read is not what was committed"


def check_keyed(load: KeyedLoad, values: dict[int, list[str]]) -> None:
    assert not load.failed, Counter(load.failed)
    for partition, newest in load.acknowledged.items():
        kept: dict[int, list[int]] = defaultdict(list)
        for value in values[partition]:
            key, number = value.split(":")
            kept[int(key)].append(int(number))
        for key, number in newest.items():
            assert kept[key] == sorted(set(kept[key])), "order was not kept, or records were doubled"
            assert kept[key][-1] >= number, "the newest record of a key was lost"


def check_retained(load: IdempotentLoad, values: dict[int, list[str]]) -> None:
    """The oldest may be gone; from the first that is left on, all are there. `values` come from `read_retained`."""
    assert not load.failed, Counter(load.failed)
    for partition, numbers in load.acknowledged.items():
        kept = [int(value) for value in values[partition]]
        assert kept, "all records were lost"
        assert kept == sorted(set(kept)), "order was not kept, or records were doubled"
        assert {number for number in numbers if number >= kept[0]} <= set(kept), "acknowledged records were lost"
        assert kept[-1] >= numbers[-1], "the newest records were lost"
