"""What a client knows of a cluster: its brokers, the leaders of partitions, the coordinators of groups and ids.

Pure: answers and the time come in, and where to send a request goes out. What is known is used until an answer says
otherwise: whoever meets NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR or a lost connection has it forgotten here.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from oncelog.client.errors import ErrorCode, KafkaError, error_of
from oncelog.core.address import Address
from oncelog.core.ids import NULL_UUID, TopicPartition
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

COORDINATOR_MOVED: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Codes after which a request may have gone to the wrong broker."""


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class PartitionInfo(NamedTuple):
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    error_code: int
    offline_replicas: tuple[int, ...] = ()
    """Those whose broker is away, or whose folder is."""


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


def _advice(code: int) -> str:
    if code != ErrorCode.INVALID_TOPIC_EXCEPTION:
        return ""
    return ": names of topics have 1 to 249 letters of ASCII, digits, '.', '_' and '-', and are not '.' or '..'"


class Routes:
    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.topics: dict[str, TopicInfo] = {}
        self._stale: set[TopicPartition] = set()
        self._seen_s: dict[str, float] = {}
        self._coordinators: dict[tuple[int, str], Broker] = {}

    def addresses(self, bootstrap: list[Address], rng: random.Random) -> list[Address]:
        """Whom to ask what every broker knows: known brokers first."""
        known = [broker.address for broker in self.brokers.values()]
        return list(dict.fromkeys(rng.sample(known, len(known)) + bootstrap))

    # Topics

    def metadata_request(self, topics: Collection[str] | None, *, create: bool) -> MetadataRequest:
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return MetadataRequest(topics=asked, allow_auto_topic_creation=create)

    def learn(self, response: MetadataResponse, now_s: float) -> list[KafkaError]:
        """Take an answer over; what it says against single topics is returned."""
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id
        failures = []
        for topic in response.topics:
            if topic.error_code:
                failures.append(error_of(topic.error_code, f"topic {topic.name}{_advice(topic.error_code)}"))
                self.topics.pop(topic.name or "", None)
            else:
                self._learn_topic(topic, now_s)
        return failures

    def _learn_topic(self, topic: MetadataResponseTopic, now_s: float) -> None:
        name = topic.name or ""
        partitions = tuple(
            PartitionInfo(
                name,
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                p.error_code,
                tuple(p.offline_replicas),
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        )
        self.topics[name] = TopicInfo(name, topic.topic_id or NULL_UUID, topic.is_internal, partitions)
        self._seen_s[name] = now_s
        self._stale.difference_update(TopicPartition(name, p.partition) for p in partitions)

    def fresh_topic(self, name: str, now_s: float, age_max_ms: float) -> TopicInfo | None:
        """What is known of a topic with partitions, unless it is older than that."""
        known = self.topics.get(name)
        if known is None or not known.partitions or now_s - self._seen_s[name] >= age_max_ms / 1000:
            return None
        return known

    def leader(self, partition: TopicPartition) -> Broker | None:
        topic = self.topics.get(partition.topic)
        if topic is None or partition in self._stale or partition.partition >= len(topic.partitions):
            return None
        return self.brokers.get(topic.partitions[partition.partition].leader)

    def forget_leader(self, *partitions: TopicPartition) -> None:
        self._stale.update(partitions)

    # Coordinators

    def coordinator(self, kind: CoordinatorKind, key: str) -> Broker | None:
        return self._coordinators.get((kind, key))

    def coordinator_request(self, kind: CoordinatorKind, key: str) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])

    def learn_coordinator(self, kind: CoordinatorKind, key: str, response: FindCoordinatorResponse) -> Broker:
        """Raises KafkaError when the answer names none."""
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            what = f"coordinator of {kind.name.lower()} {key}"
            raise error_of(found.error_code, f"{what}: {found.error_message or 'none'}")
        broker = self._coordinators[(kind, key)] = Broker(found.node_id, found.host, found.port)
        return broker

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)
