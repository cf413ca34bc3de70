"""Brokers of a cluster: who they are, how many partitions each leads, how much it stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oncelog.client.admin import Admin, ClusterDescription, LogDirectory, QuorumDescription
from oncelog.client.cluster import Broker, TopicInfo
from oncelog.client.errors import TimedOut
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerState:
    broker: Broker
    is_controller: bool
    leads: int
    """Partitions, those of internal topics included."""
    stored_bytes: int | None
    """None if the broker does not say, or was not asked."""

    def as_row(self) -> dict[str, Any]:
        return {
            "broker": self.broker.node_id,
            "address": str(self.broker.address),
            "rack": self.broker.rack,
            "controller": self.is_controller,
            "leads": self.leads,
            "bytes": self.stored_bytes,
        }


def broker_states(
    cluster: ClusterDescription, topics: Iterable[TopicInfo], stored: Mapping[int, int]
) -> list[BrokerState]:
    leads = Counter(partition.leader for info in topics for partition in info.partitions)
    return [
        BrokerState(one, one.node_id == cluster.controller_id, leads[one.node_id], stored.get(one.node_id))
        for one in cluster.brokers
    ]


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replicas of one broker, counted in partitions; those of internal topics included."""

    leads: int
    keeps: int
    out_of_sync: int


def replica_counts(topics: Iterable[TopicInfo]) -> dict[int, ReplicaCounts]:
    """Counts by broker, also of brokers that are away."""
    leads: Counter[int] = Counter()
    keeps: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for partition in (partition for info in topics for partition in info.partitions):
        leads[partition.leader] += 1
        keeps.update(partition.replicas)
        in_sync.update(partition.in_sync_replicas)
    return {node: ReplicaCounts(leads[node], keeps[node], keeps[node] - in_sync[node]) for node in sorted(keeps)}


NO_CONTROLLER: Final = QuorumDescription(leader_id=-1, leader_epoch=-1, high_watermark=-1, voters=[], observers=[])


def quorum(admin: Admin) -> QuorumDescription | None:
    """The controllers; None where brokers know of none, as those of Kafka on ZooKeeper.

    `NO_CONTROLLER` if none of them answers: brokers, which pass the question on, can still tell everything else.
    """
    try:
        return admin.describe_quorum()
    except TimedOut:
        return NO_CONTROLLER
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise


def stored_bytes(admin: Admin) -> dict[int, int]:
    """Bytes by broker; empty where brokers do not say. The answer names every partition: do not poll it."""
    stored: Counter[int] = Counter()
    for directory in log_directories(admin):
        stored[directory.broker_id] += sum(directory.partition_bytes.values())
    return dict(stored)


def log_directories(admin: Admin, partitions: Iterable[TopicPartition] | None = None) -> list[LogDirectory]:
    """With the sizes of these partitions, of all for None; empty where brokers do not say."""
    try:
        return list(admin.describe_log_dirs(partitions))
    except KafkaError as error:
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            return []
        raise
