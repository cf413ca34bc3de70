"""Records and images for tests."""

from __future__ import annotations

import uuid
from typing import Any

from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.replay import Replay
from oncelog.core.ids import NULL_UUID
from oncelog.protocol.messages.broker_registration import Feature, Listener
from oncelog.protocol.messages.cluster_metadata import (
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from oncelog.protocol.schema import Message

TOPIC = uuid.UUID(int=1001)
OTHER_TOPIC = uuid.UUID(int=1002)
DIRECTORIES = [uuid.UUID(int=501), uuid.UUID(int=502), uuid.UUID(int=503)]
LEVEL_30 = FeatureLevelRecord(name="metadata.version", feature_level=30)


def image_of(*records: Message, before: Image = EMPTY_IMAGE) -> Image:
    replay = Replay(before)
    for record in records:
        replay.apply(record)
    return replay.image()


def topic(name: str = "orders", topic_id: uuid.UUID = TOPIC) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(index: int = 0, topic_id: uuid.UUID = TOPIC, **fields: Any) -> PartitionRecord:
    values: dict[str, Any] = {
        "replicas": [1, 2, 3],
        "isr": [1, 2, 3],
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": DIRECTORIES,
    }
    return PartitionRecord(partition_id=index, topic_id=topic_id, **(values | fields))


def broker(broker_id: int = 1, epoch: int = 10, **fields: Any) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=NULL_UUID,
        end_points=[Listener(name="PLAINTEXT", host="127.0.0.1", port=9092)],
        features=[Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)],
        **fields,
    )
