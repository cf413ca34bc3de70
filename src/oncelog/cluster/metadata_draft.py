"""The metadata of one node while it starts: as its controller left it, or as it is found in a folder of another kind.

A folder can have a journal of earlier versions (see `journal`), be one of Apache Kafka's, or have a metadata log that
lost its end. `adoption` then changes the draft, in memory, and `image` is what the controller of the node begins with.
If nothing has changed, the controller goes on with its own log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata import MetadataStore
from oncelog.cluster.metadata_entries import Topic
from oncelog.cluster.node_facts import NodeFacts
from oncelog.controller.acl_changes import acl_record
from oncelog.controller.image import Image
from oncelog.controller.replay import Replay
from oncelog.controller.scram_changes import ScramChange, scram_record
from oncelog.controller.topic_rules import metric_name
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, NodeId
from oncelog.core.worker import InlineWorker
from oncelog.protocol.messages.cluster_metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    TopicRecord,
)
from oncelog.protocol.schema import Message

_SEGMENT_BYTES: Final = "segment.bytes"
_INTERNAL: Final = f"internal.{_SEGMENT_BYTES}"
"""An earlier name for the setting of the coordinators' topics."""


class MetadataDraft(MetadataStore):
    def __init__(self, folder: Path, node_id: NodeId) -> None:
        super().__init__(folder, node_id, InlineWorker())
        self.has_changed = False

    def commit(self, entry: JournalEntry) -> None:
        self._apply_and_tell(entry)
        self.has_changed = True

    def finish_adoption(self) -> None:
        self.is_new = self.is_cut = False
        self.has_changed = True

    @property
    def has_settings(self) -> bool:
        """Whether there is anything beside topics."""
        security = self.users or self.acls or self.quotas
        return bool(security or self.broker_configs or self.next_producer_id)

    @property
    def doubtful_epoch(self) -> int:
        """See `NodeFacts`. All partitions of the topic have the same epoch."""
        topic = self.topics.get(TRANSACTION_STATE_TOPIC)
        return 0 if topic is None else max(0, self.doubtful_below_epoch(topic))

    def begin(self, image: Image | None, known: NodeFacts, *, went_down: bool = False) -> None:
        """With the image of the node's own controller, or with nothing. Epochs of this start are above those in it.

        `went_down`: the machine went down under the broker.
        """
        self.is_new = image is None
        self.incarnation = 0
        self.secret = known.secret
        if image is None:
            return
        self._take(image)
        topic = self.topics.get(TRANSACTION_STATE_TOPIC)
        if went_down:
            self._doubtful_incarnation = self.incarnation
        elif topic is not None and known.doubtful_epoch:
            self._doubtful_incarnation = topic.born + known.doubtful_epoch

    def _take(self, image: Image) -> None:
        epochs = {
            topic_id: 1 + max((partition.leader_epoch for partition in found.partitions.values()), default=-1)
            for topic_id, found in image.topics.items()
        }
        self.incarnation = max(epochs.values(), default=0)
        for found in image.topics.values():
            configs = dict(image.topic_settings(found.name))
            born = self.incarnation - epochs[found.topic_id]
            topic = Topic(found.name, found.topic_id, len(found.partitions), configs, born)
            self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
            self.metric_names[metric_name(topic.name)] = topic.name
            self.partitions_in_all += topic.partition_count
        self.broker_configs = {
            resource.name: dict(configs)
            for resource, configs in image.settings.items()
            if resource.type == ResourceType.BROKER
        }
        self.users, self.acls = scram_users(image), dict.fromkeys(acls_of(image))
        self.quotas = {entity: dict(rates) for entity, rates in image.quotas.items()}
        self.next_producer_id = max(0, image.next_producer_id)

    def image(self, levels: Mapping[str, int], directory_id: UUID, new_uuid: Callable[[], UUID]) -> Image:
        """`levels` are those of the features that the node begins with."""
        replay = Replay()
        for name, level in levels.items():
            replay.apply(FeatureLevelRecord(name=name, feature_level=level))
        for topic in self.topics.values():
            for record in self._of_topic(topic, directory_id):
                replay.apply(record)
        for record in self._others(new_uuid):
            replay.apply(record)
        return replay.image()

    def _of_topic(self, topic: Topic, directory_id: UUID) -> Iterator[Message]:
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        configs = topic.configs
        if topic.name in INTERNAL_TOPICS:
            configs = {_SEGMENT_BYTES if key == _INTERNAL else key: value for key, value in configs.items()}
        yield from _settings(ResourceType.TOPIC, topic.name, configs)
        for index in range(topic.partition_count):
            state = self.partition_state(topic, index)
            yield PartitionRecord(
                partition_id=index,
                topic_id=topic.topic_id,
                replicas=list(state.replicas),
                isr=list(state.in_sync),
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.leader_epoch,
                directories=[directory_id],
            )

    def _others(self, new_uuid: Callable[[], UUID]) -> Iterator[Message]:
        for node, configs in self.broker_configs.items():
            yield from _settings(ResourceType.BROKER, node, configs)
        for user, credential in self.users.items():
            yield scram_record(ScramChange(user.name, user.mechanism, credential), credential)
        for acl in self.acls:
            yield acl_record(acl, new_uuid())
        for entity, rates in self.quotas.items():
            parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
            for key, rate in rates.items():
                yield ClientQuotaRecord(entity=parts, key=key, value=rate)
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)


def _settings(kind: ResourceType, name: str, configs: Mapping[str, str]) -> Iterator[ConfigRecord]:
    for key, value in configs.items():
        yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
