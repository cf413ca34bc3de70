"""The client of one process, driver or Python worker: its connections are kept from task to task and batch to batch."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from oncelog.client.admin_configs import ConfigAdmin, ConfigResource, ResourceType
from oncelog.client.admin_topics import NewTopic, TopicAdmin
from oncelog.client.blocking import Blocking
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.errors import KafkaError
from oncelog.client.fetch import FetchSettings
from oncelog.client.fetcher import FetchedChunk, RangeFetcher
from oncelog.client.offsets import OffsetAndMetadata, fetch_offsets
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.spark.planning import OffsetRange

logger = logging.getLogger(__name__)

T = TypeVar("T")
COUNT_AGE_S = 10.0
"""How long a worker may take a number of partitions for granted: keys move soon after partitions are added."""
POLICY_AGE_S = 60.0
"""The same for the cleanup policy of a topic, which hardly ever changes."""


class WorkerClient(Blocking):
    """Blocking look-ups and reads over the shared connections of this process."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._topics = TopicAdmin(self.cluster)
        self._configs = ConfigAdmin(self.cluster)
        self._counts: dict[str, tuple[int, float]] = {}
        self._compacted: dict[str, tuple[bool, float]] = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._run(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.submit(coroutine)

    def _deadline(self) -> Deadline:
        return Deadline(self.config.default_api_timeout_ms)

    def create_topics(self, partition_counts: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Create topics that are not there yet."""
        wanted = [NewTopic(name, count, configs=configs or {}) for name, count in partition_counts.items()]
        self._run(self._topics.create_topics(wanted, if_not_exists=True))

    def partition_count(self, topic: str) -> int:
        """Not older than COUNT_AGE_S; 0 when there is no such topic."""
        count, asked_s = self._counts.get(topic, (0, 0.0))
        if time.monotonic() - asked_s > COUNT_AGE_S:
            count = len(self.partitions_of([topic]).get(topic, ()))
            self._counts[topic] = (count, time.monotonic())
        return count

    def is_internal(self, topic: str) -> bool:
        """Whether a topic is the cluster's own, as far as it is known from a look-up of its partitions."""
        known = self.cluster.topics.get(topic)
        return known is not None and known.is_internal

    def is_compacted(self, topic: str) -> bool:
        """Not older than POLICY_AGE_S. False when we are not told."""
        compacted, asked_s = self._compacted.get(topic, (False, -POLICY_AGE_S))
        if time.monotonic() - asked_s > POLICY_AGE_S:
            compacted = "compact" in self._cleanup_policy(topic)
            self._compacted[topic] = (compacted, time.monotonic())
        return compacted

    def _cleanup_policy(self, topic: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self._run(self._configs.describe_configs(resource, ["cleanup.policy"]))
        except KafkaError as error:
            # One may be allowed to write to a topic and not to see its settings: then the broker judges the rows.
            logger.warning("the settings of topic %s cannot be seen: %s", topic, error)
            return ""
        entry = found.get("cleanup.policy")
        return "" if entry is None else entry.value or ""

    def partitions_of(self, topics: Collection[str] | None) -> dict[str, list[TopicPartition]]:
        """The partitions of the named topics, or of all, as they are now. Topics that do not exist are left out."""
        if topics is None:
            known = self._run(self._topics.list_topics())
        else:
            self._run(self.cluster.refresh(topics, self._deadline()))
            known = {name: self.cluster.topics[name] for name in topics if name in self.cluster.topics}
        return {name: [TopicPartition(name, p.partition) for p in info.partitions] for name, info in known.items()}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """For -1 the latest offset this isolation level sees, for -2 the earliest, else the first at or after a time
        in milliseconds; -1 where no record is that young."""
        found = self._run(self._topics.list_offsets(wanted, isolation=isolation))
        return {partition: result.offset for partition, result in found.items()}

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group, after open transactions on them have ended."""
        return self._run(fetch_offsets(self.cluster, group_id, None, self._deadline()))

    def read(self, wanted: OffsetRange, settings: FetchSettings) -> Iterator[FetchedChunk]:
        """Whole answers of the broker for a range, the next one fetched while the caller works on the last."""
        fetcher = RangeFetcher(self.cluster, wanted.partition, wanted.start, wanted.end, settings=settings)
        chunks = cast("AsyncGenerator[FetchedChunk]", fetcher.chunks())
        try:
            while (chunk := self._run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._run(_close(chunks))


async def _next(chunks: AsyncGenerator[FetchedChunk]) -> FetchedChunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncGenerator[FetchedChunk]) -> None:
    await chunks.aclose()


def worker_client(config: ClientConfig) -> WorkerClient:
    """The client of this process for these settings; closed when the process ends."""
    return _cached(config, os.getpid())


@functools.lru_cache(maxsize=8)
def _cached(config: ClientConfig, _: int) -> WorkerClient:
    return WorkerClient(config)
