"""Producing encoded batches under somebody's producer id and epoch, with sequence numbers that the caller chooses.

This is how several tasks share one transaction: the driver initialises and ends it (`transaction`), each task writes
its partitions with the driver's identity, and no two tasks write to the same partition, since the sequence numbers of
a partition are one series.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final, NamedTuple

from oncelog.client.blocking import Blocking
from oncelog.client.classification import Step, transaction_error
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.encoded_batch import EncodedBatch, split_batches
from oncelog.client.errors import AbortableError, KafkaError, TimedOut
from oncelog.client.partition_stream import IN_FLIGHT_MAX, Delivery, Mode, PartitionStream
from oncelog.client.produce_channel import PRODUCE_VERSION_BEFORE_TV2, ProduceChannel
from oncelog.client.producer_config import PRODUCER_TABLE
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.primitives import Readable

DELIVERY_TIMEOUT_MS: Final = PRODUCER_TABLE.defaults.integer("delivery.timeout.ms")
"""A batch that is not acknowledged by then is given up."""


class ProduceSummary(NamedTuple):
    """What one `produce` call did. Offsets are -1 when nothing was sent."""

    partition: TopicPartition
    batches: int
    records: int
    first_offset: int
    next_sequence: int


class BatchProducer(Blocking):
    """Writes batches in order with a given identity; up to five on their way, the rest stays with the caller.

        with BatchProducer(config, identity=identity, transactional_id=id, transaction_version=2) as producer:
            producer.produce("orders", 3, batches)

    `transaction_version` is the driver's (`TransactionClient.transaction_version`): all requests of one transaction
    must speak the same protocol. Without a transactional id the batches are idempotent only.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        identity: ProducerIdAndEpoch,
        transactional_id: str | None = None,
        transaction_version: int = 2,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        super().__init__(config)
        self.identity = ProducerIdAndEpoch(*identity)
        self.transactional_id = transactional_id
        self._delivery_timeout_ms = delivery_timeout_ms
        self._version_max = PRODUCE_VERSION_BEFORE_TV2 if transactional_id and transaction_version < 2 else None
        self._channel: ProduceChannel | None = None

    def produce(
        self, topic: str, partition: int, batches: Iterable[EncodedBatch | Readable], base_sequence: int = 0
    ) -> ProduceSummary:
        """Send all batches and wait until all are acknowledged.

        The iterable is consumed as room appears, so it may be larger than memory. Raises AbortableError or FatalError
        in a transaction, else KafkaError; nothing is sent after the first failure.
        """
        target = TopicPartition(topic, partition)
        stream = self._run(self._open_stream(target, base_sequence))
        flying: deque[Future[Delivery]] = deque()
        deliveries: list[Delivery] = []
        try:
            for batch in _as_encoded(batches):
                if len(flying) >= IN_FLIGHT_MAX:
                    deliveries.append(flying.popleft().result())
                flying.append(self._thread.submit(_deliver(stream, batch, self._delivery_timeout_ms)))
            deliveries += [future.result() for future in flying]
        except KafkaError as error:
            raise self._explain(target, error) from error
        finally:
            self._run(_close_stream(stream))
        first_offset = deliveries[0].base_offset if deliveries else -1
        records = sum(delivery.records_count for delivery in deliveries)
        return ProduceSummary(target, len(deliveries), records, first_offset, stream.next_sequence)

    async def _open_stream(self, target: TopicPartition, base_sequence: int) -> PartitionStream:
        if self._channel is None:
            self._channel = ProduceChannel(
                request_timeout_ms=self.config.request_timeout_ms,
                transactional_id=self.transactional_id,
                version_max=self._version_max,
            )
        return PartitionStream(
            self.cluster, self._channel, target, self.identity, mode=Mode.GIVEN, base_sequence=base_sequence
        )

    def _explain(self, target: TopicPartition, error: KafkaError) -> KafkaError:
        if self.transactional_id is None:
            return error
        if isinstance(error, TimedOut):
            return AbortableError(error.code, f"{error.message}: abort the transaction and begin it again")
        return transaction_error(Step.PRODUCE, error.code, f"{target}: {error.message}")


def _as_encoded(batches: Iterable[EncodedBatch | Readable]) -> Iterable[EncodedBatch]:
    for batch in batches:
        if isinstance(batch, EncodedBatch):
            yield batch
        else:
            yield from split_batches(batch)


async def _deliver(stream: PartitionStream, batch: EncodedBatch, timeout_ms: float) -> Delivery:
    return await stream.append(batch, Deadline(timeout_ms))


async def _close_stream(stream: PartitionStream) -> None:
    stream.close(KafkaError(stream.broken.code, stream.broken.message) if stream.broken else TimedOut("closed"))
