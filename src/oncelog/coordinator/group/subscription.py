"""The little that the broker reads of the consumers' own protocol: which topics a member subscribes to."""

from __future__ import annotations

from typing import Final

from oncelog.protocol.compiler import decode, read_version
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.primitives import MalformedRequest

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_VERSION_BYTES: Final = 2


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics, or None when the bytes are not a consumer's subscription.

    Every version starts like version 0, so that is what is read: later fields are none of the broker's business and
    a version that is still to come is understood as well.
    """
    try:
        read_version(subscription)
        return frozenset(decode(ConsumerProtocolSubscription, 0, subscription, _VERSION_BYTES).topics)
    except MalformedRequest:
        return None
