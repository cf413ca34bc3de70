"""What members of a consumer group tell each other through the coordinator: subscriptions and assignments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.client.offsets import by_topic
from oncelog.core.ids import TopicPartition
from oncelog.protocol.compiler import encode_versioned
from oncelog.protocol.messages import consumer_protocol as wire

PROTOCOL_TYPE: Final = "consumer"
_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 0


class Subscription(NamedTuple):
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """What the member holds already; a sticky assignor lets it keep that."""
    generation_id: int = -1
    user_data: bytes = b""


def encode_subscription(subscription: Subscription) -> bytes:
    message = wire.ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data or None,
        owned_partitions=_topics(subscription.owned),
        generation_id=subscription.generation_id,
    )
    return encode_versioned(message, _SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes) -> Subscription:
    message = wire.decode_subscription(data)
    owned = tuple(TopicPartition(topic.topic, n) for topic in message.owned_partitions for n in topic.partitions)
    return Subscription(tuple(message.topics), owned, message.generation_id, bytes(message.user_data or b""))


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    message = wire.ConsumerProtocolAssignment(assigned_partitions=_topics(partitions))
    return encode_versioned(message, _ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    message = wire.decode_assignment(data)
    return [TopicPartition(topic.topic, n) for topic in message.assigned_partitions for n in topic.partitions]


def _topics(partitions: Iterable[TopicPartition]) -> list[wire.TopicPartition]:
    return [wire.TopicPartition(topic=topic, partitions=sorted(n)) for topic, n in sorted(by_topic(partitions).items())]
