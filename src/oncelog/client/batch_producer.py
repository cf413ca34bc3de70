"""Producing encoded batches in a transaction of somebody else, who initialises and ends it (`transaction`).

No two workers may write to the same partition: its sequence numbers are one series, which begins at 0 in each epoch.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Final, NamedTuple

from oncelog.client.batch_sequence import IN_FLIGHT_MAX, Delivery, Mode
from oncelog.client.blocking import Blocking
from oncelog.client.classification import produce_error
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch, split_batches
from oncelog.client.errors import KafkaError, TimedOut
from oncelog.client.partition_stream import PartitionStream
from oncelog.client.produce_channel import PRODUCE_VERSION_BEFORE_TV2, ProduceChannel
from oncelog.client.producer_config import PRODUCER_TABLE
from oncelog.client.shared_transaction import SharedTransaction
from oncelog.client.transaction import AsyncTransactionClient
from oncelog.core.ids import TopicPartition
from oncelog.protocol.primitives import Readable

DELIVERY_TIMEOUT_MS: Final = PRODUCER_TABLE.defaults.integer("delivery.timeout.ms")
"""A batch that is not acknowledged by then is given up."""
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
"""What one producer holds encoded and unacknowledged; beyond it `write` waits."""
SENT_TOGETHER_BYTES: Final = 512 * 1024
"""Batches are handed to the event loop in such portions: small ones of many partitions share a request there."""


class ProduceSummary(NamedTuple):
    """What a `BatchProducer` has written to one partition. The offset is -1 when nothing was written."""

    partition: TopicPartition
    batches: int
    records: int
    size_bytes: int
    first_offset: int
    next_sequence: int


class _Target:
    """One partition that is written to, with the deliveries still awaited, oldest first."""

    def __init__(self, partition: TopicPartition, base_sequence: int = 0) -> None:
        self.partition = partition
        self.base_sequence = base_sequence
        self.stream: PartitionStream | None = None
        self.awaited: deque[tuple[Future[Delivery], int]] = deque()
        self.batches = 0
        self.records = 0
        self.size_bytes = 0
        self.first_offset = -1

    @property
    def summary(self) -> ProduceSummary:
        sequence = self.base_sequence if self.stream is None else self.stream.sequence.next_sequence
        return ProduceSummary(self.partition, self.batches, self.records, self.size_bytes, self.first_offset, sequence)


class _Unsent(NamedTuple):
    target: _Target
    batch: EncodedBatch
    delivered: Future[Delivery]


class BatchProducer(Blocking):
    """Writes batches in order in a transaction that `TransactionClient.share` has given to this process.

        with BatchProducer(config, transaction) as producer:
            producer.produce("orders", 3, batches)

    Up to five batches of a partition are in flight, and 32 MiB of all; beyond that calls wait. In a process that
    runs one task after another, give it `worker_client(config)` in place of the settings: then it uses the connections
    that stay open there. Closing it gives up what is not acknowledged. Calls of several threads wait for each other.

    What fails is an AbortableError (the driver aborts and begins again) or a FatalError, such as ProducerFenced for an
    epoch that is over; without a transactional id it is a KafkaError.
    """

    def __init__(
        self,
        config: ClientConfig | Blocking,
        transaction: SharedTransaction,
        *,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        super().__init__(config)
        self.transaction = transaction
        self._delivery_timeout_ms = delivery_timeout_ms
        self._channel: ProduceChannel | None = None
        self._lock = threading.RLock()
        self._targets: dict[TopicPartition, _Target] = {}
        self._unsent: list[_Unsent] = []
        self._unsent_bytes = 0
        self._in_flight_bytes = 0
        self._oldest: deque[_Target] = deque()
        """For each batch its target, in the order in which they were written."""

    def produce(
        self,
        topic: str,
        partition: int,
        batches: Iterable[EncodedBatch | Readable],
        base_sequence: int | None = None,
    ) -> ProduceSummary:
        """Write batches to a partition and wait until all of it is acknowledged.

        They may be of `columns.encode_columns`, or bytes with whole batches. The iterable is consumed as room appears,
        so it may be larger than memory. Batches go behind those already written, unless a base sequence is given.
        """
        place = TopicPartition(topic, partition)
        with self._lock:
            if base_sequence is not None:
                if place in self._targets:
                    self._await_all(self._targets[place])
                self._targets[place] = _Target(place, base_sequence)
            for batch in _as_encoded(batches):
                self.write(place, batch)
            target = self._targets.get(place, _Target(place))
            self._await_all(target)
            return target.summary

    def write(self, partition: TopicPartition, batch: EncodedBatch) -> None:
        """Send a batch behind those already written to its partition. `flush` tells whether it has arrived."""
        with self._lock:
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
            target.batches += 1
            target.records += batch.records_count
            target.size_bytes += batch.size_bytes
            self._in_flight_bytes += batch.size_bytes
            if self._unsent_bytes >= SENT_TOGETHER_BYTES:
                self._send()

    def flush(self) -> list[ProduceSummary]:
        """Wait until everything is acknowledged. What was written since the beginning, by partition."""
        with self._lock:
            for target in self._targets.values():
                self._await_all(target)
            return [target.summary for _, target in sorted(self._targets.items())]

    async def _shut_down(self) -> None:
        for target in self._targets.values():
            if target.stream is not None:
                target.stream.close(TimedOut("the producer was closed"))
        await super()._shut_down()

    def _send(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        try:
            self._run(self._start(unsent))
        except BaseException as error:
            for one in unsent:
                if not one.delivered.done():
                    one.delivered.set_exception(error)
            if not isinstance(error, KafkaError):
                raise

    async def _start(self, unsent: list[_Unsent]) -> None:
        deadline = self.cluster.deadline(self._delivery_timeout_ms)
        new = {one.target.partition: one.target for one in unsent if one.target.stream is None}
        if new:
            await self._reach_leaders(sorted(new), deadline)
            await self._open([new[partition] for partition in sorted(new)])
        for target, batch, delivered in unsent:
            if target.stream is not None:
                target.stream.append(batch, deadline, functools.partial(_set_outcome, delivered))

    async def _reach_leaders(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Connect to all leaders first: streams that each look for theirs would not share requests."""
        cluster = self.cluster
        away = [partition for partition in partitions if cluster.open_leader(partition) is None]
        if unknown := {partition.topic for partition in away if cluster.routes.leader(partition) is None}:
            await cluster.refresh(unknown, deadline, create=self.config.allow_auto_create_topics)
        leaders = {cluster.routes.leader(partition): partition for partition in away}
        for partition in (partition for leader, partition in leaders.items() if leader is not None):
            await cluster.leader(partition, deadline)

    async def _open(self, targets: Collection[_Target]) -> None:
        transaction = self.transaction
        if self._channel is None:
            before_tv2 = transaction.transactional_id is not None and transaction.transaction_version < 2
            self._channel = ProduceChannel(
                request_timeout_ms=self.config.request_timeout_ms,
                transactional_id=transaction.transactional_id,
                version_max=PRODUCE_VERSION_BEFORE_TV2 if before_tv2 else None,
            )
        if transaction.transactional_id is not None:
            # Over transaction version 2 this sends nothing: the broker adds partitions by itself.
            joined = AsyncTransactionClient(self.cluster).join(transaction)
            await joined.add_partitions(target.partition for target in targets)
        for target in targets:
            target.stream = PartitionStream(
                self.cluster,
                self._channel,
                target.partition,
                transaction.identity,
                mode=Mode.GIVEN,
                base_sequence=target.base_sequence,
            )

    def _await_all(self, target: _Target) -> None:
        while target.awaited:
            self._await_oldest(target)

    def _await_oldest(self, target: _Target) -> None:
        if not target.awaited:
            return
        if self._unsent:
            self._send()
        future, size_bytes = target.awaited.popleft()
        self._in_flight_bytes -= size_bytes
        if not self._in_flight_bytes:
            self._oldest.clear()
        try:
            delivery = future.result()
        except KafkaError as error:
            raise (error if self.transaction.transactional_id is None else produce_error(error)) from error
        if target.first_offset < 0:
            target.first_offset = delivery.base_offset


def _as_encoded(batches: Iterable[EncodedBatch | Readable]) -> Iterable[EncodedBatch]:
    for batch in batches:
        if isinstance(batch, EncodedBatch):
            yield batch
        else:
            yield from split_batches(batch)


def _set_outcome(delivered: Future[Delivery], outcome: Delivery | KafkaError) -> None:
    if delivered.done():
        return
    if isinstance(outcome, KafkaError):
        delivered.set_exception(outcome)
    else:
        delivered.set_result(outcome)
