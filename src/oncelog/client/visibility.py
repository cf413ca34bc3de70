"""Which batches of a fetched range a reader may see.

A broker sends a read_committed reader everything up to the last stable offset, with a list of aborted transactions
(producer id and first offset). The reader takes the entries in order of their first offsets: from a batch that reaches
the first offset of an entry on, the producer is an aborted one, until its abort marker comes by. Transactional batches
of aborted producers are skipped, and so are all control batches, at either isolation level. What is skipped still
moves the position: the next offset to fetch is the one after the last whole batch, visible or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from oncelog.client.errors import KafkaError
from oncelog.core.errors import ErrorCode
from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    crc_of,
    parse_control,
    read_header,
)
from oncelog.protocol.messages.fetch import AbortedTransaction
from oncelog.protocol.primitives import Readable


class IsolationLevel(IntEnum):
    """Whether records of open and of aborted transactions are read."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class VisibleBatches(NamedTuple):
    batches: list[tuple[int, BatchHeader]]
    """Position in the data, and header, of each batch that a reader may see."""
    next_offset: int
    """Where to go on."""
    whole_bytes: int
    """Bytes of whole batches, visible or not; the rest is a batch that was cut off."""


def visible_batches(
    data: Readable,
    fetch_offset: int,
    aborted: Iterable[AbortedTransaction] | None,
    isolation: IsolationLevel,
    *,
    check_crcs: bool = True,
) -> VisibleBatches:
    """Apply the filter to the bytes of one answer. Raises KafkaError CORRUPT_MESSAGE."""
    committed_only = isolation is IsolationLevel.READ_COMMITTED
    entries = sorted(aborted or (), key=lambda entry: entry.first_offset, reverse=True) if committed_only else []
    aborted_now: set[int] = set()
    visible: list[tuple[int, BatchHeader]] = []
    position, end, next_offset = 0, len(data), fetch_offset
    while end - position >= HEADER_BYTES:
        header = read_header(data, position)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if size > end - position:
            break
        _check(data, position, size, header, check_crcs)
        last_offset = header.base_offset + header.last_offset_delta
        while entries and entries[-1].first_offset <= last_offset:
            aborted_now.add(entries.pop().producer_id)
        if header.is_control:
            # Compaction leaves the bare header of a marker whose transaction is gone.
            if header.records_count and parse_control(data, position).is_abort:
                aborted_now.discard(header.producer_id)
        elif last_offset >= fetch_offset and not (
            committed_only and header.is_transactional and header.producer_id in aborted_now
        ):
            visible.append((position, header))
        next_offset = max(next_offset, last_offset + 1)
        position += size
    return VisibleBatches(visible, next_offset, position)


def _check(data: Readable, position: int, size: int, header: BatchHeader, check_crcs: bool) -> None:
    if header.magic != MAGIC:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"offset {header.base_offset} holds a message of format {header.magic}; only format {MAGIC} can be read",
        )
    if size < HEADER_BYTES or (check_crcs and crc_of(data, position, size) != header.crc):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the checksum of the batch at offset {header.base_offset} is wrong"
        )
