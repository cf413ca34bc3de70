"""Reading a range of one partition: every visible record of [start, end), once, in order.

A position moves over aborted data and markers like over everything else, so the end of a range is reached even when
nothing in it is visible. While the caller works on one chunk, the next is already in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

from oncelog.client.blocking import Blocking
from oncelog.client.config import ClientConfig
from oncelog.client.deadline import Deadline
from oncelog.client.errors import ConnectionLost, CorruptBatch, KafkaError, TimedOut, error_of, is_retriable
from oncelog.client.fetch import FetchSettings, fetch
from oncelog.client.visibility import IsolationLevel, visible_batches
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import (
    HEADER_BYTES,
    BatchHeader,
    ControlMarker,
    iter_headers,
    parse_control,
    read_header,
)
from oncelog.protocol.messages.fetch import PartitionData

logger = logging.getLogger("oncelog.client")

RANGE_FETCH_BYTES: Final = 8 * 1024 * 1024
"""A range is read to its end, so large answers cost nothing but memory: two of them at a time."""


NO_END: Final = -1


class FetchedChunk(NamedTuple):
    """One answer, as far as it has whole batches: `batches` are those a reader may see, with their places in `data`.

    There may be none, where a range holds only aborted records and markers. They may hold records outside of the range
    asked for: cut them by offset, as `columns.arrow_batches` does.
    """

    partition: TopicPartition
    start_offset: int
    """Records below it were not asked for."""
    next_offset: int
    """Where to go on: everything below it was read."""
    end_offset: int
    """Records at or after it were not asked for; -1 when there is no such bound."""
    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    high_watermark: int
    last_stable_offset: int
    skip_corrupt_batches: bool
    """What cannot be read is left out with a warning, and not raised as CorruptBatch."""

    def report(self, error: CorruptBatch) -> None:
        """Raise it, or leave out what cannot be read."""
        if not self.skip_corrupt_batches:
            raise error
        logger.warning("left out: %s", error.what)

    def headers(self) -> Iterator[tuple[int, BatchHeader]]:
        """Place and header of all batches of the range, also of those that readers do not see."""
        for at, header in iter_headers(self.data):
            if self.start_offset <= header.last_offset and (
                self.end_offset < 0 or header.base_offset < self.end_offset
            ):
                yield at, header

    def batches_and_markers(self) -> Iterator[tuple[BatchHeader, ControlMarker | None]]:
        """The same headers, and for markers what they say."""
        for at, header in self.headers():
            # Compaction leaves the bare header of a marker whose transaction is gone.
            is_marker = header.is_control and header.records_count
            yield header, parse_control(self.data, at) if is_marker else None


def chunk_of(
    partition: TopicPartition,
    start: int,
    end: int,
    answer: PartitionData,
    settings: FetchSettings,
    check_crcs: bool,
    skip_corrupt_batches: bool = False,
) -> FetchedChunk | None:
    """What an answer holds from `start` on; None if not even one batch fitted into it, and more is to be asked for.

    It ends before a batch that cannot be read. Where that is the first one, it raises CorruptBatch or has nothing else.
    """
    data = memoryview(answer.records or b"")
    seen = visible_batches(data, start, answer.aborted_transactions, settings.isolation, check_crcs=check_crcs)
    if not seen.whole_bytes and len(data) and seen.problem is None:
        return None
    chunk = FetchedChunk(
        partition,
        start,
        seen.next_offset,
        end,
        data[: seen.whole_bytes],
        [(at, header) for at, header in seen.batches if end < 0 or header.base_offset < end],
        answer.high_watermark,
        answer.last_stable_offset,
        skip_corrupt_batches,
    )
    if seen.whole_bytes or seen.problem is None:
        return chunk
    size, next_offset, reason = seen.problem
    if len(data) - size >= HEADER_BYTES:
        # Where the next batch begins is known better than what a damaged header says of its end.
        next_offset = max(start + 1, read_header(data, size).base_offset)
    chunk.report(CorruptBatch(partition, start, next_offset, reason))
    return chunk._replace(next_offset=next_offset)


class RangeReader(Blocking):
    """Reads ranges of partitions, whole answers of the broker at a time: the next one comes while you use the last.

        with RangeReader(config) as reader:
            for chunk in reader.read("orders", 3, 1000, 2000):
                for table in columns.arrow_batches(chunk):
                    ...

    In a process that runs one task after another, give it `worker_client(config)` in place of the settings: then it
    uses the connections that stay open there. `idle_timeout_ms` is how long nothing may come before it gives up.
    Records that cannot be read raise CorruptBatch; with `skip_corrupt_batches` they are left out with a warning.
    """

    def __init__(
        self,
        config: ClientConfig | Blocking,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        fetch_bytes: int = RANGE_FETCH_BYTES,
        check_crcs: bool = True,
        skip_corrupt_batches: bool = False,
        idle_timeout_ms: float = 60_000,
    ) -> None:
        super().__init__(config)
        self._settings = FetchSettings(isolation, max_bytes=fetch_bytes, partition_max_bytes=fetch_bytes)
        self._check_crcs = check_crcs
        self._skip_corrupt_batches = skip_corrupt_batches
        self._idle_timeout_ms = idle_timeout_ms

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[FetchedChunk]:
        """All visible records of [start, end).

        Raises KafkaError: OFFSET_OUT_OF_RANGE when some of them were deleted, TimedOut when nothing comes for too long.
        """
        place = TopicPartition(topic, partition)
        chunks = self._chunks(place, start, end)
        try:
            while (chunk := self._run(_next(chunks))) is not None:
                yield chunk
        finally:
            self._run(_close(chunks))

    async def _chunks(self, partition: TopicPartition, start: int, end: int) -> AsyncIterator[FetchedChunk]:
        ahead: asyncio.Task[FetchedChunk] | None = None
        try:
            if start < end:
                ahead = asyncio.create_task(self._next_chunk(partition, start, end))
            while ahead is not None:
                chunk = await ahead
                following = chunk.next_offset < end
                ahead = asyncio.create_task(self._next_chunk(partition, chunk.next_offset, end)) if following else None
                yield chunk
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _next_chunk(self, partition: TopicPartition, position: int, end: int) -> FetchedChunk:
        """The next answer that moves the position."""
        cluster = self.cluster
        backoff, deadline = cluster.backoff(), cluster.deadline(self._idle_timeout_ms)
        last: KafkaError | None = None
        while True:
            try:
                answer = await self._ask(partition, position, end, deadline)
                chunk = chunk_of(
                    partition, position, end, answer, self._settings, self._check_crcs, self._skip_corrupt_batches
                )
                if chunk is None:
                    self._settings = self._settings.grown()
                elif chunk.next_offset > position:
                    return chunk
                last = None
            except KafkaError as error:
                if not is_retriable(error):
                    raise
                cluster.routes.forget_leader(partition)
                last = error
            if deadline.expired:
                reason = f"last failure: {last}" if last else "an open transaction or missing data holds it back"
                raise TimedOut(f"{partition} offers nothing at offset {position} up to {end}: {reason}")
            if last is not None:
                await cluster.pause(backoff, deadline)

    async def _ask(self, partition: TopicPartition, position: int, end: int, deadline: Deadline) -> PartitionData:
        connection = await self.cluster.leader(partition, deadline, "fetch")
        answers = await fetch(connection, {partition: position}, self._settings, self.config.request_timeout_ms)
        answer = answers.get(partition)
        if answer is None:
            raise ConnectionLost(f"the answer leaves out {partition}")
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition} has no offset {position} any more, or not yet, of the range up to {end} that was asked "
                "for",
            )
        if answer.error_code:
            raise error_of(answer.error_code, f"fetching {partition} at offset {position}")
        return answer


async def _next(chunks: AsyncIterator[FetchedChunk]) -> FetchedChunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncIterator[FetchedChunk]) -> None:
    await chunks.aclose()  # type: ignore[attr-defined]  # an async generator
