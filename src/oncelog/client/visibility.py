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
    """Bytes of whole batches, visible or not; the rest is a batch that was cut off or cannot be read."""
    problem: tuple[int, int, str] | None = None
    """Of a batch behind them that cannot be read: its size, the offset after it, and what is wrong."""


def visible_batches(
    data: Readable,
    fetch_offset: int,
    aborted: Iterable[AbortedTransaction] | None,
    isolation: IsolationLevel,
    *,
    check_crcs: bool = True,
) -> VisibleBatches:
    """Apply the filter to the bytes of one answer, up to a batch that cannot be read.

    Raises KafkaError where there is no batch of the current format, so that nobody can tell what follows.
    """
    committed_only = isolation is IsolationLevel.READ_COMMITTED
    entries = sorted(aborted or (), key=lambda entry: entry.first_offset, reverse=True) if committed_only else []
    aborted_now: set[int] = set()
    visible: list[tuple[int, BatchHeader]] = []
    position, end, next_offset = 0, len(data), fetch_offset
    problem = None
    while end - position >= HEADER_BYTES:
        header = read_header(data, position)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if size > end - position:
            break
        _check_format(size, header)
        last_offset = header.base_offset + header.last_offset_delta
        reason = _problem(data, position, size, header, check_crcs)
        if reason is not None:
            problem = (size, max(next_offset, header.base_offset, last_offset) + 1, reason)
            break
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
    return VisibleBatches(visible, next_offset, position, problem)


def _check_format(size: int, header: BatchHeader) -> None:
    if header.magic != MAGIC:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"offset {header.base_offset} holds a message of format {header.magic}; only format {MAGIC} can be read",
        )
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} claims {size} bytes")


def _problem(data: Readable, position: int, size: int, header: BatchHeader, check_crcs: bool) -> str | None:
    """Why a batch cannot be read, as far as its records need not be looked at for that."""
    if check_crcs and crc_of(data, position, size) != header.crc:
        return "the checksum of their batch is wrong"
    if header.is_control and header.records_count:
        try:
            parse_control(data, position)
        except KafkaError as error:
            return error.message
    return None
