"""The log behind a coordinator's shard: how its records are appended, and how a shard is built from them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.errors import KafkaError
from oncelog.core.ids import NO_OFFSET, ProducerIdAndEpoch
from oncelog.protocol.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlMarker,
    Record,
    build_batch,
    crc_of,
    decode_records,
    parse_control,
    read_header,
)
from oncelog.storage.log import AppendInfo
from oncelog.storage.producer_state import Origin
from oncelog.storage.record_slices import sole_key
from oncelog.storage.verification import VerificationGuard

logger = logging.getLogger("oncelog.server")

_LOAD_READ_BYTES: Final = 1_048_576
_MAGIC_POSITION: Final = 16
LOAD_SLICE_RECORDS: Final = 5_000
"""Records replayed in one turn of the loop, so that loading a long log never holds up other clients for long."""

_StoredBatch = tuple[BatchHeader, bytes, int]
"""It begins at a position of these bytes."""


class Replayer(Protocol):
    """What a shard does with what its log holds."""

    def on_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None: ...

    def on_marker(self, header: BatchHeader, marker: ControlMarker) -> None: ...


def append_records(
    partition: Partition,
    records: list[CoordinatorRecord],
    *,
    now_ms: int,
    producer: ProducerIdAndEpoch | None = None,
    guard: VerificationGuard | None = None,
) -> AppendInfo:
    """One batch; with a producer it is part of that producer's transaction."""
    batch = build_batch(
        [Record(i, 0, record.key, record.value) for i, record in enumerate(records)],
        timestamp_ms=now_ms,
        producer_id=-1 if producer is None else producer.producer_id,
        producer_epoch=-1 if producer is None else producer.epoch,
        base_sequence=-1 if producer is None else 0,
        transactional=producer is not None,
    )
    return partition.append_as_leader(batch, now_ms=now_ms, origin=Origin.COORDINATOR, guard=guard)


def replay_log(partition: Partition, replayer: Replayer) -> Iterator[None]:
    """Replays the whole log; yields after every slice, so that the caller can let others run.

    Within a slice a record that a later one supersedes is left out, as it could be by compaction: most of a log that is
    not clean yet is that. Records of transactions are not, since it is their markers that decide what they supersede.

    What is damaged or cannot be read is said and left out: a coordinator without some records is better than none.
    """
    batches: list[_StoredBatch] = []
    in_slice = 0
    for batch in _stored_batches(partition):
        header = batch[0]
        if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            _replay_newest(partition, batches, replayer)
            _replay_transactional(partition, batch, replayer)
            batches = []
        else:
            batches.append(batch)
        in_slice += header.records_count
        if in_slice >= LOAD_SLICE_RECORDS:
            _replay_newest(partition, batches, replayer)
            batches, in_slice = [], 0
            yield
    _replay_newest(partition, batches, replayer)


def _stored_batches(partition: Partition) -> Iterator[_StoredBatch]:
    """Behind damage it goes on with the next batch whose checksum is right."""
    offset, end_offset = partition.log.log_start_offset, partition.log.log_end_offset
    before: int = NO_OFFSET
    last: int = NO_OFFSET
    while offset < end_offset:
        data = _read(partition, offset, end_offset)
        header = None
        position = size = 0
        while len(data) - position >= HEADER_BYTES:
            found = read_header(data, position)
            found_size = found.batch_length + LENGTH_OVERHEAD_BYTES
            if (
                HEADER_BYTES <= found_size <= len(data) - position
                and last < found.base_offset <= found.base_offset + found.last_offset_delta < end_offset
            ):
                yield found, data, position
                header, size, before, last = found, found_size, last, found.base_offset
                position += size
            else:
                logger.error("%s: there is damage behind offset %d, which is left out", partition.topic_partition, last)
                # It may be the batch before that is damaged: by a size that reaches too far, or a wrong offset.
                last = before
                position = _next_intact(data, position - size + 1, last, end_offset)
        if header is not None and header.next_offset > offset:
            offset = header.next_offset
        else:
            offset = _next_segment(partition, offset, end_offset)


def _read(partition: Partition, offset: int, end_offset: int) -> bytes:
    try:
        return bytes(partition.log.read(offset, _LOAD_READ_BYTES, end_offset=end_offset).data)
    except KafkaError as error:
        logger.error("%s: the rest of the segment is left out: %s", partition.topic_partition, error)
        return b""


def _next_segment(partition: Partition, offset: int, end_offset: int) -> int:
    return min((each.base_offset for each in partition.log.segments if each.base_offset > offset), default=end_offset)


def _next_intact(data: bytes, position: int, last: int, end_offset: int) -> int:
    """Where the next batch begins that is above `last` and whole, checksum included; the end if there is none."""
    while (magic_at := data.find(MAGIC, position + _MAGIC_POSITION)) >= 0:
        position = magic_at - _MAGIC_POSITION
        if len(data) - position < HEADER_BYTES:
            break
        header = read_header(data, position)
        if (
            HEADER_BYTES <= header.size_bytes <= len(data) - position
            and last < header.base_offset <= header.last_offset < end_offset
            and crc_of(data, position, header.size_bytes) == header.crc
        ):
            return position
        position += 1
    return len(data)


def _replay_transactional(partition: Partition, batch: _StoredBatch, replayer: Replayer) -> None:
    header, data, position = batch
    if not header.is_control:
        _replay_newest(partition, [batch], replayer)
    elif header.records_count:
        # Compaction leaves the bare header of a marker whose transaction is gone.
        try:
            marker = parse_control(data, position)
        except KafkaError as error:
            logger.error("%s: a marker is left out: %s", partition.topic_partition, error)
        else:
            replayer.on_marker(header, marker)


def _replay_newest(partition: Partition, batches: Sequence[_StoredBatch], replayer: Replayer) -> None:
    """The newest record of each key, in the order of the log. From the end on, nothing else has to be decoded."""
    newest: dict[bytes, tuple[BatchHeader, int, bytes | None]] = {}
    for header, data, position in reversed(batches):
        if header.records_count == 1 and sole_key(header, data, position) in newest:
            continue
        for record in reversed(_records(partition, header, data, position)):
            if record.key is not None and record.key not in newest:
                newest[record.key] = (header, header.base_offset + record.offset_delta, record.value)
    for key, (header, offset, value) in reversed(newest.items()):
        replayer.on_record(header, offset, key, value)


def _records(partition: Partition, header: BatchHeader, data: bytes, position: int) -> list[Record]:
    try:
        return decode_records(data, position)
    except KafkaError as error:
        logger.error("%s: the batch at offset %d is left out: %s", partition.topic_partition, header.base_offset, error)
        return []


def run_slices(slices: Iterator[None], again: Callable[[Callable[[], None]], object], done: Callable[[], None]) -> None:
    """Runs the first slice now and the others in later turns of the loop; a short log is loaded at once.

    Whatever goes wrong, it ends: a shard that stays half loaded would send its clients away for ever.
    """
    try:
        for _ in slices:
            again(lambda: run_slices(slices, again, done))
            return
    except Exception:
        logger.exception("the log of a coordinator could not be replayed to its end, the rest of it is left out")
    done()
