"""Nominal types for ids, epochs and offsets, and Kafka's text form of a UUID."""

from __future__ import annotations

import base64
import uuid
from typing import Final, NewType

from oncelog.core.named_tuple import NamedTuple

NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
CoordinatorEpoch = NewType("CoordinatorEpoch", int)
Offset = NewType("Offset", int)

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_COORDINATOR_EPOCH: Final = CoordinatorEpoch(-1)
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = Offset(-1)

SEQUENCE_MAX: Final = 2**31 - 1
EPOCH_MAX: Final = 2**15 - 1
"""Reserved so that a coordinator can always fence once more: a client is never handed this epoch."""
EPOCH_EXHAUSTED: Final = EPOCH_MAX - 1

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})

NULL_UUID: Final = uuid.UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition; as text `topic-partition`, as its folder is named."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """Who writes: an id that a broker gave out, in an epoch. Older epochs of the id are fenced."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    @classmethod
    def of(cls, producer_id: int, epoch: int) -> ProducerIdAndEpoch:
        """From the numbers of a message."""
        return cls(ProducerId(producer_id), ProducerEpoch(epoch))


NO_IDENTITY: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def uuid_to_text(value: uuid.UUID) -> str:
    """URL-safe base64 without padding, 22 characters, as in partition.metadata and meta.properties."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a 22-character base64 UUID")
    return uuid.UUID(bytes=raw)


def next_sequence(sequence: int, increment: int = 1) -> int:
    """Sequence numbers wrap from 2147483647 to 0."""
    following = sequence + increment
    return following if following <= SEQUENCE_MAX else following - SEQUENCE_MAX - 1
