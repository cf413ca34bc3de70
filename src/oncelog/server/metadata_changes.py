"""What a change of the metadata does to a broker: to its topics, settings, ACLs, partitions and coordinators.

It is the only way in which they change, on a node that is alone as in a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog.cluster.adoption import is_of_topic
from oncelog.cluster.metadata import Topic
from oncelog.cluster.partition import Partition
from oncelog.cluster.partition_state import PartitionState, Role
from oncelog.controller.delta import TopicIdPartition
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.steps import at_once
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.controller.delta import Delta
    from oncelog.controller.image import Image
    from oncelog.server.broker import Broker
    from oncelog.server.replication import Replication


class MetadataChanges:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def apply(self, image: Image, delta: Delta) -> Steps[None]:
        """In this order: partitions of deleted topics go; what is answered from, settings and ACLs, roles, topics that
        groups have offsets of. In between others have their turn, since all of that may be about thousands of
        partitions. It is to be gone through to its end before the next image."""
        metadata, replication = self._broker.metadata, self._broker.replication
        invariant(replication is not None, "an image is applied once the broker has joined")
        if replication is None:
            return
        is_first = not metadata.image.brokers and not metadata.image.features
        deleted = metadata.forget_deleted(delta)
        yield from self._remove_topics(deleted, replication)
        metadata.become(image, delta)
        if is_first:
            self._set_strays_aside()
        yield from self._follow_settings(delta)
        self._broker.transactions.follow_features(image.features)
        yield from replication.take_roles(image, delta)
        for topic in deleted:
            self._broker.groups.on_topic_deleted(topic)
        if deleted:
            self._broker.cleaner.on_topics_deleted({topic.name for topic in deleted})

    def _remove_topics(self, topics: Sequence[Topic], replication: Replication) -> Steps[None]:
        keys = []
        for topic in topics:
            for index in range(topic.partition_count):
                key = TopicPartition(topic.name, index)
                if key in self._broker.log_dir.logs:
                    replication.follow_none(TopicIdPartition(topic.topic_id, *key))
                    keys.append(key)
                yield
        yield from self.remove_partitions(keys)

    def _set_strays_aside(self) -> None:
        """Logs of topics that are gone, or that other brokers keep now: before a new one of the same name is made."""
        metadata, log_dir = self._broker.metadata, self._broker.log_dir
        # A node that is alone knows all topics of its folder, and has renamed what was deleted before a clean stop.
        doubtful = {} if not self._broker.is_in_cluster and log_dir.was_clean else log_dir.logs
        for partition, found in list(doubtful.items()):
            topic = metadata.topics.get(partition.topic)
            is_ours = (
                topic is not None
                and is_of_topic(found, topic.topic_id)
                and metadata.has_partition(*partition)
                and metadata.partition_state(topic, partition.partition).role_of(self._broker.node_id) is not Role.NONE
            )
            if not is_ours:
                log_dir.set_aside(partition)
        for name in dict.fromkeys(partition.topic for partition in log_dir.logs):
            at_once(self._broker.partitions.reconfigure(metadata.topics[name]))

    def _follow_settings(self, delta: Delta) -> Steps[None]:
        """And ACLs and quotas."""
        topics = self._broker.metadata.topics
        if delta.has_broker_settings:
            self._broker.adopt_settings()
            changed = list(topics)
        else:
            changed = [each.name for each in delta.settings if each.type == ResourceType.TOPIC and each.name in topics]
        for name in changed:
            yield from self._broker.partitions.reconfigure(topics[name])
        if delta.acls and self._broker.acls is not None:
            self._broker.acls.become(self._broker.metadata.acls)
        if delta.quotas:
            self._broker.quotas.changed()

    def take_role(self, partition: TopicPartition, state: PartitionState) -> Partition | None:
        """The metadata has changed. Coordinators follow the leadership of the partitions of their topics.

        Returns the partition, if it is kept here. Raises KafkaError or OSError if it cannot take its role.
        """
        kept = self._broker.partitions.opened(*partition)
        if kept is None and not self._broker.is_in_cluster and not self._has_coordinator(partition):
            # As `Replication._has_role_when_used`. Coordinators load theirs at their start.
            return None
        is_new_epoch = kept is None or state.leader_epoch != kept.leader_epoch
        if kept is not None:
            kept.become(state, self._broker.steady_ms())
        else:
            kept = self._broker.partitions.find(*partition)
        if kept is not None and (is_new_epoch or self._broker.has_started):
            # Also in the same epoch: one that has failed here is given its role again, and may be open by then.
            for coordinator in (self._broker.transactions, self._broker.groups):
                coordinator.shards.follow(kept)
        return kept

    def _has_coordinator(self, partition: TopicPartition) -> bool:
        is_internal = self._broker.has_started and partition.topic in INTERNAL_TOPICS
        return is_internal and self._broker.partitions.has_data(*partition)

    def remove_partitions(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """The topic is deleted, or other brokers keep these partitions now."""
        if not partitions:
            return
        closing = yield from self._broker.partitions.remove(partitions)
        for partition in partitions:
            if partition.topic in INTERNAL_TOPICS:
                for coordinator in (self._broker.transactions, self._broker.groups):
                    coordinator.shards.forget(partition)
        self._broker.removals.begin(closing)
