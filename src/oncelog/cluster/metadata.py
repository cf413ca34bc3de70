"""What a broker knows of topics, settings, users, ACLs and quotas, wherever that comes from."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

from oncelog.cluster.metadata_entries import ScramUser, Topic
from oncelog.cluster.partition_state import PartitionState
from oncelog.controller.topic_rules import unknown_topic
from oncelog.core.ids import NodeId, TopicPartition
from oncelog.security.acl import Acl
from oncelog.security.quotas import Entity
from oncelog.security.scram import ScramCredential

log = logging.getLogger("oncelog.server")


class MetadataChange(NamedTuple):
    """What has been applied, for those who follow the metadata."""

    kind: str
    topic: Topic | None = None
    """The one that it is about, as it is now; one that is deleted, as it was."""


class Metadata:
    """What a broker knows of topics, settings, users and ACLs, and who is told when it changes.

    It comes from the controllers (`image_metadata.ImageMetadata`); at the start of a node that is alone, it is what is
    found in its folder (`metadata_draft.MetadataDraft`).
    """

    def __init__(self) -> None:
        self.followers: list[Callable[[MetadataChange], None]] = []
        """Called with each change."""
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        self.partitions_in_all = 0
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.users: dict[ScramUser, ScramCredential] = {}
        self.acls: dict[Acl, None] = {}
        """A set that keeps its order."""
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.secret: bytes | None = None

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
        raise NotImplementedError

    def leader_of(self, partition: TopicPartition) -> NodeId | None:
        """None when there is no such partition, or no longer."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partition_count:
            return None
        return self.partition_state(topic, partition.partition).leader

    def doubtful_below_epoch(self, topic: Topic) -> int:
        """Batches of the topic with a lower leader epoch were the last of a log that may have lost its end; 0: none."""
        return 0

    def _tell(self, change: MetadataChange) -> None:
        for follower in self.followers:
            try:
                follower(change)
            except Exception:
                log.exception("a change of the metadata is applied, but acting on it failed: %s", change.kind)
