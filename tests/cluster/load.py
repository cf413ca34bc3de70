"""A transactional producer that goes on through faults, and knows which of its transactions are committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.cluster.clusters import Cluster

_CALL_S = 20
_GIVE_UP_S = 180


class TransactionalLoad:
    """Each transaction writes its number to all of the topics. Every third one is aborted on purpose."""

    def __init__(self, cluster: Cluster, transactional_id: str, topics: Sequence[str]) -> None:
        self._servers = cluster.bootstrap_servers
        self._id = transactional_id
        self._topics = topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed: list[str] = []
        self.errors: list[str] = []
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_GIVE_UP_S)
        assert not self._thread.is_alive(), "the producer is stuck"
        if kind is None and self.failure is not None:
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
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self._id,
                "transaction.timeout.ms": 30_000,
                "linger.ms": 0,
                "socket.timeout.ms": 5000,
                "log_level": 0,
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
                self.committed.append(value)
            else:
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
