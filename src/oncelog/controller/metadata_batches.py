"""The batches of a metadata log or of a snapshot: from bytes to records, and back.

Both are record batches as in any log. A batch holds metadata records or, if it is a control batch, control records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import (
    BatchHeader,
    CorruptBatchError,
    Record,
    build_batch,
    crc_of,
    decode_records,
    find_in_records,
    iter_headers,
    iter_records,
)
from oncelog.protocol.compiler import encode_bytes
from oncelog.protocol.messages.cluster_metadata import (
    MetadataRecord,
    control_key,
    decode_control_record,
    decode_metadata_record,
    record_beginnings,
)
from oncelog.protocol.primitives import MalformedRequest, Readable
from oncelog.protocol.schema import Message


class MetadataBatch(NamedTuple):
    header: BatchHeader
    records: list[MetadataRecord]
    controls: list[Message]
    """Control records of known types. Others do not change what records mean."""


def read_batches(
    data: Readable, start_offset: int = 0, types: Collection[int] | None = None
) -> Iterator[MetadataBatch]:
    """What is at `start_offset` and behind it. Raises KafkaError or MalformedRequest where a batch is damaged.

    `types` are the numbers of the records that are wanted, all below 128; None: all of them. Most batches have none of
    these, and are not decoded: one in a version that is not known here may be left out with its batch.
    """
    beginnings = None if types is None else record_beginnings(types)
    for position, header in iter_headers(data):
        if header.last_offset < start_offset:
            continue
        _check_crc(data, position, header)
        if beginnings is not None and not header.is_control and not find_in_records(data, position, beginnings):
            yield MetadataBatch(header, [], [])
            continue
        wanted = decode_records(data, position)
        if header.base_offset < start_offset:
            wanted = [record for record in wanted if header.base_offset + record.offset_delta >= start_offset]
        if header.is_control:
            yield MetadataBatch(header, [], [control for record in wanted if (control := _control(record)) is not None])
        else:
            if types is not None:
                wanted = [record for record in wanted if record.value is None or record.value[1] in types]
            yield MetadataBatch(header, [_decoded(record) for record in wanted], [])


def split_batches(data: Readable, start_offset: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches that are at `start_offset` or behind it, not decoded. Raises as `read_batches`."""
    view = memoryview(data)
    for position, header in iter_headers(data):
        if header.last_offset >= start_offset:
            _check_crc(data, position, header)
            yield header, view[position : position + header.size_bytes]


def each_record(batch: Readable) -> Iterator[tuple[int, MetadataRecord]]:
    """Offset and record, one after the other. Raises as `read_batches`. A batch of control records has none."""
    for position, header in iter_headers(batch):
        _check_crc(batch, position, header)
        if not header.is_control:
            for record in iter_records(batch, position):
                yield header.base_offset + record.offset_delta, _decoded(record)


def _check_crc(data: Readable, position: int, header: BatchHeader) -> None:
    if crc_of(data, position, header.size_bytes) != header.crc:
        raise CorruptBatchError(f"the CRC of the batch at byte {position} does not match")


class BatchWriter:
    """Makes batches whose offsets follow on each other."""

    def __init__(self, *, next_offset: int = 0, epoch: int, timestamp_ms: int) -> None:
        self.next_offset = next_offset
        self._epoch = epoch
        self._timestamp_ms = timestamp_ms

    def controls(self, messages: Sequence[Message]) -> bytes:
        records = [
            Record(number, 0, control_key(message), encode_bytes(message, 0)) for number, message in enumerate(messages)
        ]
        return self._batch(records, control=True)

    def records(self, values: Sequence[bytes]) -> bytes:
        """A batch of encoded metadata records."""
        return self._batch([Record(number, 0, None, value) for number, value in enumerate(values)])

    def _batch(self, records: Sequence[Record], *, control: bool = False) -> bytes:
        base_offset, self.next_offset = self.next_offset, self.next_offset + len(records)
        return build_batch(
            records,
            timestamp_ms=self._timestamp_ms,
            base_offset=base_offset,
            leader_epoch=self._epoch,
            control=control,
        )


def _decoded(record: Record) -> MetadataRecord:
    try:
        return decode_metadata_record(record.value or b"")
    except IndexError:
        raise MalformedRequest("a metadata record ends inside its frame") from None


def _control(record: Record) -> Message | None:
    return decode_control_record(int.from_bytes((record.key or b"")[2:4], "big"), record.value or b"")
