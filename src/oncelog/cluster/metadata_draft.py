"""The metadata with which the controller of one node begins, while its start finds out what that is.

It is the image of the node's own log; or what a journal of earlier versions amounts to (`journal_entries`); or nothing,
in a folder that is new, that Apache Kafka has used, or that has lost its metadata. `adoption` compares it with the logs
and adds what is missing. If nothing has changed by then, the controller goes on with its log as it is. Else it begins
anew with the draft, as `led_by` this node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from oncelog.cluster.node_facts import NodeFacts
from oncelog.controller.image import EMPTY_IMAGE, Image, TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.replay import Replay
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import TRANSACTION_STATE_TOPIC, LeaderEpoch, NodeId
from oncelog.protocol.messages.cluster_metadata import ConfigRecord, PartitionRecord, ProducerIdsRecord, TopicRecord
from oncelog.protocol.schema import Message

PRODUCER_IDS_APART: Final = 1 << 40
"""More than are handed out in practice. Where the last one handed out is not known, the next multiple comes next."""

log = logging.getLogger("oncelog.server")


class MetadataDraft:
    def __init__(self, image: Image | None, known: NodeFacts, *, went_down: bool = False) -> None:
        """Without an image the folder has no metadata of Oncelog. `went_down`: the machine went down while the broker
        ran."""
        self.image = image or EMPTY_IMAGE
        """With the leader epochs of before this start."""
        self.is_new = image is None
        self.is_cut = False
        """Whether it has lost its end, and `finish_adoption` has not made up for it yet."""
        self.has_changed = False
        self.secret = known.secret
        self._known_doubtful_epoch = known.doubtful_epoch
        self._went_down = went_down
        self._lost_epochs = 0

    def apply(self, records: Iterable[Message]) -> None:
        replay = Replay(self.image)
        for record in records:
            replay.apply(record)
        self.image = replay.image()
        self.has_changed = True

    def mark_cut(self, reason: str) -> None:
        log.warning(
            "the metadata has lost its end: %s. Producer ids and epochs go on above all that the logs know; "
            "topics and partitions that it does not know are taken over, without their settings. Other settings, users "
            "and ACLs may be those of before a change: check retention, and who may do what", reason,
        )  # fmt: skip
        self.is_cut = True

    def finish_adoption(self) -> None:
        self.is_new = self.is_cut = False
        self.has_changed = True

    # Numbers that are never given out twice

    def epoch_of(self, topic: TopicImage) -> LeaderEpoch:
        """The leader epoch of all partitions of a topic, above those of before."""
        before = max((partition.leader_epoch for partition in topic.partitions.values()), default=-1)
        return LeaderEpoch(before + 1 + self._lost_epochs)

    def go_above(self, epochs: Mapping[str, int]) -> None:
        """Epochs of topics that were seen. Each start has given all topics a new one: one that it is behind with tells
        how many starts are lost."""
        known = ((self.image.topic(name), seen) for name, seen in epochs.items())
        lost = max((seen + 1 - self.epoch_of(topic) for topic, seen in known if topic is not None), default=0)
        if lost > 0:
            self._lost_epochs += lost
            self.has_changed = True

    @property
    def doubtful_epoch(self) -> int:
        """See `NodeFacts`."""
        topic = self.image.topic(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return 0
        return self.epoch_of(topic) if self._went_down else self._known_doubtful_epoch

    def has_given_out(self, producer_id: int) -> bool:
        """Whether a producer id may have been given out: it is in a reserved block."""
        return producer_id < max(0, self.image.next_producer_id)

    def skip_producer_ids_above(self, highest: int) -> None:
        """Give out no id up to `highest`, which is in use. Nothing changes if that is the case anyway.

        While it is not known which ones were given out, there may be others above it.
        """
        if not self.has_given_out(highest) or self.is_new or self.is_cut:
            self.apply(skipped_producer_ids(max(highest, self.image.next_producer_id), self.image))

    # What the controller begins with

    def led_by(self, node_id: NodeId, directory_id: UUID, levels: Mapping[str, int]) -> Image:
        """All partitions are led by this node, and have no other replica. `levels` are those of its features."""
        topics = {topic.topic_id: self._led(topic, node_id, directory_id) for topic in self.image.topics.values()}
        return replace(
            self.image, features=dict(levels), brokers={}, controllers={}, delegation_tokens={}, topics=topics
        )

    def _led(self, topic: TopicImage, node_id: NodeId, directory_id: UUID) -> TopicImage:
        epoch, alone = self.epoch_of(topic), (node_id,)
        led = PartitionImage(
            replicas=alone,
            directories=(directory_id,),
            isr=alone,
            removing_replicas=(),
            adding_replicas=(),
            elr=(),
            last_known_elr=(),
            leader=node_id,
            is_recovering=False,
            leader_epoch=epoch,
            partition_epoch=epoch,
        )
        return replace(topic, partitions=dict.fromkeys(topic.partitions, led))


def found_topic(
    name: str, topic_id: UUID, partition_count: int, leader_epoch: int, configs: Mapping[str, str]
) -> Iterator[Message]:
    """The records of a topic that was found in folders. `leader_epoch` is its last one, -1 if none is known."""
    yield TopicRecord(name=name, topic_id=topic_id)
    for index in range(partition_count):
        yield found_partition(topic_id, index, leader_epoch)
    yield from config_records(ResourceType.TOPIC, name, configs)


def found_partition(topic_id: UUID, index: int, leader_epoch: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index, topic_id=topic_id, leader=-1, leader_epoch=leader_epoch, partition_epoch=leader_epoch
    )


def config_records(kind: ResourceType, name: str, configs: Mapping[str, str]) -> Iterator[ConfigRecord]:
    for key, value in configs.items():
        yield ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def skipped_producer_ids(highest: int, image: Image) -> list[Message]:
    """Where producer ids go on if `highest` was given out and others above it may have been."""
    if highest < image.next_producer_id:
        return []
    following = (highest // PRODUCER_IDS_APART + 1) * PRODUCER_IDS_APART
    return [ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=following)]
