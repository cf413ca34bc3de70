"""Keeps the next chunk of every assigned partition at hand: one request at a time to each leader that has something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_positions import PartitionPosition, Positions, ReadReplica
from oncelog.client.errors import CorruptBatch, ErrorCode, KafkaError, error_of, is_retriable
from oncelog.client.fetch import FetchSettings, fetch
from oncelog.client.fetcher import NO_END, chunk_of
from oncelog.client.offset_lookup import OffsetLookup
from oncelog.client.tasks import Tasks
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.fetch import PartitionData

FOLLOWER_PAUSE_S: Final = 10.0
"""How long a partition is read from its leader after a follower has failed."""


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
            node_id = self._source_of(entry)
            if node_id is None:
                leaderless.add(entry.partition.topic)
            elif ("fetch", node_id) not in self._tasks:
                wanted.setdefault(node_id, {})[entry.partition] = entry
        for node_id, entries in wanted.items():
            self._tasks.start(("fetch", node_id), self._fetch_from, node_id, entries)
        if leaderless:
            self._tasks.start("leaders", self._find_leaders, leaderless)

    def _source_of(self, entry: PartitionPosition) -> int | None:
        """Whom to fetch from: the follower that the leader has named, or the leader."""
        routes, replica = self._cluster.routes, entry.read_replica
        if replica is not None and (
            replica.node_id not in routes.brokers or self._cluster.network.now_s() >= replica.until_s
        ):
            replica = entry.read_replica = None
        leader = routes.leader(entry.partition)
        if leader is None:
            return None
        return leader.node_id if replica is None else replica.node_id

    async def _find_leaders(self, topics: set[str]) -> None:
        await self._cluster.refresh(topics, self._cluster.deadline())
        await self._cluster.network.sleep(self._config.client.retry_backoff_ms)

    async def _fetch_from(self, node_id: int, entries: Mapping[TopicPartition, PartitionPosition]) -> None:
        asked = {partition: entry.fetch_position for partition, entry in entries.items()}
        versions = {partition: entry.version for partition, entry in entries.items()}
        try:
            connection = await self._cluster.broker(node_id, "fetch")
            settings = self._settings_for(entries.values())
            answers = await fetch(connection, asked, settings, self._config.client.request_timeout_ms)
            for partition, offset in asked.items():
                answer = answers.get(partition)
                current = self._positions.get(partition)
                if answer is not None and current is not None and current.version == versions[partition]:
                    self._take(current, offset, answer, node_id)
        except KafkaError:
            followers = {partition for partition, entry in entries.items() if self._leave_replica(entry, node_id)}
            self._cluster.routes.forget_leader(*(asked.keys() - followers))
            raise

    def _settings_for(self, entries: Collection[PartitionPosition]) -> FetchSettings:
        """A leader that is told the rack would send the consumer back to the follower that has just failed."""
        now_s = self._cluster.network.now_s()
        if any(entry.leader_until_s > now_s for entry in entries) and all(not entry.read_replica for entry in entries):
            return replace(self._settings, rack="")
        return self._settings

    def _leave_replica(self, entry: PartitionPosition, node_id: int) -> bool:
        """Whether that was a follower, from which nothing is read any more."""
        is_follower = entry.read_replica is not None and entry.read_replica.node_id == node_id
        if is_follower:
            entry.read_replica = None
            entry.leader_until_s = self._cluster.network.now_s() + FOLLOWER_PAUSE_S
        return is_follower

    def _take(self, entry: PartitionPosition, offset: int, answer: PartitionData, node_id: int) -> None:
        if answer.error_code and self._leave_replica(entry, node_id):
            return  # The leader knows whether it is more than that this follower is behind.
        if answer.preferred_read_replica >= 0:
            until_s = self._cluster.network.now_s() + self._config.client.metadata_max_age_ms / 1000
            entry.read_replica = ReadReplica(answer.preferred_read_replica, until_s)
            return
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
