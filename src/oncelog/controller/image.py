"""Everything that the metadata log says, up to some offset. An image is never changed: `replay` makes the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final
from uuid import UUID

from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.registrations import BrokerRegistration
from oncelog.core.config_resources import ResourceType
from oncelog.core.dataclass import dataclass
from oncelog.core.features import METADATA_VERSION
from oncelog.core.ids import NodeId
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.cluster_metadata import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)

METADATA_VERSION_MIN: Final = 7
"""3.3-IV3, the oldest that Kafka 4 reads; so is a log that does not name its level."""


class ConfigResource(NamedTuple):
    """What settings belong to. A broker's name is its id; without a name, it stands for all brokers."""

    type: int
    name: str


class ScramCredentialKey(NamedTuple):
    name: str
    mechanism: int


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types with names, sorted by type: (("client-id", None), ("user", "alice")). Without a name it is the default."""


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class Image:
    """The metadata of a cluster at one offset. An entry that has nothing beyond its record is the record itself."""

    features: Mapping[str, int] = field(default_factory=dict)
    """Finalised levels; a feature at 0 is not in it."""
    brokers: Mapping[NodeId, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[NodeId, RegisterControllerRecord] = field(default_factory=dict)
    topics: Mapping[UUID, TopicImage] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    similar_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics that Kafka's metrics might not tell apart, by their `topic_rules.metric_name`."""
    settings: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    next_producer_id: int = -1
    """The first of the next block; -1 before the first one is given out."""
    acls: Mapping[UUID, AccessControlEntryRecord] = field(default_factory=dict)
    scram: Mapping[ScramCredentialKey, UserScramCredentialRecord] = field(default_factory=dict)
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)
    entry_bytes: int = field(default=0, compare=False)
    """An estimate of what settings, quotas, ACLs and users take in memory: see `entry_sizes`."""

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION, METADATA_VERSION_MIN)

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        return self.settings.get(ConfigResource(ResourceType.TOPIC, topic), {})


EMPTY_IMAGE: Final = Image()
