"""The metadata of a broker in a cluster: what its controllers have decided, up to some offset of their log.

Nothing is changed here. Changes are sent to the controller, and come back with the metadata log.
"""

from __future__ import annotations

from itertools import chain, groupby
from typing import Final

from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.metadata import Metadata, MetadataChange
from oncelog.cluster.metadata_entries import Topic
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.delta import Delta
from oncelog.controller.image import EMPTY_IMAGE, Image, TopicImage
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.topic_settings import known_settings

_GONE: Final = PartitionState(NodeId(-1), LeaderEpoch(-1), replicas=(), in_sync=())


class ImageMetadata(Metadata):
    def __init__(self) -> None:
        super().__init__()
        self.image: Image = EMPTY_IMAGE
        self.doubtful_epoch = 0
        """Of the transaction coordinator's topic, see `doubtful_below_epoch`."""

    def become(self, image: Image, delta: Delta) -> None:
        """What handlers see changes at once, before anything acts on it."""
        self.image = image
        for topic_id, change in delta.topics.items():
            if change.after is None and (gone := self.topics_by_id.pop(topic_id, None)) is not None:
                self.topics.pop(gone.name, None)
                self.partitions_in_all -= gone.partition_count
        names = (resource.name for resource in delta.settings if resource.type == ResourceType.TOPIC)
        configured = (image.topic_ids[name] for name in names if name in image.topic_ids)
        # The partitions of a topic follow each other. An id is hashed once for all of them, which takes its time.
        grown = (topic_id for topic_id, _ in groupby(key.topic_id for key in delta.partitions))
        for topic_id in dict.fromkeys(chain(grown, configured)):
            if topic_id not in image.topics:
                continue
            topic, before = self._topic(image.topics[topic_id]), self.topics_by_id.get(topic_id)
            self.topics[topic.name] = self.topics_by_id[topic_id] = topic
            self.partitions_in_all += topic.partition_count - (0 if before is None else before.partition_count)
        if any(resource.type == ResourceType.BROKER for resource in delta.settings):
            self.broker_configs = {
                resource.name: known_settings(BROKER_CONFIG, configs, f"broker {resource.name}".strip())
                for resource, configs in image.settings.items()
                if resource.type == ResourceType.BROKER
            }
        if delta.scram:
            self.users = scram_users(image)
        if delta.acls:
            self.acls = dict.fromkeys(acls_of(image))
        if delta.quotas:
            self.quotas.clear()
            self.quotas |= {entity: dict(rates) for entity, rates in image.quotas.items()}

    def tell(self, delta: Delta) -> None:
        """Those who follow learn of settings, users, ACLs and quotas."""
        if any(resource.type == ResourceType.BROKER for resource in delta.settings):
            self._tell(MetadataChange("broker_config"))
        for resource in delta.settings:
            topic = self.topics.get(resource.name) if resource.type == ResourceType.TOPIC else None
            if topic is not None:
                self._tell(MetadataChange("topic_config", topic))
        if delta.acls:
            self._tell(MetadataChange("acls"))
        if delta.scram:
            self._tell(MetadataChange("users"))
        if delta.quotas:
            self._tell(MetadataChange("quotas"))

    def _topic(self, image: TopicImage) -> Topic:
        configs = known_settings(TOPIC_CONFIG, self.image.topic_settings(image.name), f"topic {image.name}")
        return Topic(image.name, image.topic_id, len(image.partitions), configs)

    def partition_state(self, topic: Topic, index: int) -> PartitionState:
        """Without a leader for one that was deleted meanwhile."""
        known = self.image.topics.get(topic.topic_id)
        found = None if known is None else known.partitions.get(index)
        return _GONE if found is None else PartitionState.from_image(found)

    def doubtful_below_epoch(self, topic: Topic) -> int:
        return self.doubtful_epoch
