"""The cluster as a client sees it: brokers, partition leaders, coordinators, and a connection to each.

Leaders and coordinators are remembered until an answer says otherwise: a caller that meets NOT_LEADER_OR_FOLLOWER or a
lost connection calls `forget_leader`, and the next look-up asks a broker. Every look-up retries within the deadline it
is given and ends with TimedOut, which carries the last failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from oncelog.client.attempts import Attempts
from oncelog.client.config import Address, ClientConfig
from oncelog.client.connection import Connection
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.errors import ConnectionLost, IllegalState, TimedOut, error_of, is_retriable
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NULL_UUID, TopicPartition
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import Message

T = TypeVar("T")
R = TypeVar("R", bound=Message)

CONCURRENT_BACKOFF_MS: Final = 2.0
CONCURRENT_BACKOFF_MAX_MS: Final = 50.0
"""A coordinator that still completes the last transaction is done within a few milliseconds."""
_LOADING: Final = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,)
_MOVED: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    error_code: int


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


class Cluster:
    """Lives on one event loop. `channel` keeps apart what must not wait behind a long poll on the same connection."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.brokers: dict[int, Broker] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.topics: dict[str, TopicInfo] = {}
        self._stale: set[TopicPartition] = set()
        self._seen_s: dict[str, float] = {}
        self._connections: dict[tuple[str, int, str], asyncio.Task[Connection]] = {}
        self._coordinators: dict[tuple[int, str], Broker] = {}
        self._refreshing = asyncio.Lock()
        self._closed = False

    # Connections

    async def connect(self, host: str, port: int, channel: str = "") -> Connection:
        """The connection to an address, opened if there is none. Raises ConnectionLost."""
        if self._closed:
            raise IllegalState("this client is closed")
        key = (host, port, channel)
        task = self._connections.get(key)
        if task is None or (task.done() and not _is_usable(task)):
            task = asyncio.create_task(Connection.open(self.config, host, port))
            self._connections[key] = task
        return await asyncio.shield(task)

    async def any_broker(self, channel: str = "") -> Connection:
        """A connection to whichever broker answers, known ones first. Raises ConnectionLost when none does."""
        known = [(broker.host, broker.port) for broker in self.brokers.values()]
        addresses = random.sample(known, len(known)) + self.config.addresses
        addresses.sort(key=lambda address: not self._is_open(address, channel))
        failures = []
        for host, port in dict.fromkeys(addresses):
            try:
                return await self.connect(host, port, channel)
            except ConnectionLost as error:
                failures.append(error.message)
        raise ConnectionLost(f"no broker of {self.config.bootstrap_servers} answers: {'; '.join(failures)}")

    def _is_open(self, address: Address, channel: str) -> bool:
        task = self._connections.get((*address, channel))
        return task is not None and _is_usable(task)

    async def broker(self, node_id: int, channel: str = "") -> Connection:
        """A connection to a broker by its id. Raises ConnectionLost."""
        if node_id not in self.brokers:
            await self._fetch_metadata([])
        found = self.brokers.get(node_id)
        if found is None:
            raise ConnectionLost(f"broker {node_id} is not in the cluster's metadata")
        return await self.connect(found.host, found.port, channel)

    async def close(self) -> None:
        """Close every connection; waiting callers get ConnectionLost."""
        self._closed = True
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            if task.done() and not task.cancelled() and not task.exception():
                task.result().close()
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Retrying

    async def retrying(self, what: str, attempt: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """The result of the first attempt without a retriable error. Raises TimedOut at the deadline."""
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        last: KafkaError | None = None
        while last is None or not deadline.expired:
            try:
                async with asyncio.timeout(deadline.remaining_ms / 1000):
                    return await attempt()
            except TimeoutError:
                last = last or ConnectionLost("no answer")
                break
            except KafkaError as error:
                if not is_retriable(error):
                    raise
                last = error
            await backoff.pause(deadline)
        raise TimedOut(f"{what}: gave up, last failure: {last}") from last

    # Metadata

    async def refresh(self, topics: Collection[str] | None, deadline: Deadline, *, create: bool = False) -> None:
        """Ask for the named topics, or for all of them, until a broker answers. Unknown ones are left out."""
        await self.retrying("metadata", lambda: self._fetch_metadata(topics, create=create), deadline)

    async def _fetch_metadata(self, topics: Collection[str] | None, *, create: bool = False) -> list[KafkaError]:
        async with self._refreshing:
            connection = await self.any_broker()
            asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
            response = await connection.call(request, MetadataResponse)
        if response.error_code:
            raise error_of(response.error_code, f"metadata from {connection}")
        return self._learn(response)

    def _learn(self, response: MetadataResponse) -> list[KafkaError]:
        self.brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id
        failures = []
        for topic in response.topics:
            if topic.error_code:
                failures.append(error_of(topic.error_code, f"topic {topic.name}"))
                self.topics.pop(topic.name or "", None)
            else:
                self._learn_topic(topic)
        return failures

    def _learn_topic(self, topic: MetadataResponseTopic) -> None:
        name = topic.name or ""
        partitions = tuple(
            PartitionInfo(
                name,
                p.partition_index,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                p.error_code,
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        )
        self.topics[name] = TopicInfo(name, topic.topic_id or NULL_UUID, topic.is_internal, partitions)
        self._seen_s[name] = time.monotonic()
        self._stale.difference_update(TopicPartition(name, p.partition) for p in partitions)

    async def topic(self, name: str, deadline: Deadline) -> TopicInfo:
        """What is known of a topic, asked for when it is unknown or old; created where broker and settings allow it."""

        async def ask() -> TopicInfo:
            for failure in await self._fetch_metadata([name], create=self.config.allow_auto_create_topics):
                raise failure
            if name not in self.topics or not self.topics[name].partitions:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no partitions yet")
            return self.topics[name]

        known = self.topics.get(name)
        fresh = time.monotonic() - self._seen_s.get(name, 0) < self.config.metadata_max_age_ms / 1000
        if known is not None and known.partitions and fresh:
            return known
        return await self.retrying(f"metadata of topic {name}", ask, deadline)

    async def partition_count(self, topic: str, deadline: Deadline) -> int:
        return len((await self.topic(topic, deadline)).partitions)

    def known_leader(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(partition.topic)
        if topic is None or partition in self._stale or partition.partition >= len(topic.partitions):
            return None
        info = topic.partitions[partition.partition]
        return info if info.leader >= 0 and info.leader in self.brokers else None

    async def leader_id(self, partition: TopicPartition, deadline: Deadline) -> int:
        """The node that leads a partition. Raises TimedOut when none can be found in time."""
        known = self.known_leader(partition)
        if known is not None:
            return known.leader

        async def ask() -> int:
            create = self.config.allow_auto_create_topics
            for failure in await self._fetch_metadata([partition.topic], create=create):
                raise failure
            found = self.known_leader(partition)
            if found is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} has no leader now")
            return found.leader

        return await self.retrying(f"leader of {partition}", ask, deadline)

    async def leader(self, partition: TopicPartition, deadline: Deadline, channel: str = "") -> Connection:
        """A connection to the leader of a partition; a broker that is gone is asked for anew."""

        async def reach() -> Connection:
            node_id = await self.leader_id(partition, deadline)
            try:
                return await self.broker(node_id, channel)
            except ConnectionLost:
                self.forget_leader(partition)
                raise

        return await self.retrying(f"leader of {partition}", reach, deadline)

    def open_leader(self, partition: TopicPartition, channel: str = "") -> Connection | None:
        """The connection to the leader if both are known and open, without waiting."""
        known = self.known_leader(partition)
        if known is None:
            return None
        broker = self.brokers[known.leader]
        task = self._connections.get((broker.host, broker.port, channel))
        return task.result() if task is not None and _is_usable(task) else None

    def forget_leader(self, *partitions: TopicPartition) -> None:
        self._stale.update(partitions)

    # Coordinators

    async def coordinator(
        self, kind: CoordinatorKind, key: str, deadline: Deadline, channel: str = "coordinator"
    ) -> Connection:
        """A connection to the coordinator of a group or a transactional id."""

        async def reach() -> Connection:
            broker = self._coordinators.get((kind, key)) or await self._find_coordinator(kind, key)
            try:
                return await self.connect(broker.host, broker.port, channel)
            except ConnectionLost:
                self.forget_coordinator(kind, key)
                raise

        return await self.retrying(f"coordinator of {kind.name.lower()} {key}", reach, deadline)

    async def _find_coordinator(self, kind: CoordinatorKind, key: str) -> Broker:
        connection = await self.any_broker()
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        response = await connection.call(request, FindCoordinatorResponse)
        if response.coordinators:
            found = response.coordinators[0]
            code, message, broker = found.error_code, found.error_message, Broker(found.node_id, found.host, found.port)
        else:
            code, message = response.error_code, response.error_message
            broker = Broker(response.node_id, response.host, response.port)
        if code:
            raise error_of(code, f"coordinator of {kind.name.lower()} {key}: {message or 'none'}")
        self._coordinators[(kind, key)] = broker
        return broker

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        request: Message,
        response_type: type[R],
        *,
        codes: Callable[[R], Iterable[int]],
        deadline: Deadline | None = None,
        retry: Collection[ErrorCode] = (),
        version_max: int | None = None,
        timeout_ms: float | None = None,
        attempts: Attempts | None = None,
    ) -> R:
        """Ask until none of the answer's codes is in `retry` or says that the coordinator moved or is still loading.

        The answer may carry other errors: they are the caller's to judge. Raises TimedOut at the deadline, which is
        that of a whole call unless another one is given.
        """
        deadline = deadline or Deadline(self.config.default_api_timeout_ms)
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        concurrent = Backoff(CONCURRENT_BACKOFF_MS, CONCURRENT_BACKOFF_MAX_MS)
        what = f"{type(request).__name__} for {kind.name.lower()} {key}"
        while True:
            connection = await self.coordinator(kind, key, deadline)
            pause = backoff
            try:
                wait_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
                with (attempts or Attempts()).one():
                    response = await connection.call(
                        request,
                        response_type,
                        version_max=version_max,
                        timeout_ms=max(1.0, min(wait_ms, deadline.remaining_ms)),
                    )
                failed = [code for code in codes(response) if code in _MOVED or code in _LOADING or code in retry]
                if not failed:
                    return response
                if any(code in _MOVED for code in failed):
                    self.forget_coordinator(kind, key)
                elif all(code == ErrorCode.CONCURRENT_TRANSACTIONS for code in failed):
                    pause = concurrent
                last: KafkaError = error_of(failed[0], str(connection))
            except ConnectionLost as error:
                self.forget_coordinator(kind, key)
                last = error
            await pause.pause(deadline)
            if deadline.expired:
                raise TimedOut(f"{what}: gave up, last failure: {last}") from last

    async def transaction_version(self, deadline: Deadline) -> int:
        """The finalised `transaction.version`, as the broker that answers first says."""
        connection = await self.retrying("features of the cluster", self.any_broker, deadline)
        return connection.wire.transaction_version


def _is_usable(task: asyncio.Task[Connection]) -> bool:
    return task.done() and not task.cancelled() and not task.exception() and not task.result().closed
