"""One Fetch request for several partitions of one leader, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from oncelog.client.connection import Connection
from oncelog.client.errors import error_of
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

FETCH_MAX_BYTES: Final = 50 * 1024 * 1024
PARTITION_MAX_BYTES: Final = 1024 * 1024
NO_SESSION_EPOCH: Final = -1


class FetchSettings(NamedTuple):
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = FETCH_MAX_BYTES
    partition_max_bytes: int = PARTITION_MAX_BYTES


async def fetch(
    connection: Connection,
    positions: Mapping[TopicPartition, int],
    settings: FetchSettings,
    request_timeout_ms: float,
) -> dict[TopicPartition, PartitionData]:
    """Ask one broker for data from each position. Raises ConnectionLost, or KafkaError for the request as a whole."""
    topics: dict[str, list[FetchPartition]] = {}
    for partition, offset in positions.items():
        topics.setdefault(partition.topic, []).append(
            FetchPartition(
                partition=partition.partition, fetch_offset=offset, partition_max_bytes=settings.partition_max_bytes
            )
        )
    request = FetchRequest(
        max_wait_ms=settings.max_wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=settings.max_bytes,
        isolation_level=settings.isolation,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )
    response = await connection.call(request, FetchResponse, timeout_ms=request_timeout_ms + settings.max_wait_ms)
    if response.error_code:
        raise error_of(response.error_code, f"fetch from {connection}")
    return {
        TopicPartition(topic.topic, partition.partition_index): partition
        for topic in response.responses
        for partition in topic.partitions
    }
