"""What the cleaner leaves of a batch: all of it, some of its records, its bare header, or nothing. Bytes in, bytes out.

A record survives if no newer one of its key is in the offset map, if its transaction was not aborted, and, if it is a
tombstone, until the delete horizon of its batch. The horizon is set by the first pass that meets the tombstone: bit 6
of the attributes, with the time itself in the place of the base timestamp and all timestamp deltas relative to it. A
marker whose transaction has no batch left goes the same way.

A header stays without its records where something would be lost with it: the batch with the last sequence of an active
producer; if it has none, the marker with its epoch; and the last batch below the bound of the cleaning, so that the
end of what was cleaned can be told. Offsets, sequences, producer and leader epoch of a batch never change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, NamedTuple

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NO_OFFSET, NO_TIMESTAMP
from oncelog.protocol.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_APPEND_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack_batch,
    read_header,
)
from oncelog.storage.append_checks import read_control
from oncelog.storage.cleaned_transactions import CleanedTransactions
from oncelog.storage.offset_map import OffsetMap
from oncelog.storage.producer_entry import LastRecord
from oncelog.storage.record_slices import (
    RecordSlice,
    copy_records,
    records_section,
    rewrite_records,
    slice_records,
    sole_key,
)
from oncelog.storage.txn_index import AbortedTxn

_KEPT_IN_EMPTY: Final = TIMESTAMP_APPEND_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class KeptBatch(NamedTuple):
    header: BatchHeader
    data: bytes
    aborted: AbortedTxn | None = None
    """The entry for the transaction index, if the batch needs one."""


@dataclass(slots=True)
class BatchFilter:
    """The rules of one cleaning. Batches must be shown in offset order, each once."""

    offsets: OffsetMap
    transactions: CleanedTransactions
    upper_bound: int
    """Nothing is cleaned from here on."""
    now_ms: int
    delete_retention_ms: int
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)
    yield_turn: Callable[[], None] = lambda: None

    def filter(self, header: BatchHeader, data: bytes, start: int) -> KeptBatch | None:
        """What is left of the batch that begins at `start` of `data`, whose checksum is right."""
        if header.is_control:
            return self._filter_control(header, data, start)
        is_aborted = self.transactions.on_data(header)
        keeps_header = self._keeps_header(header)
        if is_aborted or not header.records_count or self._is_superseded(header, data, start):
            return _emptied(header) if keeps_header else None
        return self._filter_records(header, data, start, keeps_header)

    def _is_superseded(self, header: BatchHeader, data: bytes, start: int) -> bool:
        """Whether nothing is left of a batch of one record. False may also mean that it takes more to find out."""
        key = sole_key(header, data, start)
        offset = header.base_offset
        return key is not None and offset <= self.offsets.latest_offset and offset < self.offsets.get(key)

    def _filter_control(self, header: BatchHeader, data: bytes, start: int) -> KeptBatch | None:
        marker = read_control(header, data, start)
        fate = self.transactions.on_control(header, marker)
        if marker is None or (fate.is_removable and self._is_past_horizon(header)):
            return _emptied(header) if self._keeps_header(header) else None
        if fate.is_removable and not header.has_delete_horizon:
            section = records_section(header, data, start)
            return _rebuilt(header, section, slice_records(section, header), self._new_horizon_ms())
        return KeptBatch(header, data[start : start + header.size_bytes], fate.aborted)

    def _filter_records(self, header: BatchHeader, data: bytes, start: int, keeps_header: bool) -> KeptBatch | None:
        section = records_section(header, data, start)
        records = slice_records(section, header, self.yield_turn)
        kept = self._kept_records(header, records)
        if not kept:
            return _emptied(header) if keeps_header else None
        has_tombstone = any(not record.has_value for record in kept)
        if has_tombstone and not header.has_delete_horizon:
            return _rebuilt(header, section, kept, self._new_horizon_ms())
        if len(kept) == len(records):
            return KeptBatch(header, data[start : start + header.size_bytes])
        return _rebuilt(header, section, kept, header.base_timestamp if header.has_delete_horizon else None)

    def _kept_records(self, header: BatchHeader, records: list[RecordSlice]) -> list[RecordSlice]:
        offsets, base_offset = self.offsets, header.base_offset
        latest_offset, newest = offsets.latest_offset, offsets.get
        keeps_tombstones = not self._is_past_horizon(header)
        return [
            record
            for record in records
            if (offset := base_offset + record.offset_delta) > latest_offset
            or (record.key is not None and (record.has_value or keeps_tombstones) and offset >= newest(record.key))
        ]

    def _keeps_header(self, header: BatchHeader) -> bool:
        last = self.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is not None:
            if last.offset != NO_OFFSET:
                if last.offset == header.last_offset:
                    return True
            elif header.is_control and header.producer_epoch == last.epoch:
                return True
        return header.next_offset == self.upper_bound

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self.now_ms

    def _new_horizon_ms(self) -> int:
        return self.now_ms + self.delete_retention_ms


def _emptied(header: BatchHeader) -> KeptBatch:
    return _packed(
        header,
        b"",
        0,
        attributes=header.attributes & _KEPT_IN_EMPTY,
        timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=header.max_timestamp,
    )


def _rebuilt(header: BatchHeader, section: bytes, kept: list[RecordSlice], horizon_ms: int | None) -> KeptBatch:
    """The batch with these records only. Without a horizon the first of them gives the base timestamp, as in Kafka.

    Under log append time all records have the batch's time, whatever their deltas say.
    """
    attributes = header.attributes & (CODEC_MASK | _KEPT_IN_EMPTY)
    old_base_ms = header.base_timestamp
    if header.timestamp_type_append:
        kept = [record._replace(timestamp_delta=header.max_timestamp - old_base_ms) for record in kept]
    base_ms = old_base_ms + kept[0].timestamp_delta
    if horizon_ms is not None:
        base_ms = horizon_ms
        attributes |= DELETE_HORIZON_BIT
    if base_ms == old_base_ms and not header.timestamp_type_append:
        kept_section = copy_records(section, kept)
    else:
        kept_section = rewrite_records(section, kept, old_base_ms - base_ms)
    return _packed(
        header,
        kept_section,
        len(kept),
        attributes=attributes,
        timestamp_ms=base_ms,
        max_timestamp_ms=old_base_ms + max(record.timestamp_delta for record in kept),
    )


def _packed(
    header: BatchHeader,
    section: bytes,
    count: int,
    *,
    attributes: int,
    timestamp_ms: int,
    max_timestamp_ms: int,
) -> KeptBatch:
    data = pack_batch(
        section,
        count,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        timestamp_ms=timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return KeptBatch(read_header(data), data)
