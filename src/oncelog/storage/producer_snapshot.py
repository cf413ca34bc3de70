"""The `.snapshot` file: the producer state of a partition up to an offset, exclusive. Schema v1, big-endian.

    offset  size  field
    0       2     version = 1
    2       4     CRC-32C of bytes 6..end
    6       4     number of entries
    10      46    each entry: int64 producerId, int16 producerEpoch, int32 lastSequence, int64 lastOffset (of data,
                  -1 if there is none), int32 offsetDelta (of the last batch), int64 timestamp, int32 coordinatorEpoch
                  (-1 none), int64 currentTxnFirstOffset (-1 none)

The timestamp is when the producer was last heard of: that of its last batch, or the broker's clock when that was
appended, if that was later. Kafka has the former only, and forgets a producer by it when it loads the file.

The file name carries the next offset to be replayed. Only the newest batch of a producer is stored, so after loading
the duplicate window is one batch wide until replay and new appends fill it again.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Final

import google_crc32c

from oncelog.core.ids import NO_OFFSET, NO_SEQUENCE, SEQUENCE_MAX
from oncelog.storage.producer_entry import CachedBatch, ProducerEntry

SNAPSHOT_VERSION: Final = 1
HEADER_SIZE_BYTES: Final = 10
ENTRY_SIZE_BYTES: Final = 46

_CRC_START: Final = 6
_HEADER: Final = struct.Struct(">hIi")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """The bytes are not a snapshot that can be trusted: delete the file and take the one before it."""


def encode_snapshot(entries: Collection[ProducerEntry]) -> bytes:
    pack = _ENTRY.pack  # of tens of thousands, at every roll
    buffer = bytearray(HEADER_SIZE_BYTES) + b"".join([pack(*_fields(entry)) for entry in entries])
    _COUNT.pack_into(buffer, _CRC_START, len(entries))
    crc = google_crc32c.value(bytes(memoryview(buffer)[_CRC_START:]))
    _HEADER.pack_into(buffer, 0, SNAPSHOT_VERSION, crc, len(entries))
    return bytes(buffer)


def check_snapshot(data: bytes) -> None:
    """Raises CorruptSnapshotError for anything but a whole snapshot of version 1 with a matching checksum."""
    if len(data) < HEADER_SIZE_BYTES:
        raise CorruptSnapshotError(f"{len(data)} bytes are less than the header of {HEADER_SIZE_BYTES} bytes")
    version, stored_crc, count = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"version {version} is unknown, expected {SNAPSHOT_VERSION}")
    expected_size = HEADER_SIZE_BYTES + ENTRY_SIZE_BYTES * count
    if count < 0 or len(data) != expected_size:
        raise CorruptSnapshotError(f"{count} entries need {expected_size} bytes, the file has {len(data)}")
    computed_crc = google_crc32c.value(bytes(data[_CRC_START:]))
    if computed_crc != stored_crc:
        raise CorruptSnapshotError(f"stored checksum {stored_crc:#010x} differs from computed {computed_crc:#010x}")


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Raises CorruptSnapshotError as `check_snapshot` does."""
    check_snapshot(data)
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[HEADER_SIZE_BYTES:])]


def without_transactions(data: bytes) -> bytes:
    """The same producers, none of them in a transaction. Raises CorruptSnapshotError."""
    entries = decode_snapshot(data)
    for entry in entries:
        entry.txn_first_offset = NO_OFFSET
    return encode_snapshot(entries)


def encode_known_before(offset: int, entries: Iterable[ProducerEntry]) -> bytes:
    """A snapshot at `offset`, made of what is known further on."""
    return encode_snapshot([known for entry in entries if (known := entry.before(offset)) is not None])


def _fields(entry: ProducerEntry) -> tuple[int, int, int, int, int, int, int, int]:
    if entry.batches:
        newest = entry.batches[-1]
        batch = (newest.last_sequence, newest.last_offset, newest.last_offset - newest.base_offset)
    else:
        batch = (NO_SEQUENCE, NO_OFFSET, 0)
    return (
        entry.producer_id,
        entry.epoch,
        *batch,
        entry.last_active_ms,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerEntry:
    batch = None
    if last_offset >= 0:
        batch = CachedBatch(
            _first_sequence(last_sequence, offset_delta),
            last_sequence,
            last_offset - offset_delta,
            last_offset,
            timestamp,
        )
    return ProducerEntry(
        producer_id,
        epoch,
        coordinator_epoch=coordinator_epoch,
        last_timestamp=timestamp,
        txn_first_offset=txn_first_offset if txn_first_offset >= 0 else NO_OFFSET,
        batch=batch,
    )


def _first_sequence(last_sequence: int, offset_delta: int) -> int:
    """The inverse of `next_sequence`: the batch may have wrapped around from 2147483647 to 0."""
    if last_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    first = last_sequence - offset_delta
    return first if first >= 0 else first + SEQUENCE_MAX + 1
