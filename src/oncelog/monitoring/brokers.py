"""Brokers of a cluster: who they are, how many partitions each leads, how much it stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oncelog.client.admin import Admin, ClusterDescription
from oncelog.client.cluster import Broker, TopicInfo
from oncelog.core.errors import ErrorCode, KafkaError


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
            "address": f"{self.broker.host}:{self.broker.port}",
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


def stored_bytes(admin: Admin) -> dict[int, int]:
    """Bytes by broker; empty where brokers do not say. The answer names every partition: do not poll it."""
    try:
        directories = admin.describe_log_dirs()
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    stored: Counter[int] = Counter()
    for directory in directories:
        stored[directory.broker_id] += sum(directory.partition_bytes.values())
    return dict(stored)
