"""Three client libraries behind one small interface, so that one script runs with each of them.

A script hands over plain values and gets plain values back; errors come back as `ClientError` with Kafka's error code
where the library has one, so that scripts can say which code they expect whoever the client is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka.errors

import kafka

WAIT_S: Final = 120.0
TRANSACTION_MS: Final = 600_000
"""Longer than any test takes, on a busy machine too."""
DELIVERY_MS: Final = 60_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PRODUCER_FENCED: Final = 90


class ClientError(Exception):
    """An error of a client library, with Kafka's code (negative codes are librdkafka's own)."""

    def __init__(self, code: int, cause: BaseException) -> None:
        super().__init__(f"{code}: {cause!r}")
        self.code = code


@dataclass(frozen=True)
class Message:
    """A record as given to a producer, or as read from a partition."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    offset: int = field(default=-1, compare=False)


class TransactionalProducer(Protocol):
    """One producer with a transactional id, initialised."""

    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Write one record and wait until it is acknowledged."""

    def offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Client(Protocol):
    name: str
    codecs: Sequence[str]

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, acks: int | str = "all", codec: str = "none"
    ) -> list[int]:
        """Write the messages in order and give their offsets (-1 with acks=0)."""

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, committed: bool = False, start: int = 0
    ) -> list[Message]:
        """Read until `count` messages of a partition are there."""

    def transactional(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS
    ) -> TransactionalProducer: ...


# --- librdkafka
# ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _confluent_errors() -> Iterator[None]:
    try:
        yield
    except confluent_kafka.KafkaException as error:
        raise ClientError(error.args[0].code(), error) from error


class Confluent:
    name = "confluent-kafka"
    codecs = CODECS

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, acks: int | str = "all", codec: str = "none"
    ) -> list[int]:
        settings = {"bootstrap.servers": bootstrap, "acks": acks, "compression.type": codec, "linger.ms": 2}
        producer = confluent_kafka.Producer({**settings, "message.max.bytes": 5_000_000})
        results: list[Any] = []
        for message in messages:
            more = {"timestamp": message.timestamp_ms} if message.timestamp_ms is not None else {}
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                headers=list(message.headers),
                on_delivery=lambda error, sent: results.append((error, sent)),
                **more,
            )
        producer.flush(WAIT_S)
        for error, _ in results:
            if error is not None:
                raise ClientError(error.code(), confluent_kafka.KafkaException(error))
        return [-1 if acks == 0 else sent.offset() for _, sent in results]

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, committed: bool = False, start: int = 0
    ) -> list[Message]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "message.max.bytes": 5_000_000,
            }
        )
        found: list[Message] = []
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.2):
                    if message.error() is not None:
                        raise ClientError(message.error().code(), confluent_kafka.KafkaException(message.error()))
                    found.append(self._message(message))
        finally:
            consumer.close()
        return found

    @staticmethod
    def _message(message: Any) -> Message:
        headers = tuple((name, value) for name, value in message.headers() or [])
        return Message(
            message.value(), message.key(), message.partition(), headers, message.timestamp()[1], message.offset()
        )

    def transactional(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS
    ) -> TransactionalProducer:
        return _ConfluentTransactions(bootstrap, transactional_id, timeout_ms)


class _ConfluentTransactions:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, DELIVERY_MS),
                "linger.ms": 0,
            }
        )
        with _confluent_errors():
            self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        with _confluent_errors():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        results: list[Any] = []
        with _confluent_errors():
            self._producer.produce(
                topic, value, partition=partition, on_delivery=lambda error, _: results.append(error)
            )
        self._producer.flush(WAIT_S)
        if results and results[0] is not None:
            raise ClientError(results[0].code(), confluent_kafka.KafkaException(results[0]))

    def offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        with _confluent_errors():
            self._producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(topic, partition, offset)], consumer.consumer_group_metadata(), WAIT_S
            )
        consumer.close()

    def commit(self) -> None:
        with _confluent_errors():
            self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        with _confluent_errors():
            self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        # A producer that was fenced says so once more.
        with contextlib.suppress(confluent_kafka.KafkaException):
            self._producer.close(0)


# --- kafka-python
# -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _python_errors() -> Iterator[None]:
    try:
        yield
    except kafka.errors.KafkaError as error:
        raise ClientError(getattr(error, "errno", 0) or 0, error) from error


class KafkaPython:
    name = "kafka-python"
    codecs = ("none", "gzip")

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, acks: int | str = "all", codec: str = "none"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks,
            enable_idempotence=acks == "all",
            compression_type=None if codec == "none" else codec,
            max_request_size=5_000_000,
        )
        try:
            with _python_errors():
                sent = [
                    producer.send(
                        topic,
                        message.value,
                        message.key,
                        list(message.headers),
                        message.partition,
                        message.timestamp_ms,
                    )
                    for message in messages
                ]
                producer.flush(WAIT_S)
                return [-1 if acks == 0 else one.get(WAIT_S).offset for one in sent]
        finally:
            producer.close(timeout=WAIT_S)

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, committed: bool = False, start: int = 0
    ) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed" if committed else "read_uncommitted",
            enable_auto_commit=False,
            max_partition_fetch_bytes=5_000_000,
        )
        where = kafka.TopicPartition(topic, partition)
        found: list[Message] = []
        try:
            consumer.assign([where])
            consumer.seek(where, start)
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                with _python_errors():
                    polled = consumer.poll(200, max_records=count - len(found))
                found += [self._message(record) for records in polled.values() for record in records]
        finally:
            consumer.close()
        return found

    @staticmethod
    def _message(record: Any) -> Message:
        headers = tuple((name, value) for name, value in record.headers or ())
        return Message(record.value, record.key, record.partition, headers, record.timestamp, record.offset)

    def transactional(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS
    ) -> TransactionalProducer:
        return _PythonTransactions(bootstrap, transactional_id, timeout_ms)


class _PythonTransactions:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=DELIVERY_MS,
            request_timeout_ms=DELIVERY_MS - 1000,
        )
        with _python_errors():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _python_errors():
            self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        with _python_errors():
            sent = self._producer.send(topic, value, partition=partition)
            self._producer.flush(WAIT_S)
            sent.get(WAIT_S)

    def offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        where = {kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}
        with _python_errors():
            self._producer.send_offsets_to_transaction(where, group)

    def commit(self) -> None:
        with _python_errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _python_errors():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


# --- aiokafka
# -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _aio_errors() -> Iterator[None]:
    try:
        yield
    except aiokafka.errors.ProducerFenced as error:
        raise ClientError(PRODUCER_FENCED, error) from error
    except aiokafka.errors.KafkaError as error:
        raise ClientError(getattr(error, "errno", 0) or 0, error) from error


class AioKafka:
    name = "aiokafka"
    codecs = CODECS

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], *, acks: int | str = "all", codec: str = "none"
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=acks,
                compression_type=None if codec == "none" else codec,
                max_request_size=5_000_000,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        message.value,
                        key=message.key,
                        partition=message.partition,
                        timestamp_ms=message.timestamp_ms,
                        headers=list(message.headers),
                    )
                    for message in messages
                ]
                await producer.flush()
                done = [await one for one in sent]
                return [-1 if acks == 0 or one is None else one.offset for one in done]
            finally:
                await producer.stop()

        with _aio_errors():
            return asyncio.run(run())

    def consume(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, committed: bool = False, start: int = 0
    ) -> list[Message]:
        async def run() -> list[Message]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                isolation_level="read_committed" if committed else "read_uncommitted",
                enable_auto_commit=False,
                max_partition_fetch_bytes=5_000_000,
            )
            await consumer.start()
            found: list[Message] = []
            try:
                where = aiokafka.TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, start)
                deadline = time.monotonic() + WAIT_S
                while len(found) < count and time.monotonic() < deadline:
                    polled = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                    found += [KafkaPython._message(record) for records in polled.values() for record in records]
            finally:
                await consumer.stop()
            return found

        with _aio_errors():
            return asyncio.run(run())

    def transactional(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = TRANSACTION_MS
    ) -> TransactionalProducer:
        return _AioTransactions(bootstrap, transactional_id, timeout_ms)


class _AioTransactions:
    """The producer lives on an event loop of its own, in a thread."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> Any:
            made = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await made.start()
            return made

        self._producer: Any = self._run(start())

    def _run(self, work: Any, timeout_s: float = WAIT_S) -> Any:
        with _aio_errors():
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), self._loop).result(timeout_s + 1)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=partition))

    def offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        where = {aiokafka.TopicPartition(topic, partition): aiokafka.OffsetAndMetadata(offset, "")}
        self._run(self._producer.send_offsets_to_transaction(where, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        # A producer with an open transaction waits for its end, which a fenced one never sees.
        with contextlib.suppress(ClientError, TimeoutError):
            self._run(self._producer.stop(), timeout_s=1)
        asyncio.run_coroutine_threadsafe(self._cancel_rest(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _cancel_rest(self) -> None:
        await self._producer.client.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
