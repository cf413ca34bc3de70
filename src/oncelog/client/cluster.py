"""Requests to the brokers of a cluster: to any of them, to leaders, to coordinators, repeated until the deadline.

What is known of the cluster is in `routes`. A caller that meets a moved leader or a lost connection has it forgotten
there, and the next look-up asks a broker. Every look-up retries within the deadline it is given and ends with TimedOut,
which carries the last failure. Connections and time are those of a `Network`: of asyncio (`connections`), or virtual.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from oncelog.client.attempts import Attempts, explained
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Backoff, Deadline
from oncelog.client.errors import ConnectionLost, TimedOut, error_of, is_retriable
from oncelog.client.routes import COORDINATOR_MOVED, Broker, CoordinatorKind, PartitionInfo, Routes, TopicInfo
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.find_coordinator import FindCoordinatorResponse
from oncelog.protocol.messages.metadata import MetadataResponse
from oncelog.protocol.schema import Message

__all__ = ["Broker", "Cluster", "CoordinatorKind", "Network", "PartitionInfo", "TopicInfo"]

if TYPE_CHECKING:
    from oncelog.client.connection import Connection

T = TypeVar("T")
R = TypeVar("R", bound=Message)

_NOT_READY: Final = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def _own_code(answer: Any) -> list[int]:
    return [answer.error_code]


class Network(Protocol):
    """What a client needs of the world."""

    rng: random.Random

    def now_s(self) -> float: ...

    def sleep(self, ms: float) -> Awaitable[None]: ...

    def limit(self, ms: float) -> AbstractAsyncContextManager[object]: ...

    def open_one(self, host: str, port: int, channel: str) -> Connection | None: ...

    def connect(self, host: str, port: int, channel: str) -> Awaitable[Connection]: ...

    def close(self) -> Awaitable[None]: ...


class Cluster:
    """Lives on one event loop. `channel` keeps apart what must not wait behind a long poll on the same connection."""

    def __init__(self, config: ClientConfig, network: Network) -> None:
        self.config = config
        self.network = network
        self.routes = Routes()

    @property
    def topics(self) -> dict[str, TopicInfo]:
        return self.routes.topics

    async def close(self) -> None:
        """Close every connection; waiting callers get ConnectionLost."""
        await self.network.close()

    # Time

    def deadline(self, timeout_ms: float | None = None) -> Deadline:
        """A deadline after `default.api.timeout.ms`, or after the given time."""
        wait_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return Deadline(wait_ms, self.network.now_s)

    def backoff(self) -> Backoff:
        return Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self.network.rng)

    async def pause(self, backoff: Backoff, deadline: Deadline, failure: KafkaError | None = None) -> None:
        await self.network.sleep(min(backoff.next_ms(failure), deadline.remaining_ms))

    async def retrying(
        self, what: str, attempt: Callable[[], Awaitable[T]], deadline: Deadline, attempts: Attempts | None = None
    ) -> T:
        """The result of the first attempt without a retriable error. Raises TimedOut at the deadline.

        `attempts` are given for requests that change something.
        """
        backoff = self.backoff()
        last: KafkaError | None = None
        with explained(attempts):
            while last is None or not deadline.expired:
                try:
                    async with self.network.limit(deadline.remaining_ms):
                        result = await attempt()
                    deadline.last_failure = None
                    return result
                except TimeoutError:
                    silence = ConnectionLost(f"no answer from the cluster at {self.config.bootstrap_servers}")
                    last = last or deadline.last_failure or silence
                    break
                except KafkaError as error:
                    if not is_retriable(error):
                        raise
                    last = deadline.last_failure = error
                await self.pause(backoff, deadline)
            raise TimedOut(f"{what}: gave up, last failure: {last}") from last

    # Brokers

    async def any_broker(self, channel: str = "") -> Connection:
        """A connection to whichever broker answers, known ones first. Raises ConnectionLost when none does."""
        addresses = self.routes.addresses(self.config.addresses, self.network.rng)
        addresses.sort(key=lambda address: self.network.open_one(address[0], address[1], channel) is None)
        failures = []
        for host, port in addresses:
            try:
                return await self.network.connect(host, port, channel)
            except ConnectionLost as error:
                failures.append(error.message)
        raise ConnectionLost(f"no broker of {self.config.bootstrap_servers} answers: {'; '.join(failures)}")

    async def broker(self, node_id: int, channel: str = "") -> Connection:
        """A connection to a broker by its id. Raises ConnectionLost."""
        if node_id not in self.routes.brokers:
            await self._fetch_metadata([])
        found = self.routes.brokers.get(node_id)
        if found is None:
            raise ConnectionLost(f"broker {node_id} is not in the cluster's metadata")
        return await self.network.connect(found.host, found.port, channel)

    # Metadata

    async def refresh(self, topics: Collection[str] | None, deadline: Deadline, *, create: bool = False) -> None:
        """Ask for the named topics, or for all of them, until a broker answers. Unknown ones are left out."""
        await self.retrying("metadata", lambda: self._fetch_metadata(topics, create=create), deadline)

    async def _fetch_metadata(self, topics: Collection[str] | None, *, create: bool = False) -> list[KafkaError]:
        connection = await self.any_broker()
        response = await connection.call(self.routes.metadata_request(topics, create=create), MetadataResponse)
        if response.error_code:
            raise error_of(response.error_code, f"metadata from {connection}")
        return self.routes.learn(response, self.network.now_s())

    async def _fetch_topic(self, name: str) -> None:
        for failure in await self._fetch_metadata([name], create=self.config.allow_auto_create_topics):
            raise failure

    async def topic(self, name: str, deadline: Deadline) -> TopicInfo:
        """What is known of a topic, asked for when it is unknown or old; created where broker and settings allow it."""

        async def ask() -> TopicInfo:
            await self._fetch_topic(name)
            if name not in self.topics or not self.topics[name].partitions:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no partitions yet")
            return self.topics[name]

        known = self.routes.fresh_topic(name, self.network.now_s(), self.config.metadata_max_age_ms)
        return known if known is not None else await self.retrying(f"metadata of topic {name}", ask, deadline)

    async def partition_count(self, topic: str, deadline: Deadline) -> int:
        return len((await self.topic(topic, deadline)).partitions)

    async def leader_id(self, partition: TopicPartition, deadline: Deadline) -> int:
        """The node that leads a partition. Raises TimedOut when none can be found in time."""

        async def ask() -> int:
            await self._fetch_topic(partition.topic)
            found = self.routes.leader(partition)
            if found is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, self._why_no_leader(partition))
            return found.node_id

        known = self.routes.leader(partition)
        return known.node_id if known is not None else await self.retrying(f"leader of {partition}", ask, deadline)

    def _why_no_leader(self, partition: TopicPartition) -> str:
        count = len(self.topics[partition.topic].partitions) if partition.topic in self.topics else 0
        if 0 < count <= partition.partition:
            return f"topic {partition.topic} has {count} partitions, there is no {partition.partition}"
        return f"partition {partition} has no leader now"

    async def leader(self, partition: TopicPartition, deadline: Deadline, channel: str = "") -> Connection:
        """A connection to the leader of a partition; a broker that is gone is asked for anew."""

        async def reach() -> Connection:
            node_id = await self.leader_id(partition, deadline)
            try:
                return await self.broker(node_id, channel)
            except ConnectionLost:
                self.routes.forget_leader(partition)
                raise

        return await self.retrying(f"leader of {partition}", reach, deadline)

    def open_leader(self, partition: TopicPartition) -> Connection | None:
        """The connection to the leader if both are known and open, without waiting."""
        known = self.routes.leader(partition)
        return None if known is None else self.network.open_one(known.host, known.port, "")

    # Coordinators

    async def coordinator(
        self, kind: CoordinatorKind, key: str, deadline: Deadline, channel: str = "coordinator"
    ) -> Connection:
        """A connection to the coordinator of a group or a transactional id."""

        async def reach() -> Connection:
            broker = self.routes.coordinator(kind, key) or await self._find_coordinator(kind, key)
            try:
                return await self.network.connect(broker.host, broker.port, channel)
            except ConnectionLost:
                self.routes.forget_coordinator(kind, key)
                raise

        return await self.retrying(f"coordinator of {kind.name.lower()} {key}", reach, deadline)

    async def _find_coordinator(self, kind: CoordinatorKind, key: str) -> Broker:
        connection = await self.any_broker()
        response = await connection.call(self.routes.coordinator_request(kind, key), FindCoordinatorResponse)
        return self.routes.learn_coordinator(kind, key, response)

    async def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        request: Message,
        response_type: type[R],
        *,
        codes: Callable[[R], Iterable[int]] = _own_code,
        deadline: Deadline | None = None,
        retry: Collection[ErrorCode] = (),
        version_max: int | None = None,
        attempts: Attempts | None = None,
    ) -> R:
        """Ask until none of the answer's codes is in `retry` or says that the coordinator moved or is still loading.

        The answer may carry other errors: they are the caller's to judge. Raises TimedOut at the deadline, which is
        that of a whole call unless another one is given. `attempts` are given for a request that changes something.
        """
        deadline = deadline or self.deadline()
        backoff = self.backoff()
        what = f"{type(request).__name__} for {kind.name.lower()} {key}"
        with explained(attempts):
            while True:
                connection = await self.coordinator(kind, key, deadline)
                try:
                    with (attempts or Attempts()).one():
                        response = await connection.call(
                            request,
                            response_type,
                            version_max=version_max,
                            timeout_ms=max(1.0, min(self.config.request_timeout_ms, deadline.remaining_ms)),
                        )
                    # A code of its own decides before CONCURRENT_TRANSACTIONS, which is over soon.
                    failed = [code for code in codes(response) if code in _NOT_READY or code in retry]
                    if not failed:
                        return response
                    soon_over = ErrorCode.CONCURRENT_TRANSACTIONS
                    failed.sort(key=lambda code: (code not in COORDINATOR_MOVED, code == soon_over))
                    last: KafkaError = error_of(failed[0], str(connection))
                    if attempts is not None and last.code in COORDINATOR_MOVED:
                        # Perhaps while what it had decided was on its way into the log.
                        attempts.doubt()
                except ConnectionLost as error:
                    last = error
                if last.code in COORDINATOR_MOVED or last.code == ErrorCode.NETWORK_EXCEPTION:
                    self.routes.forget_coordinator(kind, key)
                await self.pause(backoff, deadline, last)
                if deadline.expired:
                    raise TimedOut(f"{what}: gave up, last failure: {last}") from last

    async def transaction_version(self, deadline: Deadline) -> int:
        """The finalised `transaction.version`, as the broker that answers first says."""
        connection = await self.retrying("features of the cluster", self.any_broker, deadline)
        return connection.wire.transaction_version
