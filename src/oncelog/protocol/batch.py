"""Record batch v2 (magic 2): the bytes of a `.log` file and of the `records` fields of Produce and Fetch.

    offset size field
         0    8 baseOffset
         8    4 batchLength           bytes after this field: total size - 12
        12    4 partitionLeaderEpoch  set by the leader, not covered by the CRC
        16    1 magic                 2
        17    4 crc                   CRC-32C of bytes 21..end
        21    2 attributes            0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon
        23    4 lastOffsetDelta
        27    8 baseTimestamp         the delete horizon if bit 6 is set; -1 in an empty batch
        35    8 maxTimestamp
        43    8 producerId            -1 none
        51    2 producerEpoch         -1 none
        53    4 baseSequence          -1 none
        57    4 recordsCount
        61    - records               compressed as one blob if a codec is set

A record is: varint length of what follows, int8 attributes (0), varlong timestamp delta, varint offset delta, varint
key length (-1 null) and key, varint value length (-1 null) and value, varint header count, and for each header varint
key length and key, varint value length (-1 null) and value.

A transaction marker is a control batch of one record: key int16 version 0 and int16 type (0 abort, 1 commit), value
int16 version 0 and int32 coordinator epoch. It is always 78 bytes.

The broker lives on `read_header` alone: everything below `encode_records` is for markers, for the coordinators' own
records, for compaction and for tools.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import google_crc32c

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import SEQUENCE_MAX
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol import compression
from oncelog.protocol.primitives import MalformedRequest, Readable, append_varlong, read_varlong

MAGIC: Final = 2
HEADER_BYTES: Final = 61
"""Also the size of an empty batch."""
PREFIX_BYTES: Final = 21
"""Base offset, length, leader epoch, magic and CRC: what a leader rewrites. The CRC covers what follows."""
LENGTH_OVERHEAD_BYTES: Final = 12
"""Base offset and the length itself, which `batch_length` does not count."""
CONTROL_BATCH_BYTES: Final = 78

CODEC_MASK: Final = 0x07
TIMESTAMP_APPEND_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = struct.Struct(">qiibI")
_AFTER_PREFIX: Final = struct.Struct(">hiqqqhii")
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")
_NULL: Final = 1
"""The length -1 of what is null, as it is written."""

Header = tuple[str, bytes | None]


class CorruptBatchError(KafkaError):
    """Bytes that are not a whole, well-formed record batch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class Record(NamedTuple):
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class ControlMarker(NamedTuple):
    """What a control batch says. `coordinator_epoch` is -1 for types that carry none."""

    type: int
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        return self.type == CONTROL_COMMIT

    @property
    def is_abort(self) -> bool:
        return self.type == CONTROL_ABORT


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2147483647 to 0; a batch without sequences has -1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type_append(self) -> bool:
        return bool(self.attributes & TIMESTAMP_APPEND_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_BIT)


def read_header(data: Readable, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked except that it is all there."""
    try:
        return BatchHeader._make(_HEADER.unpack_from(data, position))
    except struct.error:
        left = len(data) - position
        raise CorruptBatchError(
            f"a batch header takes {HEADER_BYTES} bytes, {left} are left at byte {position}"
        ) from None


def iter_headers(data: Readable, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch of a concatenation. Raises CorruptBatchError unless all are whole.

    Other loops over batches differ for a reason: `storage.segment_batches` reads a file in chunks,
    `storage.intact_batches` goes on behind damage, `storage.log_reader` looks at lengths alone, `storage.append_checks`
    and `client.visibility` answer older formats with codes of their own, and the latter takes a last batch that was
    cut off, as `whole_batches` does.
    """
    end = len(data)
    while position < end:
        header = read_header(data, position)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if not HEADER_BYTES <= size <= end - position:
            raise CorruptBatchError(f"the batch at byte {position} claims {size} bytes, {end - position} are left")
        yield position, header
        position += size


def whole_batches(data: Readable) -> Readable:
    """The data without a last batch that is cut off. An answer to Fetch may end with one."""
    position = 0
    while position + LENGTH_OVERHEAD_BYTES <= len(data):
        end = position + LENGTH_OVERHEAD_BYTES + int.from_bytes(data[position + 8 : position + 12], "big")
        if end > len(data):
            break
        position = end
    return data[:position]


def crc_of(data: Readable, position: int, size: int) -> int:
    """CRC-32C of the batch of `size` bytes at `position`, to be compared with `BatchHeader.crc`."""
    # The compiled checksum accepts nothing but `bytes`.
    return crc_of_covered(bytes(data[position + PREFIX_BYTES : position + size]))


def crc_of_covered(covered: bytes) -> int:
    """The same for a copy of what the CRC covers, bytes 21..end of the batch."""
    return int(google_crc32c.value(covered))


def pack_prefix(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """The 21 bytes a leader puts before bytes 21..end of a batch; these keep their CRC."""
    return _PREFIX.pack(base_offset, header.batch_length, leader_epoch, header.magic, header.crc)


def stamp_append_time(batch: Readable, timestamp_ms: int) -> bytes:
    """The batch with log append time set on all its records, which needs a new CRC but no decoding."""
    out = bytearray(batch)
    struct.pack_into(">h", out, 21, read_header(batch).attributes | TIMESTAMP_APPEND_BIT)
    return with_max_timestamp(out, timestamp_ms)


def with_max_timestamp(batch: Readable, timestamp_ms: int) -> bytes:
    """The batch with another largest timestamp, and the CRC that goes with it."""
    out = bytearray(batch)
    struct.pack_into(">q", out, 35, timestamp_ms)
    struct.pack_into(">I", out, 17, crc_of(out, 0, len(out)))
    return bytes(out)


def encode_records(records: Iterable[Record]) -> bytearray:
    """The records section of a batch, uncompressed. What most records do not have is written without a call."""
    out = bytearray()
    body = bytearray()
    for offset_delta, timestamp_delta, key, value, headers in records:
        body.clear()
        body.append(0)
        if timestamp_delta:
            append_varlong(body, timestamp_delta)
        else:
            body.append(0)
        append_varlong(body, offset_delta)
        if key is None:
            body.append(_NULL)
        else:
            _append_bytes(body, key)
        _append_bytes(body, value)
        if headers:
            append_varlong(body, len(headers))
            for name, header_value in headers:
                _append_bytes(body, name.encode())
                _append_bytes(body, header_value)
        else:
            body.append(0)
        append_varlong(out, len(body))
        out += body
    return out


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
        return
    append_varlong(out, len(data))
    out += data


def build_batch(
    records: Sequence[Record],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    codec: int = Codec.NONE,
    last_offset_delta: int | None = None,
    max_timestamp_ms: int | None = None,
    append_time: bool = False,
) -> bytes:
    """One batch, with `timestamp_ms` as the base to which the records' deltas are relative.

    `last_offset_delta` and `max_timestamp_ms` follow from the records unless given, as compaction must to keep what
    a batch said before records were removed from it.
    """
    invariant(bool(records) or last_offset_delta is not None, "an empty batch needs its last offset delta")
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset_delta
    if max_timestamp_ms is None:
        max_timestamp_ms = timestamp_ms + max((record.timestamp_delta for record in records), default=0)
    attributes = codec | transactional << 4 | control << 5 | append_time << 3
    return pack_batch(
        encode_records(records),
        len(records),
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        timestamp_ms=timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def pack_batch(
    section: Readable,
    records_count: int,
    *,
    attributes: int,
    last_offset_delta: int,
    timestamp_ms: int,
    max_timestamp_ms: int,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """A batch around a records section, which comes uncompressed and gets the codec that the attributes name."""
    codec = attributes & CODEC_MASK
    rest = _AFTER_PREFIX.pack(
        attributes,
        last_offset_delta,
        timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    rest += compression.compress(codec, section) if codec else section
    length = PREFIX_BYTES - LENGTH_OVERHEAD_BYTES + len(rest)
    return _PREFIX.pack(base_offset, length, leader_epoch, MAGIC, google_crc32c.value(rest)) + rest


def build_control_batch(
    commit: bool,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A transaction marker."""
    key = _CONTROL_KEY.pack(0, CONTROL_COMMIT if commit else CONTROL_ABORT)
    batch = build_batch(
        [Record(0, 0, key, _CONTROL_VALUE.pack(0, coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    invariant(len(batch) == CONTROL_BATCH_BYTES, "a transaction marker has a fixed size")
    return batch


def parse_control(data: Readable, position: int = 0) -> ControlMarker:
    """The marker in the control batch at `position`. Higher versions only add fields, so their prefix is read."""
    header = read_header(data, position)
    if not header.is_control:
        raise CorruptBatchError(f"the batch at offset {header.base_offset} is not a control batch")
    records = decode_records(data, position)
    if not records:
        raise CorruptBatchError(f"the control batch at offset {header.base_offset} is empty")
    record = records[0]
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptBatchError(f"the control record at offset {header.base_offset} has no type")
    control_type = _CONTROL_KEY.unpack_from(record.key)[1]
    if control_type not in (CONTROL_ABORT, CONTROL_COMMIT):
        return ControlMarker(control_type, -1)
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise CorruptBatchError(f"the transaction marker at offset {header.base_offset} has no coordinator epoch")
    return ControlMarker(control_type, _CONTROL_VALUE.unpack_from(record.value)[1])


def decode_records(data: Readable, position: int = 0) -> list[Record]:
    """All records of the batch at `position`. Raises KafkaError when the batch is corrupt; does not check the CRC."""
    return list(iter_records(data, position))


def iter_records(data: Readable, position: int = 0) -> Iterator[Record]:
    """The same one by one, up to one that cannot be read."""
    header = read_header(data, position)
    size = header.size_bytes
    if header.magic != MAGIC or not HEADER_BYTES <= size <= len(data) - position:
        raise CorruptBatchError(f"no whole batch of magic {MAGIC} at byte {position}")
    section = bytes(data[position + HEADER_BYTES : position + size])
    if header.codec:
        section = compression.decompress(header.codec, section)
    number = cursor = 0
    try:
        while number < header.records_count:
            record, cursor = _decode_record(section, cursor)
            yield record
            number += 1
    except (IndexError, UnicodeDecodeError, MalformedRequest) as error:
        raise CorruptBatchError(
            f"record {number} of the batch at offset {header.base_offset} is malformed: {error}"
        ) from error
    if cursor != len(section):
        raise CorruptBatchError(f"{len(section) - cursor} bytes follow the last record at offset {header.last_offset}")


def find_in_records(data: Readable, position: int, parts: Iterable[bytes]) -> bool:
    """Whether some record of the batch at `position` may have one of these bytes in it."""
    header = read_header(data, position)
    section = bytes(data[position + HEADER_BYTES : position + header.size_bytes])
    return header.codec != 0 or any(part in section for part in parts)


def _decode_record(section: bytes, cursor: int) -> tuple[Record, int]:
    """Integers of one byte, and sizes and offsets of two, are read in place, which are nearly all: logs of coordinators
    and of controllers are read record by record at a start."""
    byte = section[cursor]
    if byte < 0x80:
        size, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
    elif (high := section[cursor + 1]) < 0x80:
        size, cursor = (((byte & 0x7F) | (high << 7)) >> 1) ^ -(byte & 1), cursor + 2
    else:
        size, cursor = read_varlong(section, cursor)
    end = cursor + size
    if size < 0 or end > len(section):
        raise MalformedRequest(f"it claims {size} bytes, {len(section) - cursor} are left")
    cursor += 1
    byte = section[cursor]
    if byte < 0x80:
        timestamp_delta, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
    else:
        timestamp_delta, cursor = read_varlong(section, cursor)
    byte = section[cursor]
    if byte < 0x80:
        offset_delta, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
    elif (high := section[cursor + 1]) < 0x80:
        offset_delta, cursor = (((byte & 0x7F) | (high << 7)) >> 1) ^ -(byte & 1), cursor + 2
    else:
        offset_delta, cursor = read_varlong(section, cursor)
    key, cursor = (None, cursor + 1) if section[cursor] == _NULL else _read_bytes(section, cursor, end)
    value, cursor = _read_bytes(section, cursor, end)
    if cursor + 1 == end and section[cursor] == 0:
        return Record(offset_delta, timestamp_delta, key, value), end
    headers, cursor = _read_headers(section, cursor, end)
    if cursor != end:
        raise MalformedRequest(f"its length is off by {end - cursor} bytes")
    return Record(offset_delta, timestamp_delta, key, value, headers), cursor


def _read_headers(section: bytes, cursor: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, cursor = read_varlong(section, cursor)
    if not 0 <= count <= end - cursor:
        raise MalformedRequest(f"it claims {count} headers in {end - cursor} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, cursor = _read_bytes(section, cursor, end)
        if name is None:
            raise MalformedRequest("a header has no name")
        header_value, cursor = _read_bytes(section, cursor, end)
        headers.append((name.decode(), header_value))
    return tuple(headers), cursor


def _read_bytes(section: bytes, cursor: int, end: int) -> tuple[bytes | None, int]:
    byte = section[cursor]
    if byte < 0x80:
        size, cursor = (byte >> 1) ^ -(byte & 1), cursor + 1
    elif (high := section[cursor + 1]) < 0x80:
        size, cursor = (((byte & 0x7F) | (high << 7)) >> 1) ^ -(byte & 1), cursor + 2
    else:
        size, cursor = read_varlong(section, cursor)
    if size == -1:
        return None, cursor
    if not 0 <= size <= end - cursor:
        raise MalformedRequest(f"a field claims {size} bytes, {end - cursor} are left")
    return section[cursor : cursor + size], cursor + size
