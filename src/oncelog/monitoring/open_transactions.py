"""Open transactions as partitions see them, matched with what coordinators know.

A partition knows a producer id, an epoch and where its transaction begins. The coordinator knows the name, the age and
the time-out. A transaction that is open on a partition and in no coordinator's books hangs: nobody will ever end it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from oncelog.client.admin import Admin, ProducerDescription, TransactionDescription
from oncelog.client.config import ClientConfig
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets

COUNTED_OFFSETS_MAX: Final = 1_000_000
"""Records behind a transaction are counted by reading them, up to so many offsets."""
_ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    partition: TopicPartition
    producer: ProducerDescription
    transactional_id: str | None
    description: TransactionDescription | None
    why_hanging: str
    """Empty if its coordinator will end it."""

    @property
    def is_hanging(self) -> bool:
        return bool(self.why_hanging)

    @property
    def start_offset(self) -> int:
        return self.producer.transaction_start_offset

    def age_ms(self, now_ms: int) -> int | None:
        """Since it began; of a hanging one, since its producer last wrote."""
        if self.description is not None and self.description.start_time_ms >= 0:
            return max(now_ms - self.description.start_time_ms, 0)
        if self.producer.last_timestamp_ms >= 0:
            return max(now_ms - self.producer.last_timestamp_ms, 0)
        return None

    @property
    def remedy(self) -> tuple[str, ...]:
        """The words of the command that ends it."""
        if self.transactional_id is not None and not self.is_hanging:
            return ("txn", "fence", self.transactional_id)
        place = f"{self.partition.topic}:{self.partition.partition}"
        return ("txn", "abort", place, "--start-offset", str(self.start_offset))

    def as_row(self, now_ms: int) -> dict[str, Any]:
        description = self.description
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start_offset,
            "transactional_id": self.transactional_id,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "state": description.state if description is not None else None,
            "age_ms": self.age_ms(now_ms),
            "timeout_ms": description.timeout_ms if description is not None else None,
            "hanging": self.why_hanging or None,
        }


@dataclass(frozen=True, slots=True)
class HeldBackPartition:
    """A partition whose read_committed readers wait, and the transactions they wait for."""

    partition: TopicPartition
    offsets: PartitionOffsets
    blocking: list[OpenTransaction]
    """Empty for a moment when the marker is written and waits for the high watermark."""
    open_after: list[OpenTransaction]
    """These will hold readers back once the others have ended."""


def held_back_partitions(admin: Admin, partitions: Collection[TopicPartition]) -> list[HeldBackPartition]:
    offsets = partition_offsets(admin, partitions)
    held = [partition for partition in partitions if offsets[partition].held_back]
    opened = open_transactions(admin, held)
    found = []
    for partition in held:
        own = [one for one in opened if one.partition == partition]
        blocking = [one for one in own if one.start_offset <= offsets[partition].last_stable] or own[:1]
        after = [one for one in own if one not in blocking]
        found.append(HeldBackPartition(partition, offsets[partition], blocking, after))
    return found


def count_waiting(config: ClientConfig, held: HeldBackPartition) -> int | None:
    """Records that wait, by reading the headers of their batches; None if there are too many offsets for that."""
    start, end = held.offsets.last_stable, held.offsets.end
    if end - start > COUNTED_OFFSETS_MAX:
        return None
    with RangeReader(config, isolation=IsolationLevel.READ_UNCOMMITTED, check_crcs=False) as reader:
        return sum(
            header.records_count
            for chunk in reader.read(*held.partition, start, end)
            for _, header in chunk.batches
            if header.base_offset >= start
        )


def open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Oldest first on each partition."""
    wanted = list(partitions)
    if not wanted:
        return []
    found = [
        (partition, producer)
        for partition, producers in sorted(admin.describe_producers(wanted).items())
        for producer in sorted(producers, key=lambda p: p.transaction_start_offset)
        if producer.transaction_start_offset >= 0
    ]
    names = _names(admin, {producer.producer_id for _, producer in found})
    descriptions = {name: _describe(admin, name) for name in sorted(set(names.values()))}
    opened = []
    for partition, producer in found:
        name = names.get(producer.producer_id)
        description = descriptions[name] if name is not None else None
        why = _why_hanging(partition, producer, name, description)
        opened.append(OpenTransaction(partition, producer, name, description, why))
    return opened


def _names(admin: Admin, producer_ids: set[int]) -> dict[int, str]:
    if not producer_ids:
        return {}
    return {found.producer_id: found.transactional_id for found in admin.list_transactions(producer_ids=producer_ids)}


def _describe(admin: Admin, name: str) -> TransactionDescription | None:
    """None if the id has gone meanwhile."""
    try:
        description: TransactionDescription = admin.describe_transactions([name])[name]
    except KafkaError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    return description


def _why_hanging(
    partition: TopicPartition,
    producer: ProducerDescription,
    name: str | None,
    description: TransactionDescription | None,
) -> str:
    if name is None or description is None:
        return f"no coordinator knows producer {producer.producer_id}"
    if description.state in _ENDING:
        return ""
    if description.state != "Ongoing":
        return f"{name} is in state {description.state}"
    if description.producer_epoch > producer.producer_epoch:
        return f"{name} is at epoch {description.producer_epoch} by now"
    if partition not in description.partitions:
        return f"the transaction of {name} does not include {partition}"
    return ""


def all_partitions(admin: Admin, topics: Iterable[str] = ()) -> Iterator[TopicPartition]:
    """Of the topics, or of all that producers can write to in a transaction."""
    wanted = set(topics)
    for name, info in sorted(admin.list_topics(internal=True).items()):
        if name in wanted or (not wanted and name != TRANSACTION_STATE_TOPIC):
            for partition in info.partitions:
                yield TopicPartition(name, partition.partition)
