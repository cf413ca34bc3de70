"""Which partitions a client may keep offsets for: one way for OffsetCommit, TxnOffsetCommit and OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncelog.core.errors import ErrorCode
from oncelog.server.authorization import Operation, Resource
from oncelog.server.context import RequestContext

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

Refusal = Callable[[int], ErrorCode]
"""What refuses a partition of a topic, or NONE."""


def refusal_of(broker: Broker, context: RequestContext, topic: str) -> Refusal:
    if not context.permits(Operation.READ, Resource.TOPIC, topic):
        return refuse_all(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    has_partition, unknown = broker.metadata.has_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return lambda index: ErrorCode.NONE if has_partition(topic, index) else unknown


def refuse_all(error: ErrorCode) -> Refusal:
    return lambda _: error
