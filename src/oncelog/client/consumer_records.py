"""Records as a consumer hands them out, one object each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from oncelog.client.errors import CorruptBatch, KafkaError
from oncelog.client.fetcher import FetchedChunk
from oncelog.core.ids import TopicPartition
from oncelog.protocol import compression
from oncelog.protocol.batch import HEADER_BYTES, BatchHeader
from oncelog.protocol.compression import CompressionError
from oncelog.protocol.primitives import MalformedRequest, read_varlong

_NULL: Final = 1
"""The varint of -1, by which a null key or value is told from an empty one."""


class ConsumerRecord(NamedTuple):
    """A record and where it is. `timestamp_type` is 0 when the producer set the time, 1 when the broker did."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def iter_records(chunk: FetchedChunk) -> Iterator[ConsumerRecord]:
    """The visible records of a chunk within its range. Raises CorruptBatch, unless the chunk is to leave them out."""
    for position, header in chunk.batches:
        if header.records_count:
            yield from _iter_batch(chunk, position, header)


def _iter_batch(chunk: FetchedChunk, position: int, header: BatchHeader) -> Iterator[ConsumerRecord]:
    topic, partition = chunk.partition
    base_offset, last_offset, leader_epoch = header.base_offset, header.last_offset, header.leader_epoch
    appended = header.timestamp_type_append
    start_offset, end_offset = chunk.start_offset, chunk.end_offset
    at, next_offset = 0, max(base_offset, start_offset)
    try:
        packed = chunk.data[position + HEADER_BYTES : position + header.size_bytes]
        section = compression.decompress(header.codec, packed) if header.codec else bytes(packed)
        size = len(section)
        for _ in range(header.records_count):
            length, body = read_varlong(section, at)
            at = body + length
            if length <= 0 or at > size:
                raise MalformedRequest(f"a record claims {length} bytes")
            # Most varints have one byte, and a call for each of them would be half of the work.
            byte = section[body + 1]
            delta, cursor = (byte >> 1 ^ -(byte & 1), body + 2) if byte < 0x80 else read_varlong(section, body + 1)
            offset_delta, cursor = read_varlong(section, cursor)
            offset = base_offset + offset_delta
            if not base_offset <= offset <= last_offset:
                raise MalformedRequest(f"a record claims offset {offset}")
            if offset < start_offset:
                continue
            if 0 <= end_offset <= offset:
                return
            byte = section[cursor]
            if byte == _NULL:
                key, cursor = None, cursor + 1
            else:
                key, cursor = _field(section, cursor, at)
            value, cursor = _field(section, cursor, at)
            record = ConsumerRecord(
                topic,
                partition,
                offset,
                header.max_timestamp if appended else header.base_timestamp + delta,
                int(appended),
                key,
                value,
                () if section[cursor] == 0 else _headers(section, cursor, at),
                leader_epoch,
            )
            next_offset = offset + 1
            yield record
        if at != size and next_offset <= last_offset:
            raise MalformedRequest(f"{size - at} bytes follow the last one that is counted")
    except (IndexError, UnicodeDecodeError, MalformedRequest, CompressionError) as error:
        reason = error.message if isinstance(error, KafkaError) else f"malformed record: {error}"
        chunk.report(CorruptBatch(chunk.partition, next_offset, header.next_offset, reason))


def _field(section: bytes, cursor: int, end: int) -> tuple[bytes | None, int]:
    byte = section[cursor]
    size, cursor = (byte >> 1 ^ -(byte & 1), cursor + 1) if byte < 0x80 else read_varlong(section, cursor)
    after = cursor + size
    if size >= 0 and after <= end:
        return section[cursor:after], after
    if size == -1:
        return None, cursor
    raise MalformedRequest(f"a field claims {size} bytes")


def _headers(section: bytes, cursor: int, end: int) -> tuple[tuple[str, bytes | None], ...]:
    count, cursor = read_varlong(section, cursor)
    if not 0 <= count <= end - cursor:
        raise MalformedRequest(f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, cursor = _field(section, cursor, end)
        content, cursor = _field(section, cursor, end)
        headers.append(((name or b"").decode(), content))
    return tuple(headers)
