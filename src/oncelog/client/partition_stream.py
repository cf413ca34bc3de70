"""The batches of one producer for one partition on an event loop; `batch_sequence` says which to send, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog.client.batch_sequence import BatchSequence, Delivered, Mode, Need
from oncelog.client.cluster import Cluster
from oncelog.client.connection import Connection
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch
from oncelog.client.errors import KafkaError
from oncelog.client.produce_channel import ProduceChannel
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition

NewIdentity = Callable[[], Awaitable[ProducerIdAndEpoch]]


class PartitionStream:
    def __init__(
        self,
        cluster: Cluster,
        channel: ProduceChannel,
        partition: TopicPartition,
        identity: ProducerIdAndEpoch,
        *,
        mode: Mode,
        new_identity: NewIdentity | None = None,
        **bounds: int,
    ) -> None:
        self.partition = partition
        self.sequence = BatchSequence(
            partition,
            identity,
            cluster.backoff(),
            mode=mode,
            transactional=channel.transactional_id is not None,
            renewable=new_identity is not None,
            **bounds,
        )
        self._cluster = cluster
        self._channel = channel
        self._new_identity = new_identity
        self._progress = asyncio.Event()
        self._pump_task: asyncio.Task[None] | None = None

    def append(self, batch: EncodedBatch, deadline: Deadline, delivered: Delivered) -> None:
        """Queue a batch behind the others; `delivered` is called with its place, or with why it was not written."""
        self.sequence.append(batch, deadline, delivered)
        self._pump()

    def close(self, reason: KafkaError) -> None:
        """Give up everything that is pending."""
        if self._pump_task is not None:
            self._pump_task.cancel()
        self.sequence.close(reason)

    async def idle(self) -> None:
        """Wait until nothing is in flight any more; after `close` that is a request's timeout at most."""
        while self.sequence.in_flight:
            await self._wait_for_progress()

    def _pump(self) -> None:
        """Send what may be sent now; leave the rest to a task that can wait."""
        self._progress.set()
        if self._pump_task is not None:
            return
        need = self.sequence.advance(self._cluster.network.now_s())
        if need is Need.LEADER and not self.sequence.moved:
            connection = self._cluster.open_leader(self.partition)
            if connection is not None:
                self._send(connection)
                return
        if need is not Need.NOTHING:
            self._pump_task = asyncio.create_task(self._pump_until_idle())
            self._pump_task.add_done_callback(self._pump_ended)

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        if task is self._pump_task:
            self._pump_task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            reason = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"sending to {self.partition} failed: {error!r}")
            reason.__cause__ = error
            self.close(reason)

    async def _pump_until_idle(self) -> None:
        network = self._cluster.network
        while (need := self.sequence.advance(network.now_s())) is not Need.NOTHING:
            if need is Need.ANSWERS:
                await self._wait_for_progress()
            elif need is Need.TIME:
                await network.sleep((self.sequence.resume_at_s - network.now_s()) * 1000)
            elif need is Need.IDENTITY:
                await self._renew()
            else:
                await self._reach_leader()
        self._pump_task = None

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _renew(self) -> None:
        if self._new_identity is not None:
            try:
                self.sequence.renumber(await self._new_identity())
            except KafkaError as error:
                self.sequence.close(error)

    async def _reach_leader(self) -> None:
        if self.sequence.moved:
            self._cluster.routes.forget_leader(self.partition)
            self.sequence.moved = False
        try:
            self._send(await self._cluster.leader(self.partition, self.sequence.oldest.deadline))
        except KafkaError as error:
            self.sequence.unreachable(error)

    def _send(self, connection: Connection) -> None:
        for pending in self.sequence.take():

            def settle(answer: Any, pending: Any = pending) -> None:
                self.sequence.settle(pending, answer)
                self._pump()

            self._channel.send(connection, self.partition, pending.data, pending.deadline.remaining_ms, settle)
