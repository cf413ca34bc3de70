"""One Fetch request for several partitions of one leader, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from oncelog.client.connection import Connection
from oncelog.client.errors import error_of
from oncelog.client.visibility import IsolationLevel
from oncelog.core.config import ConfigKey, ConfigType, setting
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

_WAIT: Final = ConfigKey("fetch.max.wait.ms", ConfigType.INT, 500, "How long it waits for fetch.min.bytes.", low=0)
_LEAST: Final = ConfigKey("fetch.min.bytes", ConfigType.INT, 1, "Bytes that a broker waits for.", low=0)
_MOST: Final = ConfigKey("fetch.max.bytes", ConfigType.INT, 52_428_800, "Bytes of one answer.", low=1)
_OF_ONE: Final = ConfigKey(
    "max.partition.fetch.bytes", ConfigType.INT, 1_048_576, "Bytes of one partition in an answer.", low=1
)
RACK: Final = ConfigKey(
    "client.rack", ConfigType.STRING, "", "The rack of the consumer: it may be sent to a follower there (KIP-392)."
)
FETCH_KEYS: Final = (_LEAST, _WAIT, _MOST, _OF_ONE)
NO_SESSION_EPOCH: Final = -1
CHUNK_BYTES_MAX: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class FetchSettings:
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    max_wait_ms: int = setting(_WAIT)
    min_bytes: int = setting(_LEAST)
    max_bytes: int = setting(_MOST)
    partition_max_bytes: int = setting(_OF_ONE)
    rack: str = setting(RACK)

    def grown(self) -> FetchSettings:
        """Larger limits, for when not even one batch fitted into an answer."""
        larger = max(self.partition_max_bytes, min(self.partition_max_bytes * 2, CHUNK_BYTES_MAX))
        return replace(self, partition_max_bytes=larger, max_bytes=max(self.max_bytes, larger))


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
        rack_id=settings.rack,
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
