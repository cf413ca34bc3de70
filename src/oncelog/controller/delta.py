"""What changed between two images, for brokers to act on.

It makes no difference how the newer image was made: by records that follow the older one, or from a snapshot, in which
everything that is missing is gone. Entries that are the same object in both are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar
from uuid import UUID

from oncelog.controller.image import ConfigResource, Image, QuotaEntity, ScramCredentialKey, TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.registrations import BrokerRegistration
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.cluster_metadata import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)

K = TypeVar("K")
V = TypeVar("V")


class Change(NamedTuple, Generic[V]):
    """None means that the entry did not exist before, or does not exist any more."""

    before: V | None
    after: V | None


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Delta:
    """In every part what is gone comes first: a topic of the same name may have come in the same delta."""

    features: Mapping[str, Change[int]]
    brokers: Mapping[NodeId, Change[BrokerRegistration]]
    controllers: Mapping[NodeId, Change[RegisterControllerRecord]]
    topics: Mapping[UUID, Change[TopicImage]]
    """Topics that were created or removed."""
    partitions: Mapping[TopicIdPartition, Change[PartitionImage]]
    """Including those of topics that were created or removed."""
    settings: Mapping[ConfigResource, Change[Mapping[str, str]]]
    quotas: Mapping[QuotaEntity, Change[Mapping[str, float]]]
    next_producer_id: int | None
    """None if it did not change."""
    acls: Mapping[UUID, Change[AccessControlEntryRecord]]
    scram: Mapping[ScramCredentialKey, Change[UserScramCredentialRecord]]
    delegation_tokens: Mapping[str, Change[DelegationTokenRecord]]

    @classmethod
    def between(cls, before: Image, after: Image) -> Self:
        topics = _changes(before.topics, after.topics)
        is_same_id = before.next_producer_id == after.next_producer_id
        return cls(
            features=_changes(before.features, after.features),
            brokers=_changes(before.brokers, after.brokers),
            controllers=_changes(before.controllers, after.controllers),
            topics={key: change for key, change in topics.items() if None in change},
            partitions=_partition_changes(topics),
            settings=_changes(before.settings, after.settings),
            quotas=_changes(before.quotas, after.quotas),
            next_producer_id=None if is_same_id else after.next_producer_id,
            acls=_changes(before.acls, after.acls),
            scram=_changes(before.scram, after.scram),
            delegation_tokens=_changes(before.delegation_tokens, after.delegation_tokens),
        )

    @property
    def has_broker_settings(self) -> bool:
        return any(resource.type == ResourceType.BROKER for resource in self.settings)


def _changes(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, Change[V]]:
    if before is after:
        return {}
    changes: dict[K, Change[V]] = {key: Change(old, None) for key, old in before.items() if key not in after}
    for key, new in after.items():
        old = before.get(key)
        if old is not new and old != new:
            changes[key] = Change(old, new)
    return changes


def _partition_changes(
    topics: Mapping[UUID, Change[TopicImage]],
) -> dict[TopicIdPartition, Change[PartitionImage]]:
    return {
        TopicIdPartition(topic_id, topic.name, index): change
        for topic_id, (before, after) in topics.items()
        if (topic := after or before) is not None
        for index, change in _changes(
            before.partitions if before is not None else {}, after.partitions if after is not None else {}
        ).items()
    }
