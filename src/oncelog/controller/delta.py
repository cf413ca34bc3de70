"""What changed between two images, for brokers to act on.

It makes no difference how the newer image was made: by records that follow the older one, or from a snapshot, in which
everything that is missing is gone. Entries that are the same object in both are not compared. Whoever knows which
entries can differ, as a replay does, has only these compared.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Generic, NamedTuple, Self, TypeVar
from uuid import UUID

from oncelog.controller.image import ConfigResource, Image, QuotaEntity, ScramCredentialKey, TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.registrations import BrokerRegistration
from oncelog.core.config_resources import ResourceType
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NodeId
from oncelog.core.steps import at_once
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
class Touched:
    """Keys of entries that can differ, by part of the image. All others are the same."""

    features: Iterable[str]
    brokers: Iterable[NodeId]
    controllers: Iterable[NodeId]
    topics: Iterable[UUID]
    settings: Iterable[ConfigResource]
    quotas: Iterable[QuotaEntity]
    acls: Iterable[UUID]
    scram: Iterable[ScramCredentialKey]
    delegation_tokens: Iterable[str]


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
        return at_once(cls.between_in_steps(before, after, None))

    @classmethod
    def between_in_steps(cls, before: Image, after: Image, touched: Touched | None) -> Generator[None, None, Self]:
        """As `between`: the partitions of one topic may be many. Without `touched`, everything is compared."""
        at = touched or _all_of(before, after)
        topics = _changes(before.topics, after.topics, at.topics)
        is_same_id = before.next_producer_id == after.next_producer_id
        return cls(
            features=_changes(before.features, after.features, at.features),
            brokers=_changes(before.brokers, after.brokers, at.brokers),
            controllers=_changes(before.controllers, after.controllers, at.controllers),
            topics={key: change for key, change in topics.items() if None in change} if before.topics else topics,
            partitions=(yield from _partition_changes(topics)),
            settings=_changes(before.settings, after.settings, at.settings),
            quotas=_changes(before.quotas, after.quotas, at.quotas),
            next_producer_id=None if is_same_id else after.next_producer_id,
            acls=_changes(before.acls, after.acls, at.acls),
            scram=_changes(before.scram, after.scram, at.scram),
            delegation_tokens=_changes(before.delegation_tokens, after.delegation_tokens, at.delegation_tokens),
        )

    @property
    def has_broker_settings(self) -> bool:
        return any(resource.type == ResourceType.BROKER for resource in self.settings)


def _all_of(before: Image, after: Image) -> Touched:
    return Touched(
        features=_all_keys(before.features, after.features),
        brokers=_all_keys(before.brokers, after.brokers),
        controllers=_all_keys(before.controllers, after.controllers),
        topics=_all_keys(before.topics, after.topics),
        settings=_all_keys(before.settings, after.settings),
        quotas=_all_keys(before.quotas, after.quotas),
        acls=_all_keys(before.acls, after.acls),
        scram=_all_keys(before.scram, after.scram),
        delegation_tokens=_all_keys(before.delegation_tokens, after.delegation_tokens),
    )


def _all_keys(before: Mapping[K, V], after: Mapping[K, V]) -> Iterable[K]:
    return () if before is after else {**dict.fromkeys(before), **dict.fromkeys(after)}


def _changes(before: Mapping[K, V], after: Mapping[K, V], keys: Iterable[K]) -> dict[K, Change[V]]:
    if not before:
        return {key: Change(None, value) for key, value in after.items()}  # as at a start, when there may be thousands
    gone: dict[K, Change[V]] = {}
    changes: dict[K, Change[V]] = {}
    for key in keys:
        old, new = before.get(key), after.get(key)
        if old is not new and (old is None or new is None or old != new):
            (gone if new is None else changes)[key] = Change(old, new)
    return {**gone, **changes} if gone else changes


def _partition_changes(
    topics: Mapping[UUID, Change[TopicImage]],
) -> Generator[None, None, dict[TopicIdPartition, Change[PartitionImage]]]:
    changes: dict[TopicIdPartition, Change[PartitionImage]] = {}
    for topic_id, (before, after) in topics.items():
        topic = after or before
        name = "" if topic is None else topic.name
        old: Mapping[int, PartitionImage] = {} if before is None else before.partitions
        new: Mapping[int, PartitionImage] = {} if after is None else after.partitions
        for index, was in old.items():
            now = new.get(index)
            if now is not was and (now is None or now != was):
                changes[TopicIdPartition(topic_id, name, index)] = Change(was, now)
            yield
        for index, now in new.items():
            if index not in old:
                changes[TopicIdPartition(topic_id, name, index)] = Change(None, now)
            yield
    return changes
