"""Topics with the offsets of their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oncelog.client.admin import Admin, ConfigResource, ResourceType
from oncelog.client.cluster import PartitionInfo, TopicInfo
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, TopicPartition, uuid_to_text
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets


@dataclass(frozen=True, slots=True)
class PartitionState:
    info: PartitionInfo
    offsets: PartitionOffsets | None
    """None while the partition has no leader."""

    def as_row(self) -> dict[str, Any]:
        info, offsets = self.info, self.offsets
        return {
            "partition": info.partition,
            "leader": info.leader,
            "leader_epoch": info.leader_epoch,
            "replicas": list(info.replicas),
            "isr": list(info.in_sync_replicas),
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
    """With the offsets of all their partitions, in three requests to each leader."""
    wanted = list(infos)
    offsets = partition_offsets(admin, led_partitions(wanted))
    return [join_topic(info, offsets) for info in wanted]


def join_topic(info: TopicInfo, offsets: Mapping[TopicPartition, PartitionOffsets]) -> Topic:
    return Topic(
        info, tuple(PartitionState(p, offsets.get(TopicPartition(info.name, p.partition))) for p in info.partitions)
    )


def led_partitions(infos: Iterable[TopicInfo]) -> list[TopicPartition]:
    """Those that somebody can be asked about."""
    return [TopicPartition(info.name, p.partition) for info in infos for p in info.partitions if p.leader >= 0]


def transaction_partitions(infos: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Those that producers can write to in a transaction."""
    return sorted(led_partitions(info for name, info in infos.items() if name != TRANSACTION_STATE_TOPIC))


def changed_settings(admin: Admin, topic: str) -> dict[str, str | None]:
    """The settings that differ from their defaults."""
    entries = admin.describe_configs(ConfigResource(ResourceType.TOPIC, topic))
    return {name: entry.value for name, entry in sorted(entries.items()) if not entry.is_default}
