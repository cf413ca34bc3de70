"""What a broker knows of topics, settings, users, ACLs and quotas: what its controllers have decided, up to some offset
of their log.

Nothing is changed here. Changes are sent to the controller, and come back with the metadata log.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.delta import Delta
from oncelog.controller.image import EMPTY_IMAGE, Image, TopicImage
from oncelog.controller.topic_rules import unknown_topic
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config_resources import ResourceType
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import LeaderEpoch, NodeId, TopicPartition
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import known_settings
from oncelog.security.acl import Acl
from oncelog.security.quotas import Entity

if TYPE_CHECKING:
    from oncelog.controller.partition_image import PartitionImage
    from oncelog.security.scram import ScramCredential, ScramUser

_GONE: Final = PartitionState(NodeId(-1), LeaderEpoch(-1), replicas=(), in_sync=())


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)


class Metadata:
    def __init__(self) -> None:
        self.image: Image = EMPTY_IMAGE
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.users: dict[ScramUser, ScramCredential] = {}
        self.acls: dict[Acl, None] = {}
        """A set that keeps its order."""
        self.quotas: dict[Entity, dict[str, float]] = {}
        # What a node that is alone knows for itself, see `node_facts`.
        self.secret: bytes | None = None
        self.doubtful_epoch = 0

    def forget_deleted(self, delta: Delta) -> list[Topic]:
        """Deleted topics are gone for handlers, who open no partition of them any more. New ones of the same name come
        with `become`, when nothing is left of these."""
        deleted = []
        for topic_id, change in delta.topics.items():
            if change.after is None and (gone := self.topics_by_id.pop(topic_id, None)) is not None:
                self.topics.pop(gone.name, None)
                deleted.append(gone)
        return deleted

    def become(self, image: Image, delta: Delta) -> None:
        """What handlers see changes at once, before anything acts on it. Deleted topics are forgotten by then."""
        self.image = image
        names = (resource.name for resource in delta.settings if resource.type == ResourceType.TOPIC)
        configured = (image.topic_ids[name] for name in names if name in image.topic_ids)
        # The partitions of a topic follow each other. An id is hashed once for all of them, which takes its time.
        changed = (topic_id for topic_id, _ in groupby(key.topic_id for key in delta.partitions))
        for topic_id in dict.fromkeys(chain(changed, configured)):
            if (found := image.topics.get(topic_id)) is not None:
                topic = self._topic(found)
                self.topics[topic.name] = self.topics_by_id[topic_id] = topic
        if delta.has_broker_settings:
            self.broker_configs = broker_configs(image)
        if delta.scram:
            self.users = scram_users(image)
        if delta.acls:
            self.acls = dict.fromkeys(acls_of(image))
        if delta.quotas:
            self.quotas.clear()
            self.quotas |= {entity: dict(rates) for entity, rates in image.quotas.items()}

    def _topic(self, image: TopicImage) -> Topic:
        settings = self.image.topic_settings(image.name)
        configs = known_settings(TOPIC_CONFIG, settings, f"topic {image.name}") if settings else {}
        return Topic(image.name, image.topic_id, len(image.partitions), configs)

    def has_partition(self, topic: str, index: int) -> bool:
        known = self.topics.get(topic)
        return known is not None and 0 <= index < known.partition_count

    def require(self, topic: str) -> Topic:
        """Raises UNKNOWN_TOPIC_OR_PARTITION."""
        known = self.topics.get(topic)
        if known is None:
            raise unknown_topic()
        return known

    def ids_of(self, names: Iterable[str]) -> dict[str, uuid.UUID]:
        """The ids of those topics that exist, by name."""
        return {name: self.topics[name].topic_id for name in names if name in self.topics}

    def partition_state(self, topic: Topic, index: int) -> PartitionState:
        """Who leads and keeps a partition. One that was deleted meanwhile has no leader."""
        return state_of(self.partitions_of(topic).get(index))

    def partitions_of(self, topic: Topic) -> Mapping[int, PartitionImage]:
        """As they are now: what is returned does not change. Nothing for a topic that was deleted meanwhile."""
        known = self.image.topics.get(topic.topic_id)
        return {} if known is None else known.partitions

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None when there is no such partition, or no longer."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partition_count:
            return None
        return self.partition_state(topic, partition.partition).leader


def state_of(image: PartitionImage | None) -> PartitionState:
    return _GONE if image is None else PartitionState.from_image(image)


def broker_configs(image: Image) -> dict[str, dict[str, str]]:
    """The settings of brokers that mean something here, by their number, "" for all."""
    return {
        resource.name: known_settings(BROKER_CONFIG, configs, f"broker {resource.name}".strip())
        for resource, configs in image.settings.items()
        if resource.type == ResourceType.BROKER
    }
