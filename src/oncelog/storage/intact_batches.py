"""The batches of a segment that are intact, whatever lies between them: for logs of which all that is left is wanted.

A reader of a log stops at damage, since it may not skip anything. Here damage costs the batches that it is in. A batch
is intact if its checksum is right and its offset fits in; the checksum does not cover the offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from oncelog.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, CorruptBatchError, read_header
from oncelog.storage.segment import Segment
from oncelog.storage.segment_batches import FileBatch

logger = logging.getLogger("oncelog.storage")

SEARCH_BYTES: Final = 1_048_576
"""Read at a time while the next batch behind damage is searched for."""
_MAGIC_POSITION: Final = 16


def intact_batches(segment: Segment, end_offset: int) -> Iterator[FileBatch]:
    """The intact batches below `end_offset`, in the order of the file. Damage is logged. Raises OSError."""
    before = last = segment.base_offset - 1
    position = size = 0
    end = segment.size_bytes
    try:
        while position < end:
            try:
                # Logs of coordinators are many small batches, so that it matters what one of them costs.
                for batch in segment.batches(position, checked=True):
                    if position >= end:
                        return
                    header = batch[1]
                    offset = header.base_offset
                    if not last < offset <= offset + header.last_offset_delta < end_offset:
                        raise CorruptBatchError(f"offset {offset} is not in order")
                    yield batch
                    before, last = last, offset
                    size = header.batch_length + LENGTH_OVERHEAD_BYTES
                    position += size
            except CorruptBatchError:
                logger.error(
                    "%s: there is damage at byte %d, behind offset %d, which is left out",
                    segment.log_file.path, position, last,
                )  # fmt: skip
                # It may be the offset of the batch before that is wrong.
                last = before
                position = _next_intact(segment, position - size + 1, end, last, end_offset)
    except CorruptBatchError as error:
        logger.error("the rest of a segment behind offset %d is left out: %s", last, error)


def _next_intact(segment: Segment, position: int, end: int, last: int, end_offset: int) -> int:
    """Where the next intact batch begins; `end` if there is none."""
    while end - position >= HEADER_BYTES:
        data = segment.read_bytes(position, min(max(SEARCH_BYTES, HEADER_BYTES), end - position))
        magic_at = data.find(MAGIC, _MAGIC_POSITION)
        while 0 <= magic_at <= len(data) - HEADER_BYTES + _MAGIC_POSITION:
            start = magic_at - _MAGIC_POSITION
            header = read_header(data, start)
            fits = last < header.base_offset <= header.base_offset + header.last_offset_delta < end_offset
            if fits and _is_intact(segment, position + start):
                return position + start
            magic_at = data.find(MAGIC, magic_at + 1)
        position += len(data) - HEADER_BYTES + 1
    return end


def _is_intact(segment: Segment, position: int) -> bool:
    try:
        return next(segment.batches(position, checked=True), None) is not None
    except CorruptBatchError:
        return False
