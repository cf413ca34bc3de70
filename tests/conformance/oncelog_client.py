"""Oncelog's own client behind the interface of `clients`: one more library for the same scripts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from oncelog.client import Consumer, KafkaError, Producer, TopicPartition
from tests.conformance.clients import (
    CODECS,
    DELIVERY_MS,
    TRANSACTION_MS,
    WAIT_S,
    ClientError,
    Message,
    TransactionalProducer,
)

CLOSE_TIMEOUT_MS: Final = 1_000


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise ClientError(int(error.code), error) from error


class OncelogClient:
    name = "oncelog-client"
    codecs = CODECS

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, acks: int | str = "all", codec: str = "none"
    ) -> list[int]:
        config = {"bootstrap.servers": bootstrap, "acks": str(acks), "compression.type": codec}
        with Producer({**config, "max.request.size": 5_000_000}) as producer, _errors():
            sent = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    partition=message.partition,
                    headers=message.headers,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush()
            return [one.result(WAIT_S).offset for one in sent]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, committed: bool = False, start: int = 0
    ) -> list[Message]:
        isolation = "read_committed" if committed else "read_uncommitted"
        found: list[Message] = []
        where = TopicPartition(topic, partition)
        with Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation}) as consumer, _errors():
            consumer.assign([where])
            consumer.seek(where, start)
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                for record in consumer.poll(200, count - len(found)):
                    headers = tuple((name, value or b"") for name, value in record.headers)
                    found.append(
                        Message(record.value, record.key, record.partition, headers, record.timestamp_ms, record.offset)
                    )
        return found

    def transactional(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS
    ) -> TransactionalProducer:
        return _Transactions(bootstrap, transactional_id, timeout_ms)


class _Transactions:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "delivery.timeout.ms": DELIVERY_MS,
                "request.timeout.ms": DELIVERY_MS - 1000,
                "linger.ms": 0,
            }
        )
        with _errors():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _errors():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        with _errors():
            self._producer.send(topic, value, partition=partition).result(WAIT_S)

    def offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        with _errors():
            self._producer.send_offsets_to_transaction({TopicPartition(topic, partition): offset}, group)

    def commit(self) -> None:
        with _errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _errors():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(CLOSE_TIMEOUT_MS)
