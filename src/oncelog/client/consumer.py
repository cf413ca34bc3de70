"""Consumers: `Consumer` for threads, `AsyncConsumer` for asyncio.

    with Consumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "billing"}) as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            ...

A consumer is either subscribed, and shares the partitions of topics with the other members of its group, or assigned
partitions by hand. Callbacks for partitions that come and go run inside `poll`, in the caller's own thread.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from itertools import groupby, zip_longest
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self, TypeVar

from oncelog.client.blocking import Blocking, blocking, delegating
from oncelog.client.connections import open_cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_core import ConsumerCore
from oncelog.client.consumer_positions import PartitionPosition, Positions
from oncelog.client.consumer_rebalance import Rebalance, RebalanceKind
from oncelog.client.consumer_records import ConsumerRecord, iter_records
from oncelog.client.deadline import Deadline
from oncelog.client.errors import KafkaError
from oncelog.client.fetcher import FetchedChunk
from oncelog.client.offsets import Offsets
from oncelog.core.ids import TopicPartition

Deserializer = Callable[[str, bytes | None], Any]
"""Takes the topic and the bytes."""
OnChange = Callable[[list[TopicPartition]], None]
AsyncOnChange = Callable[[list[TopicPartition]], Awaitable[None] | None]
ITERATION_POLL_MS: Final = 1_000


class _Unread(NamedTuple):
    """What was taken and is not handed out, because a record of it cannot be read."""

    error: Exception
    offsets: dict[TopicPartition, int]
    """The offset of the first record, by partition."""


Callback = TypeVar("Callback", bound=Callable[..., object])


def _callbacks(
    on_assigned: Callback | None, on_revoked: Callback | None, on_lost: Callback | None
) -> dict[RebalanceKind, Callback | None]:
    for name, given in (("on_assigned", on_assigned), ("on_revoked", on_revoked), ("on_lost", on_lost)):
        if given is not None and not callable(given):
            raise TypeError(f"{name} is a {type(given).__name__}: give a function")
    return {
        RebalanceKind.ASSIGNED: on_assigned,
        RebalanceKind.REVOKED: on_revoked,
        RebalanceKind.LOST: on_lost or on_revoked,
    }


class _RecordTaker:
    """Takes records out of chunks, up to a number of them, and leaves the rest where it is."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = _of_records(key)
        self._value = _of_records(value)
        self._iterators: dict[TopicPartition, tuple[FetchedChunk, Iterator[ConsumerRecord]]] = {}
        self.records: list[ConsumerRecord] = []
        self.count_max = 0

    def take(self, entry: PartitionPosition, chunk: FetchedChunk) -> bool:
        known = self._iterators.get(entry.partition)
        if known is None or known[0] is not chunk:
            known = self._iterators[entry.partition] = (chunk, iter_records(_from_position(chunk, entry)))
        while len(self.records) < self.count_max:
            try:
                record = next(known[1], None)
            except KafkaError:
                # What comes before is handed out first. Then the same place fails again, until somebody seeks past it.
                del self._iterators[entry.partition]
                if self.records:
                    return False
                raise
            if record is None:
                entry.chunk = None
                entry.position = chunk.next_offset
                del self._iterators[entry.partition]
                return True
            self.records.append(record)
            entry.position = record.offset + 1
        return False

    def taken(self) -> tuple[list[ConsumerRecord], _Unread | None]:
        """The records up to one that cannot be deserialized."""
        records, self.records = self.records, []
        if self._key is None and self._value is None:
            return records, None
        readable: list[ConsumerRecord] = []
        for record in records:
            try:
                readable.append(self._deserialized(record))
            except Exception as error:  # noqa: BLE001  raised by the poll, as it is
                error.add_note(f"{record.topic_partition} offset {record.offset}: seek past it to go on without it")
                return readable, _Unread(error, _first_offsets(records[len(readable) :]))
        return readable, None

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        return record._replace(
            key=record.key if self._key is None else self._key(record.topic, record.key, record.headers),
            value=record.value if self._value is None else self._value(record.topic, record.value, record.headers),
        )


def _of_records(deserializer: Deserializer | None) -> Callable[[str, bytes | None, Any], Any] | None:
    """With the record's headers, for one that wants them: it has a method `from_record`."""
    if deserializer is None:
        return None
    from_record: Callable[[str, bytes | None, Any], Any] | None = getattr(deserializer, "from_record", None)
    return from_record or (lambda topic, data, _: deserializer(topic, data))


class _ChunkTaker:
    """Takes whole chunks, for columns."""

    def __init__(self) -> None:
        self.chunks: list[FetchedChunk] = []

    def take(self, entry: PartitionPosition, chunk: FetchedChunk) -> bool:
        self.chunks.append(_from_position(chunk, entry))
        entry.chunk = None
        entry.position = chunk.next_offset
        return True


def _from_position(chunk: FetchedChunk, entry: PartitionPosition) -> FetchedChunk:
    return chunk._replace(start_offset=max(chunk.start_offset, entry.position))


def _first_offsets(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for record in records:
        offsets.setdefault(record.topic_partition, record.offset)
    return offsets


def _one_by_one(positions: Positions, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
    """What a poll has taken, for a loop that may be left, and that may commit, seek and pause with each record."""
    held = []
    for place, run in groupby(records, attrgetter("topic", "partition")):
        entry = positions.get(TopicPartition(*place))
        if entry is not None:
            rest = list(run)
            entry.held_from = rest[0].offset
            held.append((entry, entry.version, rest))
    for entry, version, rest in held:
        for record, following in zip_longest(rest, rest[1:]):
            if entry.version != version or entry.paused:
                break
            entry.held_from = None if following is None else following.offset
            yield record


class Consumer(Blocking):
    """A consumer for threads. One thread polls at a time; the other calls may come from any."""

    def __init__(
        self,
        config: Mapping[str, Any] | ConsumerConfig,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        settings = ConsumerConfig.parse(config)
        super().__init__(settings.client)
        self.settings = settings
        self.core = self._call(ConsumerCore, self.cluster, settings)
        self._taker = _RecordTaker(key_deserializer, value_deserializer)
        self._callbacks: dict[RebalanceKind, OnChange | None] = {}
        self._closed = False

    # What to read

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        """Share the partitions of these topics, or of all that match a regular expression, with the group.

        `on_revoked` runs while the partitions are still this consumer's, so it may commit. `on_lost` runs when they
        are not any more; without it `on_revoked` is called then too.
        """
        self._callbacks = _callbacks(on_assigned, on_revoked, on_lost)
        self._run(self.core.subscribe(topics, pattern))

    def unsubscribe(self) -> None:
        """Leave the group, or give up what was assigned by hand."""
        self._give_up()
        self._run(self.core.leave("unsubscribed"))

    assign = blocking(ConsumerCore.assign)
    assignment = delegating(ConsumerCore.assignment)
    subscription = delegating(ConsumerCore.subscription)

    # Reading

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records that are there, or that come within the timeout; an empty list if none do."""
        self._taker.count_max = max_records or self.settings.max_poll_records
        try:
            self._step(Deadline(timeout_ms), self._taker.take)
        except BaseException:
            # An interrupt may come when records are taken already: they are for the next poll, and not to be committed.
            if self._taker.records:
                self._run(self.core.rewind(_first_offsets(self._taker.records)))
                self._taker.records = []
            raise
        records, unread = self._taker.taken()
        if unread is not None:
            self._run(self.core.rewind(unread.offsets))
            if not records:
                raise unread.error
        return records

    def poll_columns(self, timeout_ms: float = 0) -> Any:
        """The records at hand as one Arrow RecordBatch, which may be empty. Needs the extra `client`."""
        from oncelog.client.columns import first_columns

        taker = _ChunkTaker()
        self._step(Deadline(timeout_ms), taker.take)
        columns, unread, error = first_columns(taker.chunks)
        if unread:
            self._run(self.core.rewind(unread))
        if error is not None and not columns.num_rows:
            raise error
        return columns

    def _step(self, deadline: Deadline, take: Callable[[PartitionPosition, FetchedChunk], bool]) -> None:
        while (rebalance := self._run(self.core.step(deadline, take))) is not None:
            self._handle(rebalance)

    def _handle(self, rebalance: Rebalance | None) -> None:
        """This change, and those that follow at once. A callback that raises does not hold them up: the group counts
        on them. The first error is raised then."""
        first: BaseException | None = None
        while rebalance is not None:
            try:
                self._call_back(rebalance)
            except BaseException as error:  # noqa: BLE001  raised below
                first = first or error
            rebalance = self._call(self.core.handled, rebalance)
        if first is not None:
            raise first

    def _call_back(self, rebalance: Rebalance) -> None:
        callback = self._callbacks.get(rebalance.kind)
        if rebalance.kind is RebalanceKind.ASSIGNED:
            self._call(self.core.added, rebalance.partitions)
        if callback is not None:
            callback(rebalance.partitions)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever. The position is behind the last one that was handed out: leave the loop when you like."""
        while True:
            yield from _one_by_one(self.core.positions, self.poll(ITERATION_POLL_MS))

    # Positions

    seek = blocking(ConsumerCore.seek)
    seek_to_beginning = blocking(ConsumerCore.seek_to_beginning)
    seek_to_end = blocking(ConsumerCore.seek_to_end)
    seek_to_time = blocking(ConsumerCore.seek_to_time)
    beginning_offsets = blocking(ConsumerCore.beginning_offsets)
    end_offsets = blocking(ConsumerCore.end_offsets)
    position = blocking(ConsumerCore.position)
    pause = blocking(ConsumerCore.pause)
    resume = blocking(ConsumerCore.resume)
    paused = blocking(ConsumerCore.paused)
    lag = blocking(ConsumerCore.lag)
    seek_to_committed = blocking(ConsumerCore.seek_to_committed)
    committed = blocking(ConsumerCore.committed)
    commit = blocking(ConsumerCore.commit)

    def commit_async(
        self, offsets: Offsets | None = None, on_done: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Commit without waiting. `on_done` runs on the client's event loop thread and must not block.

        It gets None, or why the commit failed: CancelledError if the consumer was closed meanwhile.
        """
        if offsets is None:
            offsets = self._call(self.core.positions_to_commit)
        future = self._thread.submit(self.core.commit(offsets))
        if on_done is not None:
            future.add_done_callback(lambda done: on_done(CancelledError() if done.cancelled() else done.exception()))

    group_metadata = delegating(ConsumerCore.group_metadata)

    # The end

    def _give_up(self) -> None:
        rebalance = self._run(self.core.leaving())
        if rebalance is not None:
            self._call_back(rebalance)

    def close(self) -> None:
        """Commit if enable.auto.commit is on, leave the group, close the connections."""
        if not self._closed and self._is_at_home():
            self._closed = True
            try:
                self._give_up()
            finally:
                self._run(self.core.close())


class AsyncConsumer:
    """The consumer for asyncio programs; make and use it on one event loop. Calls are those of `Consumer`."""

    def __init__(
        self,
        config: Mapping[str, Any] | ConsumerConfig,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> None:
        self.settings = ConsumerConfig.parse(config)
        self.cluster = open_cluster(self.settings.client)
        self.core = ConsumerCore(self.cluster, self.settings)
        self._taker = _RecordTaker(key_deserializer, value_deserializer)
        self._callbacks: dict[RebalanceKind, AsyncOnChange | None] = {}
        self._closed = False

    async def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: AsyncOnChange | None = None,
        on_revoked: AsyncOnChange | None = None,
        on_lost: AsyncOnChange | None = None,
    ) -> None:
        """As `Consumer.subscribe`; the callbacks may be coroutine functions."""
        self._callbacks = _callbacks(on_assigned, on_revoked, on_lost)
        await self.core.subscribe(topics, pattern)

    async def unsubscribe(self) -> None:
        """Leave the group, or give up what was assigned by hand."""
        await self._give_up()
        await self.core.leave("unsubscribed")

    assign = delegating(ConsumerCore.assign)
    assignment = delegating(ConsumerCore.assignment)
    subscription = delegating(ConsumerCore.subscription)

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records that are there, or that come within the timeout; an empty list if none do."""
        self._taker.count_max = max_records or self.settings.max_poll_records
        deadline = Deadline(timeout_ms)
        while (rebalance := await self.core.step(deadline, self._taker.take)) is not None:
            await self._handle(rebalance)
        records, unread = self._taker.taken()
        if unread is not None:
            await self.core.rewind(unread.offsets)
            if not records:
                raise unread.error
        return records

    async def _handle(self, rebalance: Rebalance | None) -> None:
        """As that of `Consumer`; a poll that is cancelled within a callback is an error too."""
        first: BaseException | None = None
        while rebalance is not None:
            try:
                await self._call_back(rebalance)
            except BaseException as error:  # noqa: BLE001  raised below
                first = first or error
            rebalance = self.core.handled(rebalance)
        if first is not None:
            raise first

    async def _call_back(self, rebalance: Rebalance) -> None:
        if rebalance.kind is RebalanceKind.ASSIGNED:
            self.core.added(rebalance.partitions)
        callback = self._callbacks.get(rebalance.kind)
        if callback is not None:
            result = callback(rebalance.partitions)
            if inspect.isawaitable(result):
                await result

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """As that of `Consumer`."""
        while True:
            for record in _one_by_one(self.core.positions, await self.poll(ITERATION_POLL_MS)):
                yield record

    seek = delegating(ConsumerCore.seek)
    seek_to_beginning = delegating(ConsumerCore.seek_to_beginning)
    seek_to_end = delegating(ConsumerCore.seek_to_end)
    seek_to_time = delegating(ConsumerCore.seek_to_time)
    seek_to_committed = delegating(ConsumerCore.seek_to_committed)
    position = delegating(ConsumerCore.position)
    pause = delegating(ConsumerCore.pause)
    resume = delegating(ConsumerCore.resume)
    paused = delegating(ConsumerCore.paused)
    lag = delegating(ConsumerCore.lag)
    committed = delegating(ConsumerCore.committed)
    commit = delegating(ConsumerCore.commit)
    beginning_offsets = delegating(ConsumerCore.beginning_offsets)
    end_offsets = delegating(ConsumerCore.end_offsets)
    group_metadata = delegating(ConsumerCore.group_metadata)

    async def _give_up(self) -> None:
        rebalance = await self.core.leaving()
        if rebalance is not None:
            await self._call_back(rebalance)

    async def close(self) -> None:
        """Commit if enable.auto.commit is on, leave the group, close the connections."""
        if not self._closed:
            self._closed = True
            try:
                await self._give_up()
            finally:
                await self.core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
