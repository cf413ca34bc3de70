"""Records that wait to be sent, by partition: filled by any thread, emptied by the event loop.

`append` takes a lock and no more, so that sending a record costs a thread no round trip to the loop. The loop is told
only when a batch begins (it may have to be sent after `linger.ms`) and when one is full. The memory of all records that
are not acknowledged yet is bounded: `append` answers None when there is no room, and the caller decides how to wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from oncelog.client.batch_sequence import Delivery
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import BufferExhausted, IllegalState
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.record_batch_builder import Header, RecordBatchBuilder, record_size_max
from oncelog.core.ids import TopicPartition


class RecordMetadata(NamedTuple):
    """Where a record is. The offset is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class WaitingBatch:
    """A batch before its delivery: still growing, or closed."""

    __slots__ = ("builder", "deadline", "delivered", "encoded", "partition", "ready_at_s", "size_bytes")

    def __init__(self, partition: TopicPartition, linger_s: float, deadline: Deadline) -> None:
        self.partition = partition
        self.builder = RecordBatchBuilder()
        self.encoded: EncodedBatch | None = None
        """Set from the start for batches that were encoded elsewhere."""
        self.ready_at_s = time.monotonic() + linger_s
        self.deadline = deadline
        self.delivered: Future[Delivery] = Future()
        self.size_bytes = 0
        """What it takes of the buffer."""

    def encode(self, codec: int) -> EncodedBatch:
        return self.encoded if self.encoded is not None else self.builder.build(codec)


class RecordFuture:
    """The delivery of one record: wait for it with `result()` in threads, or with `await`."""

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: WaitingBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.delivered.done()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Raises KafkaError when the record was not delivered, TimeoutError when that is not known in time."""
        return self._metadata(self._batch.delivered.result(timeout_s))

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Why the record was not delivered, or None when it was."""
        return self._batch.delivered.exception(timeout_s)

    def add_done_callback(self, callback: Callable[[RecordFuture], None]) -> None:
        """Called on the client's event loop thread, or at once when the outcome is known; it must not block."""
        self._batch.delivered.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        delivery = yield from asyncio.shield(asyncio.wrap_future(self._batch.delivered)).__await__()
        return self._metadata(delivery)

    def _metadata(self, delivery: Delivery) -> RecordMetadata:
        offset = delivery.base_offset + self._index if delivery.base_offset >= 0 else -1
        stamp = delivery.log_append_time_ms if delivery.log_append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(delivery.partition.topic, delivery.partition.partition, offset, stamp)


class Accumulator:
    def __init__(self, config: ProducerConfig, wake: Callable[[float], None]) -> None:
        self._batch_bytes = config.batch_bytes
        self._buffer_bytes = config.buffer_bytes
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._wake = wake
        """Called from any thread: send ready batches in so many seconds."""
        self._room = threading.Condition()
        self._queues: dict[TopicPartition, deque[WaitingBatch]] = {}
        self._used_bytes = 0
        self._incomplete: set[WaitingBatch] = set()
        self._refusal: BaseException | None = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    # Any thread

    def append(
        self,
        partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> tuple[RecordFuture, bool] | None:
        """The record's future and whether its batch is full now; None when the buffer has no room."""
        needed = record_size_max(key, value, headers)
        with self._room:
            self._check_open()
            if self._used_bytes and self._used_bytes + needed > self._buffer_bytes:
                return None
            batch, began = self._growing_batch(partition, needed)
            index = batch.builder.append(timestamp_ms, key, value, headers)
            batch.size_bytes += needed
            self._used_bytes += needed
            full = batch.builder.size_bytes >= self._batch_bytes
            if full:
                batch.ready_at_s = 0.0
        if full:
            self._wake(0.0)
        elif began:
            self._wake(self._linger_s)
        return RecordFuture(batch, index, timestamp_ms), full

    def append_encoded(self, partition: TopicPartition, encoded: EncodedBatch) -> WaitingBatch | None:
        """Queue a whole batch; None when the buffer has no room."""
        size = encoded.size_bytes
        with self._room:
            self._check_open()
            if self._used_bytes and self._used_bytes + size > self._buffer_bytes:
                return None
            batch = self._new_batch(partition)
            batch.encoded = encoded
            batch.ready_at_s = 0.0
            batch.size_bytes = size
            self._used_bytes += size
        self._wake(0.0)
        return batch

    def wait_for_room(self, deadline: Deadline) -> None:
        """Block until something was released. Raises BufferExhausted at the deadline."""
        with self._room:
            # What was released before this call tells nobody any more.
            if self._used_bytes and not self._room.wait(deadline.remaining_ms / 1000):
                raise self.exhausted()

    def exhausted(self) -> BufferExhausted:
        return BufferExhausted(
            f"{self._used_bytes} of {self._buffer_bytes} bytes (buffer.memory) wait for acknowledgement, and none "
            "became free within max.block.ms: the brokers are slower than this producer, or not reachable"
        )

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise IllegalState(str(self._refusal))

    def _growing_batch(self, partition: TopicPartition, needed: int) -> tuple[WaitingBatch, bool]:
        queue = self._queues.get(partition)
        if queue:
            batch = queue[-1]
            if batch.encoded is None and batch.ready_at_s and batch.builder.size_bytes + needed <= self._batch_bytes:
                return batch, False
            batch.ready_at_s = 0.0
        return self._new_batch(partition), True

    def _new_batch(self, partition: TopicPartition) -> WaitingBatch:
        batch = WaitingBatch(partition, self._linger_s, Deadline(self._delivery_timeout_ms))
        self._queues.setdefault(partition, deque()).append(batch)
        self._incomplete.add(batch)
        return batch

    # The event loop

    def partitions(self) -> list[TopicPartition]:
        """Those that have batches waiting."""
        with self._room:
            return list(self._queues)

    def take_ready(self, partition: TopicPartition, now_s: float) -> WaitingBatch | None:
        """The oldest batch of a partition if it is full or has waited long enough."""
        with self._room:
            queue = self._queues.get(partition)
            if not queue or (queue[0].ready_at_s > now_s and len(queue) == 1):
                return None
            batch = queue.popleft()
            if not queue:
                del self._queues[partition]
            return batch

    def next_ready_s(self) -> float | None:
        """When the next batch has waited long enough, on the monotonic clock."""
        with self._room:
            return min((queue[0].ready_at_s for queue in self._queues.values()), default=None)

    def make_all_ready(self) -> list[WaitingBatch]:
        """End the waiting of every batch. Returns all that are not delivered yet, in flight or not."""
        with self._room:
            for queue in self._queues.values():
                for batch in queue:
                    batch.ready_at_s = 0.0
            return list(self._incomplete)

    def drain(self) -> list[WaitingBatch]:
        """Take out every batch that was not sent yet."""
        with self._room:
            batches = [batch for queue in self._queues.values() for batch in queue]
            self._queues.clear()
            return batches

    def complete(self, batch: WaitingBatch, outcome: Delivery | BaseException) -> None:
        """Release the memory of a batch and tell everyone who waits for it."""
        with self._room:
            self._incomplete.discard(batch)
            self._used_bytes -= batch.size_bytes
            self._room.notify_all()
        if isinstance(outcome, BaseException):
            batch.delivered.set_exception(outcome)
        else:
            batch.delivered.set_result(outcome)

    def close(self, reason: BaseException) -> None:
        """Refuse further records."""
        with self._room:
            self._refusal = reason
            self._room.notify_all()
