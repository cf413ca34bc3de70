"""Topics with the offsets of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncelog.client.admin import Admin, ConfigEntry
from oncelog.client.cluster import PartitionInfo, TopicInfo
from oncelog.client.errors import UnsupportedByBroker
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition, uuid_to_text
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets


@dataclass(frozen=True, slots=True)
class PartitionState:
    info: PartitionInfo
    offsets: PartitionOffsets | None
    """None while the partition has no leader, or was not asked for yet."""

    def as_row(self) -> dict[str, Any]:
        info, offsets = self.info, self.offsets
        return {
            "partition": info.partition,
            "leader": info.leader,
            "leader_epoch": info.leader_epoch,
            "replicas": list(info.replicas),
            "isr": list(info.in_sync_replicas),
            "offline": list(info.offline_replicas),
            "start": offsets.start if offsets is not None else None,
            "end": offsets.end if offsets is not None else None,
            "last_stable": offsets.last_stable if offsets is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Topic:
    info: TopicInfo
    partitions: tuple[PartitionState, ...]

    @property
    def replication_factor(self) -> int:
        return replication_factor(self.info)

    @property
    def without_leader(self) -> tuple[int, ...]:
        return tuple(one.info.partition for one in self.partitions if one.info.leader < 0)

    @property
    def under_replicated(self) -> tuple[int, ...]:
        return tuple(p.partition for p in self.info.partitions if len(p.in_sync_replicas) < len(p.replicas))

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.info.name,
            "id": uuid_to_text(self.info.topic_id),
            "internal": self.info.is_internal,
            "partitions": [one.as_row() for one in self.partitions],
        }


def replication_factor(info: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in info.partitions), default=0)


def describe_topics(admin: Admin, infos: Iterable[TopicInfo]) -> list[Topic]:
    """Topics with the offsets of all their partitions, in three requests to each leader."""
    wanted = list(infos)
    offsets = partition_offsets(admin, led_partitions(wanted))
    return [join_topic(info, offsets) for info in wanted]


def join_topic(info: TopicInfo, offsets: Mapping[TopicPartition, PartitionOffsets]) -> Topic:
    return Topic(
        info, tuple(PartitionState(p, offsets.get(TopicPartition(info.name, p.partition))) for p in info.partitions)
    )


def led_partitions(infos: Iterable[TopicInfo]) -> list[TopicPartition]:
    """The partitions that have a leader, who can be asked about them."""
    return [TopicPartition(info.name, p.partition) for info in infos for p in info.partitions if p.leader >= 0]


def transaction_partitions(infos: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """The partitions that producers can write to in a transaction."""
    return sorted(led_partitions(info for name, info in infos.items() if name != TRANSACTION_STATE_TOPIC))


def eligible_leaders(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """See `Admin.eligible_leaders`; nothing from brokers that do not tell."""
    try:
        return admin.eligible_leaders(topics)
    except UnsupportedByBroker:
        return {}


def under_min_isr(info: TopicInfo, min_insync_replicas: int) -> list[int]:
    """Partitions with fewer replicas in sync than producers with acks=all need."""
    return [p.partition for p in info.partitions if len(p.in_sync_replicas) < min(min_insync_replicas, len(p.replicas))]


def changed_settings(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """The settings that differ from their defaults."""
    return {name: entry.value for name, entry in sorted(entries.items()) if not entry.is_default}
