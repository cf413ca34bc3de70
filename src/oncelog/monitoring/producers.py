"""The producers that partitions remember, with their transactional ids."""

from __future__ import annotations

from collections.abc import Collection

from oncelog.client.admin import Admin, ProducerDescription
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    partition: TopicPartition
    producer: ProducerDescription
    transactional_id: str | None
    """None for an idempotent producer, and for one whose transactional id has expired."""


def partition_producers(admin: Admin, partitions: Collection[TopicPartition]) -> list[PartitionProducer]:
    found = [
        (partition, producer)
        for partition, producers in sorted(admin.describe_producers(partitions).items())
        for producer in producers
    ]
    names = producer_names(admin, {producer.producer_id for _, producer in found})
    return [PartitionProducer(partition, one, names.get(one.producer_id)) for partition, one in found]


def producer_names(admin: Admin, producer_ids: Collection[int]) -> dict[int, str]:
    """The transactional ids of producers that have one."""
    if not producer_ids:
        return {}
    return {found.producer_id: found.transactional_id for found in admin.list_transactions(producer_ids=producer_ids)}
