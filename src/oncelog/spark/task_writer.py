"""Writes a task's share of a micro-batch under the driver's producer id and epoch."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from oncelog.client.classification import Step, transaction_error
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import AbortableError, KafkaError, TimedOut
from oncelog.client.partition_stream import IN_FLIGHT_MAX, Delivery, Mode, PartitionStream
from oncelog.client.produce_channel import PRODUCE_VERSION_BEFORE_TV2, ProduceChannel
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.spark.worker_client import WorkerClient

DELIVERY_TIMEOUT_MS = 120_000
"""Kafka's default of `delivery.timeout.ms`. A batch that is not acknowledged by then fails the task."""
IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
"""What one task holds encoded and unacknowledged; beyond it the task waits, whatever the size of its share."""
SENT_TOGETHER_BYTES = 512 * 1024
"""Batches are handed to the event loop in such portions: small ones of many partitions share a request there."""


class PartitionTotal(NamedTuple):
    partition: TopicPartition
    records: int
    size_bytes: int
    first_offset: int


class _Target:
    """One output partition of this task, with the deliveries still awaited, oldest first."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.awaited: deque[tuple[Future[Delivery], int]] = deque()
        self.records = 0
        self.size_bytes = 0
        self.first_offset = -1


class _Unsent(NamedTuple):
    target: _Target
    batch: EncodedBatch
    delivered: Future[Delivery]


class TaskWriter:
    """Use as a context: leaving it gives up what is not acknowledged. `finish` waits for all of it."""

    def __init__(
        self,
        client: WorkerClient,
        *,
        identity: ProducerIdAndEpoch,
        transactional_id: str | None,
        transaction_version: int,
    ) -> None:
        self._client = client
        self._identity = identity
        self._transactional_id = transactional_id
        self._transaction_version = transaction_version
        self._channel: ProduceChannel | None = None
        self._targets: dict[TopicPartition, _Target] = {}
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._unsent: list[_Unsent] = []
        self._unsent_bytes = 0
        self._in_flight_bytes = 0
        self._oldest: deque[_Target] = deque()
        """For each batch its target, in the order in which they were written."""

    def write(self, partition: TopicPartition, batch: EncodedBatch) -> None:
        """Send a batch behind those already written to this partition. No other task may write to it."""
        target = self._targets.setdefault(partition, _Target(partition))
        while len(target.awaited) >= IN_FLIGHT_MAX:
            self._await_oldest(target)
        while self._in_flight_bytes > IN_FLIGHT_BYTES_MAX:
            self._await_oldest(self._oldest.popleft())
        delivered: Future[Delivery] = Future()
        self._unsent.append(_Unsent(target, batch, delivered))
        self._unsent_bytes += batch.size_bytes
        self._oldest.append(target)
        target.awaited.append((delivered, batch.size_bytes))
        target.records += batch.records_count
        target.size_bytes += batch.size_bytes
        self._in_flight_bytes += batch.size_bytes
        if self._unsent_bytes >= SENT_TOGETHER_BYTES:
            self._send()

    def finish(self) -> list[PartitionTotal]:
        """Wait until everything is acknowledged. Raises AbortableError or FatalError for the first that is not."""
        for target in self._targets.values():
            while target.awaited:
                self._await_oldest(target)
        return [
            PartitionTotal(partition, target.records, target.size_bytes, target.first_offset)
            for partition, target in sorted(self._targets.items())
        ]

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.run(_close(self._streams.values()))

    def _send(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        self._client.run(self._start(unsent))

    async def _start(self, unsent: list[_Unsent]) -> None:
        new = {one.target.partition for one in unsent} - self._streams.keys()
        if new:
            await self._open(sorted(new))
        deadline = Deadline(DELIVERY_TIMEOUT_MS)
        for target, batch, delivered in unsent:
            appended = self._streams[target.partition].append(batch, deadline)
            appended.add_done_callback(functools.partial(_hand_over, delivered))

    async def _open(self, partitions: Collection[TopicPartition]) -> None:
        if self._channel is None:
            before_tv2 = self._transactional_id is not None and self._transaction_version < 2
            self._channel = ProduceChannel(
                request_timeout_ms=self._client.config.request_timeout_ms,
                transactional_id=self._transactional_id,
                version_max=PRODUCE_VERSION_BEFORE_TV2 if before_tv2 else None,
            )
        if self._transactional_id is not None:
            # Over transaction version 2 this sends nothing: the broker adds partitions by itself.
            await self._conversation().add_partitions(partitions)
        for partition in partitions:
            self._streams[partition] = PartitionStream(
                self._client.cluster, self._channel, partition, self._identity, mode=Mode.GIVEN
            )

    def _conversation(self) -> AsyncTransactionClient:
        conversation = AsyncTransactionClient(self._client.cluster)
        conversation.transactional_id = self._transactional_id or ""
        conversation.identity = self._identity
        conversation.transaction_version = self._transaction_version
        return conversation

    def _await_oldest(self, target: _Target) -> None:
        if not target.awaited:
            return
        if self._unsent:
            self._send()
        future, size_bytes = target.awaited.popleft()
        self._in_flight_bytes -= size_bytes
        try:
            delivery = future.result()
        except KafkaError as error:
            raise self._explain(target.partition, error) from error
        if target.first_offset < 0:
            target.first_offset = delivery.base_offset

    def _explain(self, partition: TopicPartition, error: KafkaError) -> KafkaError:
        if self._transactional_id is None:
            return error
        if isinstance(error, TimedOut):
            return AbortableError(error.code, f"{partition}: {error.message}")
        return transaction_error(Step.PRODUCE, error.code, f"{partition}: {error.message}")


def _hand_over(delivered: Future[Delivery], done: asyncio.Future[Delivery]) -> None:
    if done.cancelled():
        delivered.set_exception(TimedOut("the task has ended"))
    elif (error := done.exception()) is not None:
        delivered.set_exception(error)
    else:
        delivered.set_result(done.result())


async def _close(streams: Iterable[PartitionStream]) -> None:
    for stream in streams:
        stream.close(TimedOut("the task has ended"))
