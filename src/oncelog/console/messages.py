"""Records of a partition, with the outcome of their transactions, read within a budget.

Below the last stable offset the broker itself says what was aborted: what a read_committed reader gets is committed.
From there on, markers are looked for up to the end of what was read and some batches more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer_records import ConsumerRecord, iter_records
from oncelog.client.fetcher import FetchedChunk, RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.core.content import shown
from oncelog.core.ids import TopicPartition
from oncelog.inspection.batch_file import DecodedRecord
from oncelog.inspection.internal_topics import decoder_for
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.timeline import Timeline, read_timeline
from oncelog.protocol.batch import BatchHeader, ControlMarker

ROWS_MAX: Final = 500
BUDGET_BYTES: Final = 16 * 1024 * 1024
BUDGET_S: Final = 5.0
FETCH_BYTES: Final = 1024 * 1024
VALUE_BYTES_MAX: Final = 64 * 1024
"""What is longer is cut off where it is shown."""
LOOK_AHEAD_BATCHES: Final = 1_000

FIELDS: Final = ("any", "key", "value", "header")


@dataclass(frozen=True, slots=True)
class Needle:
    """What is searched for: a text in a field. It is compared as bytes, never evaluated."""

    text: str
    field: str = "any"

    def matches(self, record: ConsumerRecord) -> bool:
        wanted = self.text.encode()
        return any(wanted in part for part in self._parts(record) if part is not None)

    def _parts(self, record: ConsumerRecord) -> Iterator[bytes | None]:
        if self.field in ("any", "key"):
            yield record.key
        if self.field in ("any", "value"):
            yield record.value
        if self.field in ("any", "header"):
            for name, content in record.headers:
                yield name.encode()
                yield content


@dataclass(frozen=True, slots=True)
class Request:
    partition: TopicPartition
    start: int
    rows: int
    isolation: IsolationLevel
    needle: Needle | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One row: a record, or a marker."""

    header: BatchHeader
    record: ConsumerRecord | None
    marker: ControlMarker | None


@dataclass(slots=True)
class Reading:
    found: list[Found]
    next_offset: int
    read_bytes: int = 0
    stopped_by: str = "the end of the partition"


def read_messages(admin: Admin, request: Request, offsets: PartitionOffsets) -> dict[str, Any]:
    """Rows from an offset on, as JSON values, with where to go on and why it stopped."""
    limit = offsets.limit(request.isolation)
    start = min(max(request.start, offsets.start), limit)
    reading = _read(admin, request, start, limit)
    outcomes = _Outcomes.of(admin, request, reading, offsets)
    return {
        "start": start,
        "next": reading.next_offset,
        "log_start": offsets.start,
        "last_stable": offsets.last_stable,
        "end": offsets.end,
        "read_bytes": reading.read_bytes,
        "stopped_by": reading.stopped_by,
        "at_end": reading.next_offset >= limit,
        "rows": [_row(one, outcomes) for one in reading.found],
    }


def _read(admin: Admin, request: Request, start: int, limit: int) -> Reading:
    reading = Reading([], start)
    deadline_s = time.monotonic() + BUDGET_S
    with RangeReader(
        admin, isolation=request.isolation, fetch_bytes=FETCH_BYTES, idle_timeout_ms=BUDGET_S * 1000
    ) as reader:
        for chunk in reader.read(*request.partition, start, limit):
            for one in _rows_of(chunk, request):
                if len(reading.found) == request.rows:
                    reading.stopped_by = f"the limit of {request.rows} rows"
                    return reading
                offset = one.record.offset if one.record is not None else one.header.base_offset
                reading.next_offset = offset + 1
                reading.found.append(one)
            reading.next_offset = min(chunk.next_offset, limit)
            reading.read_bytes += len(chunk.data)
            if reading.read_bytes >= BUDGET_BYTES and reading.next_offset < limit:
                reading.stopped_by = f"the budget of {BUDGET_BYTES >> 20} MB"
                return reading
            if time.monotonic() >= deadline_s and reading.next_offset < limit:
                reading.stopped_by = f"the budget of {BUDGET_S:g} s"
                return reading
    return reading


def _rows_of(chunk: FetchedChunk, request: Request) -> Iterator[Found]:
    """Records, and at read_uncommitted markers, in the order of their offsets."""
    seen = {header.base_offset: (at, header) for at, header in chunk.batches}
    is_committed = request.isolation is IsolationLevel.READ_COMMITTED
    for header, marker in chunk.batches_and_markers():
        if header.is_control:
            if marker is not None and not is_committed and request.needle is None:
                yield Found(header, None, marker)
        elif header.base_offset in seen:
            one_batch = chunk._replace(batches=[seen[header.base_offset]])
            for record in iter_records(one_batch):
                if request.needle is None or request.needle.matches(record):
                    yield Found(header, record, None)


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """What became of transactional batches."""

    is_all_committed: bool
    last_stable: int
    committed: frozenset[int]
    """Base offsets of batches below the last stable offset that a read_committed reader gets."""
    after: Timeline | None
    """From the last stable offset on."""

    @classmethod
    def of(cls, admin: Admin, request: Request, reading: Reading, offsets: PartitionOffsets) -> _Outcomes:
        transactional = [one.header for one in reading.found if one.record is not None and one.header.is_transactional]
        if request.isolation is IsolationLevel.READ_COMMITTED or not transactional:
            return cls(True, offsets.last_stable, frozenset(), None)
        first, last = transactional[0].base_offset, transactional[-1].last_offset
        committed = _committed_batches(admin, request.partition, first, min(last + 1, offsets.last_stable))
        after = None
        if last >= offsets.last_stable:
            after = read_timeline(
                admin, request.partition, offsets.last_stable, batches_max=len(reading.found) + LOOK_AHEAD_BATCHES
            )
        return cls(False, offsets.last_stable, committed, after)

    def name(self, header: BatchHeader) -> str:
        if not header.is_transactional:
            return "none"
        if self.is_all_committed or header.base_offset in self.committed:
            return "committed"
        if header.base_offset < self.last_stable:
            return "aborted"
        found = self.after.outcome_of(header.producer_id, header.base_offset) if self.after is not None else None
        return found.value if found is not None else "open"


def _committed_batches(admin: Admin, partition: TopicPartition, start: int, end: int) -> frozenset[int]:
    if start >= end:
        return frozenset()
    with RangeReader(admin, fetch_bytes=FETCH_BYTES, check_crcs=False, idle_timeout_ms=BUDGET_S * 1000) as reader:
        return frozenset(
            header.base_offset for chunk in reader.read(*partition, start, end) for _, header in chunk.batches
        )


def _row(one: Found, outcomes: _Outcomes) -> dict[str, Any]:
    header, record = one.header, one.record
    shared = {
        "producer_id": header.producer_id if header.producer_id >= 0 else None,
        "producer_epoch": header.producer_epoch if header.producer_id >= 0 else None,
        "batch_offset": header.base_offset,
        "codec": header.codec,
    }
    if record is None:
        kind = "commit marker" if one.marker is not None and one.marker.is_commit else "abort marker"
        return {"offset": header.base_offset, "time_ms": header.max_timestamp, "kind": kind, "outcome": None, **shared}
    return {
        "offset": record.offset,
        "time_ms": record.timestamp_ms,
        "kind": "record",
        "outcome": outcomes.name(header),
        **shared,
        **_content(record),
    }


def _content(record: ConsumerRecord) -> dict[str, Any]:
    size = len(record.key or b"") + len(record.value or b"")
    decoder = decoder_for(record.topic)
    if decoder is not None:
        decoded = decoder(DecodedRecord(record.offset, record.timestamp_ms, -1, record.key, record.value, ()))
        return {
            "decoded": {"key": decoded.key, "value": decoded.value, "problem": decoded.problem or None},
            "bytes": size,
        }
    headers = [{"name": name, **shown("value", _cut(content))} for name, content in record.headers]
    return {
        **shown("key", _cut(record.key)),
        **shown("value", _cut(record.value)),
        "headers": headers,
        "bytes": size,
        "cut": size > VALUE_BYTES_MAX,
    }


def _cut(data: bytes | None) -> bytes | None:
    """Not in the middle of a character, so that text stays text."""
    if data is None or len(data) <= VALUE_BYTES_MAX:
        return data
    end = VALUE_BYTES_MAX
    while end > VALUE_BYTES_MAX - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]
