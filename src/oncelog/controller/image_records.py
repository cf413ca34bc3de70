"""From an image to the records that make it again, as a snapshot has them.

The order is Kafka's: metadata.version first, since it tells which versions of records follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

from oncelog.controller.image import Image, TopicImage
from oncelog.core.features import METADATA_VERSION
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterBrokerRecord,
    TopicRecord,
)
from oncelog.protocol.schema import Message

_LEVELS: Final[dict[type[Message], tuple[tuple[int, int], ...]]] = {
    RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (0, 1)),
    PartitionRecord: ((23, 2), (17, 1), (0, 0)),
    PartitionChangeRecord: ((23, 2), (17, 1), (0, 0)),
}
"""Pairs of metadata.version and the record version that is written from it on, newest first. Other records have one
version, or that of the fields that they carry."""


class VersionedRecord(NamedTuple):
    message: Message
    version: int


def image_records(image: Image) -> Iterator[VersionedRecord]:
    for message in _messages(image):
        yield versioned(message, image.metadata_version)


def versioned(message: Message, level: int) -> VersionedRecord:
    """A record in the version that is written at a level of metadata.version."""
    if type(message) is BrokerRegistrationChangeRecord:
        return VersionedRecord(message, _change_version(message))
    return VersionedRecord(message, _version(type(message), level))


@lru_cache
def _version(cls: type[Message], level: int) -> int:
    return next(version for since, version in _LEVELS.get(cls, ((0, 0),)) if level >= since)


def _change_version(change: BrokerRegistrationChangeRecord) -> int:
    """The lowest that has its fields."""
    if change.cordoned_log_dirs is not None:
        return 3
    if change.log_dirs:
        return 2
    return int(bool(change.in_controlled_shutdown))


def _messages(image: Image) -> Iterator[Message]:
    for name in sorted(image.features, key=lambda name: name != METADATA_VERSION):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield broker.to_record()
    yield from image.controllers.values()
    for topic in image.topics.values():
        yield from _of_topic(topic)
    for resource, settings in image.settings.items():
        for key, value in settings.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=key, value=value)
    yield from quota_records(image)
    if image.next_producer_id >= 0:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from chain(image.acls.values(), image.scram.values(), image.delegation_tokens.values())


def _of_topic(topic: TopicImage) -> Iterator[Message]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for index, partition in topic.partitions.items():
        yield partition.to_record(topic.topic_id, index)


def quota_records(image: Image) -> Iterator[Message]:
    for entity, quotas in image.quotas.items():
        parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, value in quotas.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=value)
