"""The part of a producer on the event loop: takes batches out of the accumulator and delivers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from oncelog.client.accumulator import Accumulator, WaitingBatch
from oncelog.client.batch_sequence import Delivery, Mode
from oncelog.client.cluster import Cluster
from oncelog.client.errors import KafkaError, error_of
from oncelog.client.partition_stream import PartitionStream
from oncelog.client.partitioner import Partitioner
from oncelog.client.produce_channel import ProduceChannel
from oncelog.client.producer_config import ProducerConfig
from oncelog.core.ids import NO_IDENTITY, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class Gate(Protocol):
    """What a transaction lets the sender send."""

    def admits(self, partition: TopicPartition) -> bool:
        """Whether batches for this partition may be sent now. `Sender.send_ready` is called when that changes."""

    def explain(self, error: KafkaError) -> KafkaError:
        """Take note of a failed batch, and give the error that its records are to see."""


def _look_at(delivered: asyncio.Future[Delivery]) -> None:
    """What came of it is told by the futures of its records; asyncio would log an error that nobody has seen."""
    if not delivered.cancelled():
        delivered.exception()


class Sender:
    """Works on one event loop; only `wake` may be called from elsewhere."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, partitioner: Partitioner, gate: Gate | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._cluster = cluster
        self._config = config
        self._partitioner = partitioner
        self._gate = gate
        self._mode = Mode.GIVEN if gate is not None else Mode.IDEMPOTENT if config.idempotent else Mode.PLAIN
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._is_scheduled = False
        self.identity = NO_IDENTITY
        self._getting_identity: asyncio.Task[None] | None = None
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self.channel = ProduceChannel(
            acks=config.acks,
            request_timeout_ms=config.client.request_timeout_ms,
            transactional_id=config.transactional_id,
        )
        self.accumulator = Accumulator(config, self.wake)
        self.on_room: Callable[[], None] = lambda: None
        """Called on the loop whenever memory was released."""

    # When to send

    def wake(self, delay_s: float) -> None:
        self._loop.call_soon_threadsafe(self._wake_in, delay_s)

    def _wake_in(self, delay_s: float) -> None:
        if delay_s <= 0:
            self.send_ready()
            return
        at_s = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.send_ready()

    def send_ready(self) -> None:
        """Send every batch that is ready, as far as batches may be in flight."""
        self._is_scheduled = False
        if self._mode is Mode.IDEMPOTENT and self.identity == NO_IDENTITY:
            if self._getting_identity is None:
                self._getting_identity = asyncio.create_task(self._get_identity())
            return
        now_s = time.monotonic()
        for partition in self.accumulator.partitions():
            if self._gate is None or self._gate.admits(partition):
                self._fill(partition, now_s)
        next_s = self.accumulator.next_ready_s()
        if next_s is not None and next_s > now_s:
            self._wake_in(next_s - now_s)

    def _fill(self, partition: TopicPartition, now_s: float) -> None:
        stream = self._stream(partition)
        while stream.sequence.has_room or stream.sequence.broken:
            batch = self.accumulator.take_ready(partition, now_s)
            if batch is None:
                return
            self._rotate(partition)
            stream.append(batch.encode(self._config.codec), batch.deadline, partial(self._delivered, batch))

    def _rotate(self, partition: TopicPartition) -> None:
        topic = self._cluster.topics.get(partition.topic)
        if topic is not None:
            self._partitioner.rotate(partition.topic, partition.partition, len(topic.partitions))

    def _stream(self, partition: TopicPartition) -> PartitionStream:
        stream = self._streams.get(partition)
        if stream is None:
            stream = self._streams[partition] = PartitionStream(
                self._cluster,
                self.channel,
                partition,
                self.identity,
                mode=self._mode,
                in_flight_max=self._config.in_flight_max,
                retries=self._config.retries,
                new_identity=self._ask_identity,
            )
        return stream

    def _delivered(self, batch: WaitingBatch, outcome: Delivery | KafkaError) -> None:
        if self._gate is not None and isinstance(outcome, KafkaError):
            outcome = self._gate.explain(outcome)
        self._complete(batch, outcome)
        if not self._is_scheduled:
            # Not at once: a broken stream answers to every batch while it is being filled.
            self._is_scheduled = True
            self._loop.call_soon(self.send_ready)

    def _complete(self, batch: WaitingBatch, outcome: Delivery | BaseException) -> None:
        self.accumulator.complete(batch, outcome)
        self.on_room()

    # Who sends

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Go on under a new identity, with sequence numbers from 0 everywhere. Nothing may be pending."""
        self.identity = identity
        for stream in self._streams.values():
            stream.sequence.restart(identity)

    async def _get_identity(self) -> None:
        try:
            self.identity = await self._ask_identity()
        except KafkaError as error:
            self.fail_waiting(error)
        finally:
            self._getting_identity = None
        self.send_ready()

    async def _ask_identity(self) -> ProducerIdAndEpoch:
        """A producer id for an idempotent producer; any broker gives one."""

        async def attempt() -> ProducerIdAndEpoch:
            connection = await self._cluster.any_broker()
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS)
            response = await connection.call(request, InitProducerIdResponse)
            if response.error_code:
                raise error_of(response.error_code, "getting a producer id")
            return ProducerIdAndEpoch.of(response.producer_id, response.producer_epoch)

        deadline = self._cluster.deadline(self._config.delivery_timeout_ms)
        return await self._cluster.retrying("getting a producer id", attempt, deadline)

    # The end

    async def flush(self) -> None:
        """Wait until every record appended so far is delivered or given up."""
        batches = self.accumulator.make_all_ready()
        self.send_ready()
        waits = [asyncio.wrap_future(batch.delivered) for batch in batches]
        for wait in waits:
            wait.add_done_callback(_look_at)  # also if this is cancelled before
        if waits:
            await asyncio.wait(waits)

    def fail_waiting(self, error: KafkaError) -> None:
        """Give up every batch that was not sent yet."""
        for batch in self.accumulator.drain():
            self._complete(batch, error)

    async def abandon(self, reason: KafkaError) -> bool:
        """Give up everything, and wait until nothing is in flight. Returns whether sequence numbers are in doubt."""
        self.fail_waiting(reason)
        doubtful = False
        for stream in self._streams.values():
            doubtful |= stream.sequence.broken is not None or stream.sequence.pending_count > 0
            if stream.sequence.pending_count:
                stream.close(reason)
        await asyncio.gather(*(stream.idle() for stream in self._streams.values()))
        return doubtful

    def close(self, reason: KafkaError) -> None:
        self.accumulator.close(reason)
        if self._timer is not None:
            self._timer.cancel()
        if self._getting_identity is not None:
            self._getting_identity.cancel()
        self.fail_waiting(reason)
        for stream in self._streams.values():
            stream.close(reason)
