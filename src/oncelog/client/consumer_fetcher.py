"""Keeps the next chunk of every assigned partition at hand: one request at a time to each leader that has something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import PartitionPosition, Positions
from oncelog.client.errors import ErrorCode, KafkaError, error_of, is_retriable
from oncelog.client.fetch import fetch
from oncelog.client.fetcher import NO_END, chunk_of
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import PartitionData


class ConsumerFetcher:
    """Memory is bounded: a partition with a chunk at hand is not asked for more."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        positions: Positions,
        *,
        changed: Callable[[], None],
        out_of_range: Callable[[PartitionPosition], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._positions = positions
        self._changed = changed
        self._out_of_range = out_of_range
        self._failed = failed
        self._settings = config.fetch
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._closed = False

    def look(self) -> None:
        """Start requests for all that can be fetched and is not being fetched."""
        if self._closed:
            return
        wanted: dict[int, dict[TopicPartition, PartitionPosition]] = {}
        leaderless = []
        for entry in self._positions:
            if not entry.fetchable:
                continue
            leader = self._cluster.routes.leader(entry.partition)
            if leader is None:
                leaderless.append(entry.partition)
            elif leader.node_id not in self._busy:
                wanted.setdefault(leader.node_id, {})[entry.partition] = entry
        for node_id, entries in wanted.items():
            self._busy[node_id] = asyncio.create_task(self._fetch_from(node_id, entries))
        if leaderless and self._finding is None:
            self._finding = asyncio.create_task(self._find_leaders({partition.topic for partition in leaderless}))

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh(topics, self._cluster.deadline())
            await asyncio.sleep(self._config.client.retry_backoff_ms / 1000)
        except KafkaError as error:
            if not is_retriable(error):
                self._failed(error)
        finally:
            self._finding = None
        self.look()

    async def _fetch_from(self, node_id: int, entries: Mapping[TopicPartition, PartitionPosition]) -> None:
        asked = {partition: entry.fetch_position for partition, entry in entries.items()}
        versions = {partition: entry.version for partition, entry in entries.items()}
        client = self._config.client
        try:
            connection = await self._cluster.broker(node_id, "fetch")
            answers = await fetch(connection, asked, self._settings, client.request_timeout_ms)
            for partition, offset in asked.items():
                answer = answers.get(partition)
                current = self._positions.get(partition)
                if answer is not None and current is not None and current.version == versions[partition]:
                    self._take(current, offset, answer)
        except KafkaError as error:
            self._cluster.routes.forget_leader(*asked)
            if not is_retriable(error):
                self._failed(error)
            await asyncio.sleep(self._cluster.backoff().next_ms() / 1000)
        finally:
            self._busy.pop(node_id, None)
        self._changed()
        self.look()

    def _take(self, entry: PartitionPosition, offset: int, answer: PartitionData) -> None:
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(entry)
            return
        if answer.error_code:
            error = error_of(answer.error_code, f"fetching {entry.partition} at offset {offset}")
            self._cluster.routes.forget_leader(entry.partition)
            if not is_retriable(error):
                self._failed(error)
            return
        self._keep(entry, offset, answer)

    def _keep(self, entry: PartitionPosition, offset: int, answer: PartitionData) -> None:
        entry.high_watermark = answer.high_watermark
        entry.last_stable_offset = answer.last_stable_offset
        chunk = chunk_of(entry.partition, offset, NO_END, answer, self._settings, self._config.check_crcs)
        if chunk is None:
            self._settings = self._settings.grown()
            return
        entry.fetch_position = chunk.next_offset
        if chunk.batches:
            entry.chunk = chunk
        else:
            entry.position = chunk.next_offset

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._busy.values(), *([self._finding] if self._finding is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
