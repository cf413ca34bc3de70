"""Records of a partition or, for a search, of all, with the outcome of their transactions, read within a budget.

Below the last stable offset the broker itself says what was aborted: what a read_committed reader gets is committed.
From there on, markers are looked for up to the end of what was read and some batches more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer_records import ConsumerRecord, iter_records
from oncelog.client.errors import CorruptBatch
from oncelog.client.fetcher import FetchedChunk, RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.console.contents import Contents, Decoded, Seen
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
"""What is longer is cut off in a list. The page of a record shows more, and has the rest as a file."""
CONTENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of all rows of a page. What was read may have been compressed, so the budget of bytes does not bound it."""
KEYS_MAX: Final = 5_000
KEY_OFFSETS: Final = 10_000
"""Where `latest` begins when only the newest record of each key is wanted."""
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
    by_key: bool = False
    """Of each key only the newest record, and none whose newest record is a tombstone."""
    contents: Contents = field(default_factory=lambda: Contents(""))
    whole: bool = False
    """Contents as they are in the log, and not cut: for a file."""


@dataclass(frozen=True, slots=True)
class Found:
    """One row: a record, cut to what is shown of it, or a marker."""

    header: BatchHeader
    record: ConsumerRecord | None
    marker: ControlMarker | None
    size: int = 0
    """Of key and value as they are in the log."""
    decoded: Decoded | None = None
    raw: ConsumerRecord | None = None
    """For the page of one record: as it is in the log, unless something of it is masked."""
    is_cut: bool = False

    @classmethod
    def of(cls, header: BatchHeader, seen: Seen, *, whole: bool = False) -> Found:
        size = len(seen.raw.key or b"") + len(seen.raw.value or b"")
        if whole:
            return cls(header, seen.raw, None, size, seen.decoded)
        record = seen.record
        if decoder_for(record.topic) is None:
            record = record._replace(key=cut(record.key), value=cut(record.value))
        is_cut = (record.key, record.value) != (seen.record.key, seen.record.value)
        return cls(header, record, None, size, seen.decoded, is_cut=is_cut)

    @property
    def kind(self) -> str:
        if self.record is not None:
            return "record"
        return "commit marker" if self.marker is not None and self.marker.is_commit else "abort marker"

    @property
    def held_bytes(self) -> int:
        record = self.record
        if record is None:
            return 0
        headers = sum(len(name) + len(content or b"") for name, content in record.headers)
        return len(record.key or b"") + len(record.value or b"") + headers


@dataclass(slots=True)
class Reading:
    request: Request
    next_offset: int
    read_bytes: int = 0
    held_bytes: int = 0
    stopped_by: str = ""
    found: list[Found] = field(default_factory=list)
    by_key: dict[bytes | None, Found] = field(default_factory=dict)

    def take(self, one: Found) -> None:
        offset = one.record.offset if one.record is not None else one.header.base_offset
        self.next_offset = offset + 1
        self.held_bytes += one.held_bytes
        if not self.request.by_key:
            self.found.append(one)
        elif one.record is not None:
            before = self.by_key.pop(one.record.key, None)
            self.held_bytes -= before.held_bytes if before is not None else 0
            if one.record.value is not None:
                self.by_key[one.record.key] = one
            else:
                self.held_bytes -= one.held_bytes

    @property
    def why_full(self) -> str:
        """Empty if there is room for another row."""
        if self.held_bytes >= CONTENT_BYTES_MAX:
            return f"the limit of {CONTENT_BYTES_MAX >> 20} MB on a page"
        if self.request.by_key:
            return f"the limit of {KEYS_MAX:,} keys" if len(self.by_key) >= KEYS_MAX else ""
        return f"the limit of {self.request.rows} rows" if len(self.found) >= self.request.rows else ""


@dataclass(frozen=True, slots=True)
class Read:
    """What a page shows of the records it has read."""

    data: dict[str, Any]
    records: list[ConsumerRecord]
    """Those of its rows, without markers."""


def read_messages(admin: Admin, request: Request, offsets: PartitionOffsets) -> Read:
    """Rows from an offset on, as JSON values, with where to go on and why it stopped."""
    limit = offsets.limit(request.isolation)
    start = min(max(request.start, offsets.start), limit)
    reading = _read(admin, Reading(request, start), limit, time.monotonic() + BUDGET_S)
    # Those of keys are in the order in which their newest records came.
    rows = list(reading.by_key.values())[-request.rows :] if request.by_key else reading.found
    outcomes = Outcomes.of(admin, request, rows, offsets)
    data = {
        "start": start,
        "next": reading.next_offset,
        "log_start": offsets.start,
        "last_stable": offsets.last_stable,
        "end": offsets.end,
        "read_bytes": reading.read_bytes,
        "stopped_by": reading.stopped_by,
        "at_end": reading.next_offset >= limit,
        "key_count": len(reading.by_key) if request.by_key else None,
        "rows": [_row(request.partition, one, outcomes) for one in rows],
    }
    return Read(data, [one.record for one in rows if one.record is not None])


def search_partitions(
    admin: Admin, requests: Sequence[Request], offsets: Mapping[TopicPartition, PartitionOffsets]
) -> Read:
    """One partition after the other, with one budget for all. `resume` says where to go on, if it stopped before."""
    deadline_s = time.monotonic() + BUDGET_S
    rows: list[dict[str, Any]] = []
    records: list[ConsumerRecord] = []
    places = []
    read_bytes, held_bytes, stopped_by, resume = 0, 0, "", None
    for request in requests:
        limit = offsets[request.partition].limit(request.isolation)
        start = min(max(request.start, offsets[request.partition].start), limit)
        reading = Reading(replace(request, rows=request.rows - len(rows)), start, read_bytes, held_bytes)
        stopped_by = reading.why_full or _budget_used_up(reading, deadline_s)
        if not stopped_by:
            _read(admin, reading, limit, deadline_s)
            read_bytes, held_bytes = reading.read_bytes, reading.held_bytes
            outcomes = Outcomes.of(admin, request, reading.found, offsets[request.partition])
            rows += [_row(request.partition, one, outcomes) for one in reading.found]
            records += [one.record for one in reading.found if one.record is not None]
            stopped_by = reading.stopped_by if reading.next_offset < limit else ""
            places.append({"partition": request.partition.partition, "start": start, "next": reading.next_offset})
        if stopped_by:
            resume = f"{request.partition.partition}:{reading.next_offset}"
            break
    if len(rows) >= requests[0].rows:
        stopped_by = f"the limit of {requests[0].rows} rows"
    data = {
        "rows": rows,
        "searched": places,
        "resume": resume,
        "read_bytes": read_bytes,
        "stopped_by": stopped_by or "the end of the last partition",
        "at_end": resume is None,
    }
    return Read(data, records)


def _read(admin: Admin, reading: Reading, limit: int, deadline_s: float) -> Reading:
    request = reading.request
    with RangeReader(
        admin, isolation=request.isolation, fetch_bytes=FETCH_BYTES, idle_timeout_ms=BUDGET_S * 1000
    ) as reader:
        try:
            for chunk in reader.read(*request.partition, reading.next_offset, limit):
                try:
                    _take_chunk(reading, chunk, deadline_s)
                except OutOfTime as error:
                    reading.next_offset, reading.stopped_by = error.next_offset, f"the budget of {BUDGET_S:g} s"
                if not reading.stopped_by and reading.next_offset < limit:
                    reading.stopped_by = _budget_used_up(reading, deadline_s)
                if reading.stopped_by:
                    return reading
        except CorruptBatch as error:
            # What was read before is shown; the next page begins behind it.
            reading.next_offset, reading.stopped_by = error.next_offset, f"records of {error.what}"
            return reading
    reading.stopped_by = "the end of the partition"
    return reading


def _take_chunk(reading: Reading, chunk: FetchedChunk, deadline_s: float) -> None:
    whole = reading.request.whole
    for header, seen, marker in rows_of(chunk, reading.request, deadline_s):
        reading.stopped_by = reading.why_full
        if reading.stopped_by:
            return
        reading.take(Found.of(header, seen, whole=whole) if seen is not None else Found(header, None, marker))
    reading.next_offset = chunk.next_offset if chunk.end_offset < 0 else min(chunk.next_offset, chunk.end_offset)
    reading.read_bytes += len(chunk.data)


def _budget_used_up(reading: Reading, deadline_s: float) -> str:
    if reading.read_bytes >= BUDGET_BYTES:
        return f"the budget of {BUDGET_BYTES >> 20} MB"
    return f"the budget of {BUDGET_S:g} s" if time.monotonic() >= deadline_s else ""


class OutOfTime(Exception):
    """Nothing was looked at from this offset on."""

    def __init__(self, next_offset: int) -> None:
        super().__init__(next_offset)
        self.next_offset = next_offset


def rows_of(
    chunk: FetchedChunk, request: Request, deadline_s: float = float("inf")
) -> Iterator[tuple[BatchHeader, Seen | None, ControlMarker | None]]:
    """Records, and at read_uncommitted markers, in the order of their offsets.

    Raises OutOfTime between two batches: a chunk may unfold into far more than was read.
    """
    visible = {header.base_offset: (at, header) for at, header in chunk.batches}
    has_markers = request.isolation is IsolationLevel.READ_UNCOMMITTED and request.needle is None and not request.by_key
    for number, (header, marker) in enumerate(chunk.batches_and_markers()):
        if number and time.monotonic() >= deadline_s:
            raise OutOfTime(header.base_offset)
        if header.is_control:
            if marker is not None and has_markers:
                yield header, None, marker
        elif header.base_offset in visible:
            one_batch = chunk._replace(batches=[visible[header.base_offset]])
            for record in iter_records(one_batch):
                # What is masked cannot be searched for either.
                seen = request.contents.see(record)
                if request.needle is None or request.needle.matches(seen.record):
                    yield header, seen, None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of transactional batches."""

    is_all_committed: bool
    last_stable: int
    committed: frozenset[int]
    """Base offsets of batches below the last stable offset that a read_committed reader gets."""
    after: Timeline | None
    """From the last stable offset on."""

    @classmethod
    def of(cls, admin: Admin, request: Request, rows: Sequence[Found], offsets: PartitionOffsets) -> Outcomes:
        transactional = [one.header for one in rows if one.record is not None and one.header.is_transactional]
        if request.isolation is IsolationLevel.READ_COMMITTED or not transactional:
            return cls(True, offsets.last_stable, frozenset(), None)
        first, last = transactional[0].base_offset, transactional[-1].last_offset
        committed = _committed_batches(admin, request.partition, first, min(last + 1, offsets.last_stable))
        after = None
        if last >= offsets.last_stable:
            after = read_timeline(
                admin, request.partition, offsets.last_stable, batches_max=len(rows) + LOOK_AHEAD_BATCHES
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


def _row(partition: TopicPartition, one: Found, outcomes: Outcomes) -> dict[str, Any]:
    header, record = one.header, one.record
    shared = {
        "partition": partition.partition,
        "producer_id": header.producer_id if header.producer_id >= 0 else None,
        "producer_epoch": header.producer_epoch if header.producer_id >= 0 else None,
        "batch_offset": header.base_offset,
        "codec": header.codec,
    }
    if record is None:
        place = {"offset": header.base_offset, "time_ms": header.max_timestamp}
        return {**place, "kind": one.kind, "outcome": None, **shared}
    return {
        "offset": record.offset,
        "time_ms": record.timestamp_ms,
        "kind": one.kind,
        "outcome": outcomes.name(header),
        **shared,
        **content_row(record, one.size, one.is_cut),
        **schema_row(one.decoded),
    }


def schema_row(decoded: Decoded | None) -> dict[str, Any]:
    """The schema by which the value was decoded, or why it was not decoded."""
    if decoded is None:
        return {}
    schema = decoded.schema_id if isinstance(decoded.schema_id, int) else str(decoded.schema_id)
    return {"schema_id": schema, "schema_problem": decoded.problem or None}


def line_of(record: ConsumerRecord) -> dict[str, Any]:
    """A record in the form that `oncelog produce -F json` takes and `consume -o json` writes."""
    row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **shown("key", record.key),
        **shown("value", record.value),
    }
    headers = [{"name": name, **shown("value", content)} for name, content in record.headers]
    return {**row, "headers": headers} if headers else row


def content_row(record: ConsumerRecord, size: int, is_cut: bool) -> dict[str, Any]:
    decoder = decoder_for(record.topic)
    if decoder is not None:
        decoded = decoder(DecodedRecord(record.offset, record.timestamp_ms, -1, record.key, record.value, ()))
        return {
            "decoded": {"key": decoded.key, "value": decoded.value, "problem": decoded.problem or None},
            "bytes": size,
        }
    return {
        **shown("key", record.key),
        **shown("value", record.value),
        "headers": [{"name": name, **shown("value", cut(content))} for name, content in record.headers],
        "bytes": size,
        "cut": is_cut,
    }


def cut(data: bytes | None, size: int = VALUE_BYTES_MAX) -> bytes | None:
    """The start of a content, which does not end within a character, so that text stays text."""
    if data is None or len(data) <= size:
        return data
    end = size
    while end > size - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]
