"""A record batch that is encoded, but without a producer: id, epoch and sequence number are written into it last.

The same batch can so be sent again under another epoch without touching its records. Only the 40 header bytes that the
CRC covers are checksummed anew; the CRC of the records is carried on.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c

from oncelog.client.errors import KafkaError
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NO_SEQUENCE, ProducerIdAndEpoch
from oncelog.protocol.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TIMESTAMP_APPEND_BIT,
    TRANSACTIONAL_BIT,
    iter_headers,
)
from oncelog.protocol.primitives import Readable

_PREFIX: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")


class EncodedBatch(NamedTuple):
    """The records section of a batch, compressed or not, and what its header says about it."""

    records_count: int
    base_timestamp: int
    max_timestamp: int
    codec: int
    body: bytes

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    def stamp(self, identity: ProducerIdAndEpoch, base_sequence: int, *, transactional: bool) -> bytes:
        """The whole batch as it goes over the wire. A producer id of -1 takes no sequence number."""
        sequence = base_sequence if identity.producer_id >= 0 else NO_SEQUENCE
        rest = _REST.pack(
            self.codec | (TRANSACTIONAL_BIT if transactional else 0),
            self.records_count - 1,
            self.base_timestamp,
            self.max_timestamp,
            identity.producer_id,
            identity.epoch,
            sequence,
            self.records_count,
        )
        crc = google_crc32c.extend(google_crc32c.value(rest), self.body)
        length = PREFIX_BYTES - LENGTH_OVERHEAD_BYTES + len(rest) + len(self.body)
        return b"".join((_PREFIX.pack(0, length, -1, MAGIC, crc), rest, self.body))


def split_batches(data: Readable) -> list[EncodedBatch]:
    """The batches of a concatenation such as a Produce request or a segment holds, free of whoever wrote them."""
    batches = []
    for position, header in iter_headers(data):
        if header.records_count != header.last_offset_delta + 1 or header.is_control or header.records_count < 1:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the batch at offset {header.base_offset} is a control batch, empty or compacted: it cannot be sent",
            )
        if header.attributes & ~(CODEC_MASK | TRANSACTIONAL_BIT | TIMESTAMP_APPEND_BIT):
            raise KafkaError(ErrorCode.INVALID_RECORD, f"attributes {header.attributes:#x} cannot be sent")
        body = bytes(data[position + HEADER_BYTES : position + header.size_bytes])
        batches.append(
            EncodedBatch(header.records_count, header.base_timestamp, header.max_timestamp, header.codec, body)
        )
    return batches
