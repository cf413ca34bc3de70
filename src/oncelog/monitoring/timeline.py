"""The transactions of a range of a live partition, and how many records a group still has to read.

Only headers of batches and markers are looked at, never records, and every read is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oncelog.client.admin import Admin
from oncelog.client.blocking import Blocking
from oncelog.client.deadline import Deadline
from oncelog.client.errors import error_of
from oncelog.client.fetch import FetchSettings, fetch
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel, visible_batches
from oncelog.core.ids import TopicPartition
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.open_transactions import OpenTransaction, open_transactions
from oncelog.monitoring.transaction_spans import SpanTracker, TransactionOutcome, TransactionSpan
from oncelog.protocol.batch import BatchHeader, ControlMarker, iter_headers, parse_control
from oncelog.protocol.messages.fetch import PartitionData

BATCHES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Timeline:
    partition: TopicPartition
    offsets: PartitionOffsets
    start: int
    end: int
    """Where reading stopped: below the end asked for if there were too many batches."""
    spans: tuple[TransactionSpan, ...]
    """In the order in which they begin. One that began before `start` is cut off there."""
    open: tuple[OpenTransaction, ...]
    """What is open on the partition now, in the range or not. The first of them holds readers back."""

    def outcome_of(self, producer_id: int, offset: int) -> TransactionOutcome | None:
        """What became of a transactional record within the range."""
        for span in self.spans:
            if span.producer_id == producer_id and span.first_offset <= offset < span.end_offset:
                return span.outcome
        return None


def read_timeline(
    admin: Admin,
    partition: TopicPartition,
    start: int | None = None,
    end: int | None = None,
    *,
    batches_max: int = BATCHES_MAX,
) -> Timeline:
    """The transactions in [start, end), by default of the whole partition."""
    offsets = partition_offsets(admin, [partition])[partition]
    first = offsets.start if start is None else max(start, offsets.start)
    last = offsets.end if end is None else min(end, offsets.end)
    tracker, position = SpanTracker(), first
    spans: list[TransactionSpan] = []
    with _BatchReader(admin.config) as reader:
        for number, (header, marker) in enumerate(reader.read(partition, first, last)):
            if number == batches_max:
                break
            spans += tracker.feed(header, marker)
            position = header.next_offset
        else:
            position = max(position, last)
    return Timeline(partition, offsets, first, position, tuple(spans), tuple(open_transactions(admin, [partition])))


class _BatchReader(Blocking):
    """Reads the headers of all batches of a range, and markers, which readers of records do not get."""

    _SETTINGS: Final = FetchSettings(IsolationLevel.READ_UNCOMMITTED)

    def read(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[BatchHeader, ControlMarker | None]]:
        position = start
        while position < end:
            data = memoryview(self._run(self._fetch(partition, position)).records or b"")
            seen = visible_batches(data, position, None, IsolationLevel.READ_UNCOMMITTED, check_crcs=False)
            if seen.next_offset == position:
                return
            for at, header in iter_headers(data[: seen.whole_bytes]):
                if position <= header.last_offset and header.base_offset < end:
                    is_marker = header.is_control and header.records_count
                    yield header, parse_control(data, at) if is_marker else None
            position = seen.next_offset

    async def _fetch(self, partition: TopicPartition, position: int) -> PartitionData:
        deadline = Deadline(self.config.default_api_timeout_ms)

        async def attempt() -> PartitionData:
            connection = await self.cluster.leader(partition, deadline, "fetch")
            answers = await fetch(connection, {partition: position}, self._SETTINGS, self.config.request_timeout_ms)
            answer = answers[partition]
            if answer.error_code:
                self.cluster.routes.forget_leader(partition)
                raise error_of(answer.error_code, f"fetching {partition} at offset {position}")
            return answer

        return await self.cluster.retrying(f"batches of {partition}", attempt, deadline)


@dataclass(frozen=True, slots=True)
class VisibleRecords:
    """What a read_committed reader at an offset would get now."""

    records: int
    is_exact: bool
    """Otherwise there are at least so many."""
    oldest_ms: int | None
    """When the first of them was written; None if there are none."""


def count_visible(
    admin: Admin, partition: TopicPartition, position: int, offsets: PartitionOffsets, *, batches_max: int = BATCHES_MAX
) -> VisibleRecords:
    """Unlike a lag in offsets, this is 0 for a reader that has only markers and aborted records before it."""
    records, batches = 0, 0
    oldest_ms: int | None = None
    start = max(position, offsets.start)
    with RangeReader(admin.config, check_crcs=False) as reader:
        for chunk in reader.read(*partition, start, offsets.last_stable):
            for _, header in chunk.batches:
                if batches == batches_max:
                    return VisibleRecords(records, False, oldest_ms)
                records += min(header.records_count, header.last_offset - start + 1)
                batches += 1
                if oldest_ms is None:
                    oldest_ms = header.max_timestamp if header.timestamp_type_append else header.base_timestamp
    return VisibleRecords(records, True, oldest_ms)
