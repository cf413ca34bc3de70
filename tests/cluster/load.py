"""Clients that go on through faults: a transactional producer that knows which of its transactions are committed, and a
consumer that knows what it read where, alone or as the member of a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.cluster.clusters import NOTHING, Cluster
from tests.waiting import wait_until

LAST = b"the last one"
"""Written to a topic when everything else is."""
_CALL_S = 20
_GIVE_UP_S = 180


class TransactionalLoad:
    """Each transaction writes its number to all of the topics. Every third one is aborted on purpose."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, topics: Sequence[str], settings: Mapping[str, object] = NOTHING
    ) -> None:
        self._servers = cluster.bootstrap_servers
        self._id = transactional_id
        self._settings = settings
        self._topics = topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed: list[str] = []
        self.times_s: list[float] = []
        """When each of them was, on the monotonic clock."""
        self.errors: list[str] = []
        self.producers = 0
        """How many it needed: one that a fatal error has ended is replaced."""
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if kind is None:
            self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_GIVE_UP_S)
        assert not self._thread.is_alive(), "the producer is stuck"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            producer = self._new_producer()
            number = 0
            while not self._stopping.is_set():
                number += 1
                value = f"{self._id} {number}"
                if not self._transact(producer, value, commit=number % 3 != 0):
                    producer = self._new_producer()
        except (KafkaException, AssertionError) as error:
            self.failure = error

    def _new_producer(self) -> Producer:
        self.producers += 1
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self._id,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 0,
                "socket.timeout.ms": 5000,
                "log_level": 0,
                **self._settings,
            }
        )
        self._repeat(lambda: producer.init_transactions(_CALL_S))
        return producer

    def _transact(self, producer: Producer, value: str, *, commit: bool) -> bool:
        """Returns whether the producer can go on."""
        try:
            producer.begin_transaction()
            for topic in self._topics:
                producer.produce(topic, value.encode(), partition=0)
            if commit:
                self._repeat(lambda: producer.commit_transaction(_CALL_S))
                self.times_s.append(time.monotonic())
                self.committed.append(value)
            else:
                # What is not sent yet would be dropped, and nothing be there to be aborted. Nor may a record be without
                # an answer: librdkafka 2.16 gives its sequence number to the next one, which a leader that has the
                # first one takes for a duplicate, so that it is never written.
                producer.flush(_GIVE_UP_S)
                self._repeat(lambda: producer.abort_transaction(_CALL_S))
            return True
        except KafkaException as error:
            found: KafkaError = error.args[0]
            self.errors.append(f"{value}: {found}")
            if not found.txn_requires_abort():
                return False
        try:
            self._repeat(lambda: producer.abort_transaction(_CALL_S))
        except KafkaException as error:
            self.errors.append(f"{value}: {error.args[0]}")
            return False
        return True

    def _repeat(self, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


class SteadyReader:
    """Reads what is committed, from the beginning on. Its offsets never go back, and none is shown twice."""

    def __init__(self, cluster: Cluster, topics: Sequence[str]) -> None:
        self.topics = topics
        self.found: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
        self._last_offsets = dict.fromkeys(topics, -1)
        self._servers = cluster.bootstrap_servers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_GIVE_UP_S)

    def read_up_to_the_last(self) -> None:
        wait_until(lambda: self._failure or all(map(self._has_last, self.topics)), timeout_s=_GIVE_UP_S)
        if self._failure is not None:
            raise self._failure

    def _has_last(self, topic: str) -> bool:
        return self.found[topic].get(self._last_offsets[topic]) == LAST

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "nobody commits",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0) for topic in self.topics])
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(500, 0.2):
                    self._take(message)
        except (KafkaException, AssertionError) as error:
            self._failure = error
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        if not is_record(message):
            return
        topic, offset = message.topic(), message.offset()
        assert topic is not None
        assert offset is not None
        assert offset > self._last_offsets[topic], f"{topic} went back to {offset}"
        self.found[topic][offset] = message.value() or b""
        self._last_offsets[topic] = offset


class GroupMember:
    """The only one of its group. It commits what it has read before it reads on. If the group goes back to what is
    committed, it reads that again."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self.found: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
        self.commits = 0
        self.failure: Exception | None = None
        self._servers = cluster.bootstrap_servers
        self._group = group
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_GIVE_UP_S)

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.subscribe(list(self.found))
        try:
            while not self._stopping.is_set():
                records = [message for message in consumer.consume(500, 0.2) if is_record(message)]
                for record in records:
                    self._take(record)
                if records and self._commits(consumer):
                    self.commits += 1
        except (KafkaException, AssertionError) as error:
            self.failure = error
        finally:
            consumer.close()

    def _take(self, record: Message) -> None:
        found, offset = self.found[record.topic() or ""], record.offset()
        assert offset is not None
        before = found.setdefault(offset, record.value() or b"")
        assert before == record.value(), f"{record.topic()} has changed at {offset}"

    @staticmethod
    def _commits(consumer: Consumer) -> bool:
        """Not if the group has no coordinator just now. The next commit has all of it."""
        try:
            consumer.commit(asynchronous=False)
            return True
        except KafkaException as error:
            found = error.args[0]
            if not (found.retriable() or found.code() in (*_AWAY, *_NO_COORDINATOR)):
                raise
            return False


def is_record(message: Message) -> bool:
    """Or the news that brokers are away. Raises KafkaException at any other."""
    error = message.error()
    if error is not None and not (error.retriable() or error.code() in _AWAY):
        raise KafkaException(error)
    return error is None


_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)
_NO_COORDINATOR = (
    KafkaError._WAIT_COORD,
    KafkaError._TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
