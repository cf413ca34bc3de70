"""Record batches to Arrow columns, without a Python loop per record.

Theory of operation. Where a record starts is known only from the lengths of all before it, so that chain is followed
first: records of equal size, as long runs of them as there are, with one comparison per run, the others one by one. All
else is done for all records at once: numpy reads each varint field of every record in a few passes over the positions,
and Arrow gathers the bytes of keys and values (`take` over an array in which wanted and unwanted stretches alternate).
Many batches go into one set of columns, since the cost of a call, not of a byte, is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog.client.consumer_records import ConsumerRecord, iter_records
from oncelog.client.errors import CorruptBatch, KafkaError
from oncelog.client.fetcher import FetchedChunk
from oncelog.core.ids import TopicPartition
from oncelog.protocol import compression
from oncelog.protocol.batch import HEADER_BYTES, BatchHeader, CorruptBatchError
from oncelog.protocol.primitives import MalformedRequest, Readable, read_varlong

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
    ]
)
"""The columns of Spark's Kafka source, `headers` always among them; timestampType is 0 for create time, else 1."""

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""What a binary column of Arrow holds, whose offsets have 32 bits."""
UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""From so many bytes of decompressed records on a RecordBatch is full: some calls for them all, and memory for few."""
_TIME_MS_MAX: Final = (2**63 - 1) // 1000
"""What fits into microseconds; times beyond (nanoseconds given for milliseconds) are cut to it."""
_RUN_MIN: Final = 8
_WINDOW: Final = 64
_WINDOW_MAX: Final = 1 << 16
_VARINT_BYTES_MAX: Final = 10


class _Section(NamedTuple):
    """The uncompressed records of one batch, somewhere in a buffer."""

    header: BatchHeader
    start: int
    end: int


def arrow_batches(chunk: FetchedChunk, *, headers: bool = True) -> Iterator[pa.RecordBatch]:
    """All visible records of a chunk within its range, in order, as RecordBatches of `SCHEMA`.

    Each holds some UNPACKED_BYTES of uncompressed records: compressed ones may be a thousand times as large as the
    answer they came in. Raises CorruptBatch behind what is readable before it, unless the chunk is to leave out what
    cannot be read. With `headers=False` that column is null and costs nothing.
    """
    left = [(at, header) for at, header in chunk.batches if header.records_count]
    while left:
        try:
            count, together = _decode_together(chunk, left, headers)
        except KafkaError:
            # Batches are decoded together, so it is not known which of them it is.
            for batch in left:
                yield from _decode_carefully(chunk, batch, headers)
            return
        yield together
        del left[:count]


def to_arrow(chunks: Iterable[FetchedChunk], *, headers: bool = True) -> pa.RecordBatch:
    """The same of several chunks as one RecordBatch. Raises ValueError when there is more than one can hold."""
    return joined([part for chunk in chunks for part in arrow_batches(chunk, headers=headers)])


def first_columns(
    chunks: Sequence[FetchedChunk],
) -> tuple[pa.RecordBatch, dict[TopicPartition, int], CorruptBatch | None]:
    """What of the chunks can be read and fits into one RecordBatch; and, unless that is all, the offsets to go on at in
    the others, with the error if there was one."""
    parts: list[pa.RecordBatch] = []
    size_bytes = 0
    for number, chunk in enumerate(chunks):
        position, others = chunk.start_offset, {later.partition: later.start_offset for later in chunks[number + 1 :]}
        try:
            for part in arrow_batches(chunk):
                size_bytes += part.nbytes
                if parts and size_bytes > COLUMN_BYTES_MAX:
                    return joined(parts), {chunk.partition: position, **others}, None
                parts.append(part)
                position = part.column("offset")[-1].as_py() + 1 if part.num_rows else position
        except CorruptBatch as error:
            return joined(parts), {error.partition: error.offset, **others}, error
    return joined(parts), {}, None


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """As one RecordBatch. Raises ValueError above COLUMN_BYTES_MAX."""
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema=SCHEMA).combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(
            f"{sum(part.nbytes for part in parts)} bytes of records do not fit into one Arrow RecordBatch, which holds "
            f"{COLUMN_BYTES_MAX} of a column: take arrow_batches in place of to_arrow"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=SCHEMA)


def decode_batches(
    partition: TopicPartition,
    data: Readable,
    batches: Sequence[tuple[int, BatchHeader]],
    *,
    start_offset: int = 0,
    end_offset: int = -1,
    headers: bool = True,
) -> pa.RecordBatch:
    """The records of given batches (position and header) whose offsets are in [start_offset, end_offset)."""
    chunk = FetchedChunk(
        partition, start_offset, -1, end_offset, memoryview(data), list(batches), -1, -1, skip_corrupt_batches=False
    )
    return to_arrow([chunk], headers=headers)


def _decode_carefully(chunk: FetchedChunk, batch: tuple[int, BatchHeader], headers: bool) -> Iterator[pa.RecordBatch]:
    """The records of one batch, one by one if it cannot be read as a whole."""
    try:
        whole = _decode_together(chunk, [batch], headers)[1]
    except KafkaError:
        rows: list[dict[str, Any]] = []
        try:
            for record in iter_records(chunk._replace(batches=[batch])):
                rows.append(_row(record, headers))
        finally:
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    else:
        yield whole


def _row(record: ConsumerRecord, headers: bool) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers] if headers else None,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": min(max(record.timestamp_ms, -_TIME_MS_MAX), _TIME_MS_MAX) * 1000,
        "timestampType": record.timestamp_type,
    }


def _decode_together(
    chunk: FetchedChunk, batches: Sequence[tuple[int, BatchHeader]], headers: bool
) -> tuple[int, pa.RecordBatch]:
    """Decode as many of the batches as make UNPACKED_BYTES, and say how many those are."""
    plain: list[_Section] = []
    packed: list[_Section] = []
    pieces: list[bytes] = []
    filled = count = 0
    for at, header in batches:
        start, end = at + HEADER_BYTES, at + header.size_bytes
        if header.codec:
            pieces.append(compression.decompress(header.codec, chunk.data[start:end]))
            packed.append(_Section(header, filled, filled + len(pieces[-1])))
            filled += len(pieces[-1])
        else:
            plain.append(_Section(header, start, end))
        count += 1
        if filled >= UNPACKED_BYTES:
            break
    parts = [
        _decode_sections(chunk, buffer, sections, headers)
        for buffer, sections in ((chunk.data, plain), (memoryview(b"".join(pieces)), packed))
        if sections
    ]
    return count, parts[0] if len(parts) == 1 else _sorted_by_offset(parts)


def _sorted_by_offset(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return joined(pa.Table.from_batches(parts, schema=SCHEMA).sort_by("offset").to_batches())


def _decode_sections(
    chunk: FetchedChunk, buffer: memoryview, sections: list[_Section], headers: bool
) -> pa.RecordBatch:
    array = np.frombuffer(buffer, np.uint8)
    try:
        starts = [_record_starts(buffer, array, section) for section in sections]
        counts = np.array([len(part) for part in starts], np.int64)
        fields = _Fields(array, np.concatenate(starts), _ends_of(starts, sections))
        offsets, timestamps, types = _stamps(sections, counts, fields)
        wanted = _wanted(chunk, offsets)
        header_column = fields.header_column(buffer) if headers else pa.nulls(len(offsets), HEADERS_TYPE)
        keys = _gather(buffer, fields.key_at, fields.key_size, pa.binary())
        values = _gather(buffer, fields.value_at, fields.value_size, pa.binary())
    except (IndexError, MalformedRequest, pa.ArrowInvalid) as error:
        raise CorruptBatchError(
            f"malformed records in {chunk.partition} near offset {sections[0].header.base_offset}: {error}"
        ) from error
    count = len(offsets)
    batch = pa.RecordBatch.from_arrays(
        [
            keys,
            values,
            header_column,
            pa.repeat(pa.scalar(chunk.partition.topic, pa.string()), count),
            pa.array(np.full(count, chunk.partition.partition, np.int32)),
            pa.array(offsets),
            pa.array(np.clip(timestamps, -_TIME_MS_MAX, _TIME_MS_MAX) * 1000).cast(pa.timestamp("us", tz="UTC")),
            pa.array(types),
        ],
        schema=SCHEMA,
    )
    return batch.slice(*wanted)


def _wanted(chunk: FetchedChunk, offsets: Ints) -> tuple[int, int]:
    """Position and count of the records in the range of the chunk; offsets only grow."""
    first = int(np.searchsorted(offsets, chunk.start_offset))
    last = len(offsets) if chunk.end_offset < 0 else int(np.searchsorted(offsets, chunk.end_offset))
    return first, max(0, last - first)


# Where records start


def _record_starts(buffer: memoryview, array: Bytes, section: _Section) -> Ints:
    """Positions of the length fields of a batch's records."""
    count = section.header.records_count
    if not 0 < count <= section.end - section.start:
        raise MalformedRequest(f"a batch claims {count} records in {section.end - section.start} bytes")
    starts = np.empty(count, np.int64)
    done, position, window = 0, section.start, _WINDOW
    while done < count:
        run, size = _run_length(buffer, array, position, section.end, min(window, count - done))
        starts[done : done + run] = position + size * np.arange(run)
        done += run
        position += run * size
        if run >= _RUN_MIN:
            window = min(window * 2, _WINDOW_MAX)
        elif done < count:
            window = _WINDOW
            chain = _chain(buffer, position, min(8 * _WINDOW, count - done))
            starts[done : done + len(chain) - 1] = chain[:-1]
            done += len(chain) - 1
            position = chain[-1]
    if position != section.end:
        raise MalformedRequest(f"the records end at byte {position}, the batch at byte {section.end}")
    return starts


def _run_length(buffer: memoryview, array: Bytes, position: int, end: int, count_max: int) -> tuple[int, int]:
    """How many records from here on have the size of the first one, and that size."""
    length, body = read_varlong(buffer, position)
    size = body - position + length
    if length <= 0 or position + size > end:
        raise MalformedRequest(f"a record at byte {position} claims {length} bytes, {end - body} are left")
    count = min(count_max, (end - position) // size)
    if count < _RUN_MIN:
        return 1, size
    table = array[position : position + count * size].reshape(count, size)
    width = body - position
    same = table[:, 0] == array[position]
    for column in range(1, width):
        same &= table[:, column] == array[position + column]
    return count if bool(same.all()) else int(np.argmin(same)), size


def _chain(buffer: memoryview, position: int, count: int) -> list[int]:
    """Follow the lengths of `count` records one by one; the last entry is where the next record would start."""
    chain = [position]
    add = chain.append
    for _ in range(count):
        byte = buffer[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
        else:
            second = buffer[position + 1]
            if second < 0x80:
                position += 2 + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, body = read_varlong(buffer, position)
                if length <= 0:
                    raise MalformedRequest(f"a record at byte {position} claims {length} bytes")
                position = body + length
        add(position)
    return chain


def _ends_of(starts: list[Ints], sections: list[_Section]) -> Ints:
    """Where each record ends: where the next one starts, or the batch ends."""
    ends = [np.append(part[1:], section.end) for part, section in zip(starts, sections, strict=True)]
    return np.concatenate(ends)


# What is in them


class _Fields:
    """Positions and sizes of the fields of all records, read one field at a time for all of them."""

    def __init__(self, array: Bytes, starts: Ints, ends: Ints) -> None:
        self._array = array
        _, at = _varints(array, starts)
        at += 1
        self.timestamp_deltas, at = _varints(array, at)
        self.offset_deltas, at = _varints(array, at)
        self.key_size, self.key_at = _varints(array, at)
        self.value_size, self.value_at = _varints(array, self.key_at + np.maximum(self.key_size, 0))
        self._header_counts, self._headers_at = _varints(array, self.value_at + np.maximum(self.value_size, 0))
        plain = self._header_counts == 0
        if bool((self._headers_at[plain] != ends[plain]).any()) or bool((self._headers_at > ends).any()):
            raise MalformedRequest("a record's length does not fit its fields")
        self._ends = ends

    def header_column(self, buffer: memoryview) -> pa.Array:
        counts = self._header_counts
        if int(counts.min(initial=0)) < 0 or bool((counts > self._ends - self._headers_at).any()):
            raise MalformedRequest("a record claims more headers than it has bytes")
        list_offsets = np.concatenate(([0], np.cumsum(counts)))
        total = int(list_offsets[-1])
        key_at, key_size, value_at, value_size = (np.zeros(total, np.int64) for _ in range(4))
        at = self._headers_at.copy()
        # The n-th headers of all records that have one are read together.
        for ordinal in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > ordinal)
            target = list_offsets[rows] + ordinal
            key_size[target], key_at[target] = _varints(self._array, at[rows])
            value_size[target], value_at[target] = _varints(self._array, key_at[target] + key_size[target])
            at[rows] = value_at[target] + np.maximum(value_size[target], 0)
        if bool((at != self._ends).any()) or int(key_size.min(initial=0)) < 0:
            raise MalformedRequest("a record's length does not fit its headers")
        items = pa.StructArray.from_arrays(
            [
                _gather(buffer, key_at, key_size, pa.string()),
                _gather(buffer, value_at, value_size, pa.binary()),
            ],
            fields=list(HEADERS_TYPE.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(list_offsets.astype(np.int32)), items, type=HEADERS_TYPE)


def _varints(array: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The zigzag integers at the given positions, and the positions after them."""
    first = array[at]
    raw = first.astype(np.uint64)
    after = at + 1
    rows = np.flatnonzero(first >= 0x80)
    if len(rows):
        raw &= np.uint64(0x7F)
        for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
            byte = array[after[rows]]
            raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[rows] += 1
            rows = rows[byte >= 0x80]
            if not len(rows):
                break
        else:
            raise MalformedRequest(f"a varint is longer than {_VARINT_BYTES_MAX} bytes")
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), after


def _stamps(sections: list[_Section], counts: Ints, fields: _Fields) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
    """Offset, timestamp in milliseconds and timestamp type of every record."""
    headers = [section.header for section in sections]
    offsets = np.repeat(np.array([h.base_offset for h in headers], np.int64), counts) + fields.offset_deltas
    last_offsets = np.repeat(np.array([h.last_offset for h in headers], np.int64), counts)
    if bool((fields.offset_deltas < 0).any()) or bool((offsets > last_offsets).any()):
        raise MalformedRequest("a record claims an offset that its batch does not have")
    timestamps = np.repeat(np.array([h.base_timestamp for h in headers], np.int64), counts) + fields.timestamp_deltas
    appended = np.array([h.timestamp_type_append for h in headers], bool)
    types = np.repeat(appended.astype(np.int32), counts)
    if bool(appended.any()):
        append_times = np.repeat(np.array([h.max_timestamp for h in headers], np.int64), counts)
        timestamps = np.where(types == 1, append_times, timestamps)
    return offsets, timestamps, types


def _gather(buffer: memoryview, at: Ints, sizes: Ints, kind: Any) -> pa.Array:
    """The byte strings at the given positions, which must grow; a size of -1 is null."""
    count = len(at)
    if not count:
        return pa.array([], kind)
    nulls = sizes < 0
    if int(sizes.min()) < -1:
        raise MalformedRequest("a field has a negative size")
    if bool(nulls.all()):
        return pa.nulls(count, kind)
    bounds = np.empty(2 * count, np.int64)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(sizes, 0)
    if bool((bounds[1:] < bounds[:-1]).any()) or int(bounds[0]) < 0 or int(bounds[-1]) > len(buffer):
        raise MalformedRequest("the fields of a record overlap")
    offsets = pa.py_buffer(bounds.astype(np.int32))
    stretches = pa.Array.from_buffers(kind, 2 * count - 1, [None, offsets, pa.py_buffer(buffer)])
    wanted = np.arange(0, 2 * count - 1, 2, dtype=np.int64)
    mask = nulls if bool(nulls.any()) else None
    taken = stretches.take(pa.array(wanted, mask=mask))
    if kind == pa.string():
        taken.validate(full=True)
    return taken
