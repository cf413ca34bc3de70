"""Keeps the next chunk of every assigned partition at hand: one request at a time to each leader that has something."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import PartitionPosition, Positions
from oncelog.client.errors import CorruptBatch, ErrorCode, KafkaError, error_of, is_retriable
from oncelog.client.fetch import fetch
from oncelog.client.fetcher import NO_END, chunk_of
from oncelog.client.offset_lookup import OffsetLookup
from oncelog.client.tasks import Tasks
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import PartitionData


class ConsumerFetcher:
    """Memory is bounded: a partition with a chunk at hand is not asked for more."""

    def __init__(
        self,
        config: ConsumerConfig,
        positions: Positions,
        tasks: Tasks,
        lookup: OffsetLookup,
        failed: Callable[[KafkaError], None],
    ) -> None:
        self._cluster = tasks.cluster
        self._config = config
        self._positions = positions
        self._tasks = tasks
        self._lookup = lookup
        self._failed = failed
        self._settings = config.fetch

    def start_fetches(self) -> None:
        """Start requests for all that can be fetched and is not being fetched. Called again when a task has ended."""
        wanted: dict[int, dict[TopicPartition, PartitionPosition]] = {}
        leaderless = set()
        for entry in self._positions:
            if not entry.fetchable or ("reset", entry.partition) in self._tasks:
                continue
            leader = self._cluster.routes.leader(entry.partition)
            if leader is None:
                leaderless.add(entry.partition.topic)
            elif ("fetch", leader.node_id) not in self._tasks:
                wanted.setdefault(leader.node_id, {})[entry.partition] = entry
        for node_id, entries in wanted.items():
            self._tasks.start(("fetch", node_id), self._fetch_from, node_id, entries)
        if leaderless:
            self._tasks.start("leaders", self._find_leaders, leaderless)

    async def _find_leaders(self, topics: set[str]) -> None:
        await self._cluster.refresh(topics, self._cluster.deadline())
        await self._cluster.network.sleep(self._config.client.retry_backoff_ms)

    async def _fetch_from(self, node_id: int, entries: Mapping[TopicPartition, PartitionPosition]) -> None:
        asked = {partition: entry.fetch_position for partition, entry in entries.items()}
        versions = {partition: entry.version for partition, entry in entries.items()}
        try:
            connection = await self._cluster.broker(node_id, "fetch")
            answers = await fetch(connection, asked, self._settings, self._config.client.request_timeout_ms)
            for partition, offset in asked.items():
                answer = answers.get(partition)
                current = self._positions.get(partition)
                if answer is not None and current is not None and current.version == versions[partition]:
                    self._take(current, offset, answer)
        except KafkaError:
            self._cluster.routes.forget_leader(*asked)
            raise

    def _take(self, entry: PartitionPosition, offset: int, answer: PartitionData) -> None:
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Not fetched from while that goes on, and for a pause if it fails; then this is tried once more.
            self._tasks.start(("reset", entry.partition), self._lookup.reset, entry, entry.version, offset)
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
        try:
            chunk = chunk_of(
                entry.partition,
                offset,
                NO_END,
                answer,
                self._settings,
                self._config.check_crcs,
                self._config.skip_corrupt_batches,
            )
        except CorruptBatch as error:
            entry.problem = error
            return
        if chunk is None:
            self._settings = self._settings.grown()
            return
        entry.fetch_position = chunk.next_offset
        if chunk.batches:
            entry.chunk = chunk
        else:
            entry.position = chunk.next_offset
