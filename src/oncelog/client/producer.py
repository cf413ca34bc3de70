"""Producers: `Producer` for threads, `AsyncProducer` for asyncio.

    with Producer({"bootstrap.servers": "127.0.0.1:9092", "transactional.id": "orders"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"value", key=b"key")

Both take Kafka's settings by Kafka's names and are idempotent by default. Sending is asynchronous: `send` returns at
once with a future, or waits (up to `max.block.ms`) when the buffer is full; `flush` and `commit_transaction` wait for
deliveries.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self

from oncelog.client.accumulator import RecordFuture, WaitingBatch
from oncelog.client.arguments import check_topic, whole
from oncelog.client.batch_sequence import Delivery
from oncelog.client.blocking import Blocking, blocking, delegating
from oncelog.client.connections import open_cluster
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import ErrorCode, KafkaError
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.producer_core import ProducerCore
from oncelog.client.record_batch_builder import Header, record_size_max
from oncelog.client.transaction_state import State
from oncelog.core.ids import TopicPartition

Serializer = Callable[[str, Any], bytes | None]
"""Takes the topic and the object."""
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
CLOSE_TIMEOUT_MS: Final = 30_000


def _default(what: str) -> Serializer:
    """Without a serializer: bytes as they are, text as UTF-8."""
    advice = "" if what == "header" else f", or set a {what}_serializer"

    def to_bytes(topic: str, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"a {what} of a record for {topic} is a {type(value).__name__}: give bytes or text{advice}")

    return to_bytes


_header_bytes: Final = _default("header")


def _serializing(what: str, serializer: Serializer | None) -> Serializer:
    if serializer is None:
        return _default(what)

    def serialize(topic: str, value: Any) -> bytes | None:
        data = serializer(topic, value)
        if data is not None and not isinstance(data, bytes):
            # A batch with anything else in it could never be sent.
            raise TypeError(f"the {what}_serializer has made a {type(data).__name__} for {topic}: it must make bytes")
        return data

    return serialize


class _RecordAppender:
    """What both producers do on the caller's side: serialise, choose a partition, append."""

    def __init__(self, core: ProducerCore, key_serializer: Serializer | None, value_serializer: Serializer | None):
        self.core = core
        self.config = core.config
        self._key_serializer = _serializing("key", key_serializer)
        self._value_serializer = _serializing("value", value_serializer)

    def prepare(
        self, topic: str, value: Any, key: Any, headers: Headers | None, timestamp_ms: int | None
    ) -> tuple[bytes | None, bytes | None, Sequence[Header], int]:
        """Whatever is wrong with the record is raised here: in a batch it would stop those of others too."""
        if self.config.transactional_id is not None:
            self.core.state.check_accepting()
        raw_key, raw_value = self._key_serializer(topic, key), self._value_serializer(topic, value)
        raw_headers = _headers(topic, headers) if headers else ()
        size = record_size_max(raw_key, raw_value, raw_headers)
        if size > self.config.record_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record for {topic} takes up to {size} bytes, max.request.size is {self.config.record_bytes_max}",
            )
        stamp = (
            int(time.time() * 1000)
            if timestamp_ms is None
            else whole("timestamp_ms", timestamp_ms, "give whole milliseconds, such as int(time.time() * 1000)")
        )
        if not -(2**63) <= stamp < 2**63:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, f"a record for {topic} has the timestamp {stamp}: it must fit 64 bits"
            )
        return raw_key, raw_value, raw_headers, stamp

    def known_partition_count(self, topic: str) -> int:
        """0 when a broker must be asked."""
        known = self.core.cluster.topics.get(topic)
        if known is None:
            check_topic(topic)
            return 0
        return len(known.partitions)

    def target(self, topic: str, key: bytes | None, partition: int | None, count: int) -> TopicPartition:
        if partition is None:
            return TopicPartition(topic, self.core.partitioner.partition(topic, key, count))
        return TopicPartition(topic, self.checked(topic, partition, count))

    def checked(self, topic: str, partition: int, count: int) -> int:
        """A partition that the caller has chosen."""
        number = whole("partition", partition, "give a whole number")
        if not 0 <= number < count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has {count} partitions, there is no {number}"
            )
        return number

    def append(
        self, target: TopicPartition, key: bytes | None, value: bytes | None, headers: Sequence[Header], stamp: int
    ) -> RecordFuture | None:
        appended = self.core.sender.accumulator.append(target, stamp, key, value, headers)
        if appended is None:
            return None
        future, full = appended
        if full:
            self.core.partitioner.rotate(target.topic, target.partition, self.known_partition_count(target.topic))
        return future

    def encode_columns(
        self, topic: str, count: int, partition: int | None, value: Any, columns: Mapping[str, Any]
    ) -> list[tuple[TopicPartition, list[EncodedBatch]]]:
        from oncelog.client.columns import encode_by_partition

        if self.config.transactional_id is not None:
            self.core.state.check_accepting()
        if partition is not None:
            partition = self.checked(topic, partition, count)
        given = {name: column for name, column in columns.items() if column is not None}
        given.setdefault("timestamp_ms", int(time.time() * 1000))
        return [
            (TopicPartition(topic, number), batches)
            for number, batches in encode_by_partition(
                value,
                count,
                partition=partition,
                sticky=lambda: self.core.partitioner.partition(topic, None, count),
                codec=self.config.codec,
                **given,
            )
        ]


def _headers(topic: str, headers: Headers) -> list[Header]:
    try:
        pairs = [(name, content) for name, content in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise TypeError(f"headers of a record for {topic}: give a dict, or pairs of name and value") from None
    return [(_header_name(topic, name), _header_bytes(topic, content)) for name, content in pairs]


def _header_name(topic: str, name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"a header of a record for {topic} is named {name!r}: names are text")
    return name.encode()


def _check_callback(on_delivery: Any) -> None:
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery is a {type(on_delivery).__name__}: give a function")


class Producer(Blocking):
    """A producer for threads: every call may be made from any of them.

    Settings have Kafka's names, and it is idempotent by default. Sending is asynchronous: `send` returns at once with a
    future, or waits (up to `max.block.ms`) when the buffer is full; `flush` and `commit_transaction` wait for
    deliveries.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ProducerConfig,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        settings = ProducerConfig.parse(config)
        super().__init__(settings.client)
        self.settings = settings
        self.core = self._call(ProducerCore, self.cluster, settings)
        self._appender = _RecordAppender(self.core, key_serializer, value_serializer)
        self._closed = False

    @property
    def state(self) -> State:
        """The state of the transactions; meaningless without a transactional id."""
        return self.core.state.current

    @property
    def transaction_version(self) -> int:
        return self.core.transactions.client.transaction_version

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[RecordFuture], None] | None = None,
    ) -> RecordFuture:
        """Queue a record. Raises KafkaError, BufferExhausted after `max.block.ms`, or what the transaction is in."""
        _check_callback(on_delivery)
        if os.getpid() != self._pid:
            self._check_process()
        appender = self._appender
        raw_key, raw_value, raw_headers, stamp = appender.prepare(topic, value, key, headers, timestamp_ms)
        count = appender.known_partition_count(topic)
        deadline = None
        if not count:
            deadline = Deadline(self.settings.max_block_ms)
            count = self._run(self.cluster.partition_count(topic, deadline))
        while True:
            target = appender.target(topic, raw_key, partition, count)
            future = appender.append(target, raw_key, raw_value, raw_headers, stamp)
            if future is not None:
                break
            deadline = deadline or Deadline(self.settings.max_block_ms)
            self.core.sender.accumulator.wait_for_room(deadline)
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def send_columns(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: Any = None,
        partition: int | None = None,
        on_delivery: Callable[[Future[Delivery]], None] | None = None,
    ) -> list[Future[Delivery]]:
        """Queue the rows of Arrow columns, partitioned by key. One future per batch. Needs the extra `client`.

        If it raises, some batches may be queued: `on_delivery` is called for these too.
        """
        _check_callback(on_delivery)
        import oncelog.client.columns  # noqa: F401  # before the topic is asked for, which may create it

        self._check_process()
        deadline = Deadline(self.settings.max_block_ms)
        count = self._appender.known_partition_count(topic) or self._run(self.cluster.partition_count(topic, deadline))
        columns = {"key": key, "headers": headers, "timestamp_ms": timestamp_ms}
        futures = []
        for target, batches in self._appender.encode_columns(topic, count, partition, value, columns):
            for batch in batches:
                future = self._append_encoded(target, batch).delivered
                if on_delivery is not None:
                    future.add_done_callback(on_delivery)
                futures.append(future)
        return futures

    def _append_encoded(self, target: TopicPartition, batch: EncodedBatch) -> WaitingBatch:
        deadline = Deadline(self.settings.max_block_ms)
        while (waiting := self.core.sender.accumulator.append_encoded(target, batch)) is None:
            self.core.sender.accumulator.wait_for_room(deadline)
        return waiting

    flush = blocking(ProducerCore.flush)
    init_transactions = blocking(ProducerCore.init_transactions)
    begin_transaction = blocking(ProducerCore.begin_transaction)
    commit_transaction = blocking(ProducerCore.commit_transaction)
    abort_transaction = blocking(ProducerCore.abort_transaction)
    prepare = blocking(ProducerCore.prepare)
    complete = blocking(ProducerCore.complete)

    send_offsets_to_transaction = blocking(ProducerCore.send_offsets_to_transaction)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin; commit at the end of the block, abort when it raises or the commit fails.

        A block that raises leaves a prepared transaction as it is: the other side may have decided for it.
        """
        self.begin_transaction()
        try:
            yield self
            self._run(self.core.commit_at_end())
        except BaseException:
            self._run(self.core.abort_if_possible())
            raise

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is waiting, abort an open transaction, close the connections. Bounded by the timeout."""
        if not self._closed and self._is_at_home():
            self._closed = True
            self._run(self.core.close(timeout_ms))


def _check_on_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("make an AsyncProducer in a coroutine: it works on the event loop that runs there") from None


class AsyncProducer:
    """The producer for asyncio programs; make and use it on one event loop."""

    def __init__(
        self,
        config: Mapping[str, Any] | ProducerConfig,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        _check_on_loop()
        self.settings = ProducerConfig.parse(config)
        self.cluster = open_cluster(self.settings.client)
        self.core = ProducerCore(self.cluster, self.settings)
        self._appender = _RecordAppender(self.core, key_serializer, value_serializer)
        self._room = asyncio.Event()
        self.core.sender.on_room = self._room.set

    @property
    def state(self) -> State:
        return self.core.state.current

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Queue a record; await the result for its delivery. Waits only for metadata or room."""
        appender = self._appender
        raw_key, raw_value, raw_headers, stamp = appender.prepare(topic, value, key, headers, timestamp_ms)
        deadline = Deadline(self.settings.max_block_ms)
        count = appender.known_partition_count(topic) or await self.cluster.partition_count(topic, deadline)
        while True:
            target = appender.target(topic, raw_key, partition, count)
            future = appender.append(target, raw_key, raw_value, raw_headers, stamp)
            if future is not None:
                return future
            await self._wait_for_room(deadline)

    async def _wait_for_room(self, deadline: Deadline) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(deadline.remaining_ms / 1000):
                await self._room.wait()
        except TimeoutError:
            raise self.core.sender.accumulator.exhausted() from None

    flush = delegating(ProducerCore.flush)
    init_transactions = delegating(ProducerCore.init_transactions)
    begin_transaction = delegating(ProducerCore.begin_transaction)
    send_offsets_to_transaction = delegating(ProducerCore.send_offsets_to_transaction)
    commit_transaction = delegating(ProducerCore.commit_transaction)
    abort_transaction = delegating(ProducerCore.abort_transaction)
    prepare = delegating(ProducerCore.prepare)
    complete = delegating(ProducerCore.complete)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begin; commit at the end of the block, abort when it raises or the commit fails.

        A block that raises leaves a prepared transaction as it is: the other side may have decided for it.
        """
        await self.begin_transaction()
        try:
            yield self
            await self.core.commit_at_end()
        except BaseException:
            await self.core.abort_if_possible()
            raise

    async def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Deliver what is waiting, abort an open transaction, close the connections. Bounded by the timeout."""
        await self.core.close(timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
