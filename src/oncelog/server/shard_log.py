"""The log behind a coordinator's shard: how its records are appended, and how a shard is built from them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.errors import KafkaError
from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.protocol.batch import (
    BatchHeader,
    ControlMarker,
    Record,
    build_batch,
    decode_records,
    iter_headers,
    parse_control,
)
from oncelog.storage.log import AppendInfo
from oncelog.storage.producer_state import Origin
from oncelog.storage.verification import VerificationGuard

logger = logging.getLogger("oncelog.server")

_LOAD_READ_BYTES: Final = 1_048_576
LOAD_SLICE_RECORDS: Final = 5_000
"""Records replayed in one turn of the loop, so that loading a long log never holds up other clients for long."""


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
    """
    log = partition.log
    offset, end_offset = log.log_start_offset, log.log_end_offset
    newest: dict[bytes, tuple[BatchHeader, int, bytes | None]] = {}
    in_slice = 0

    def replay_newest() -> None:
        for key, (header, at_offset, value) in newest.items():
            replayer.on_record(header, at_offset, key, value)
        newest.clear()

    while offset < end_offset:
        data = log.read(offset, _LOAD_READ_BYTES, end_offset=end_offset).data
        if not len(data):
            break
        for position, header in iter_headers(data):
            offset = header.next_offset
            if header.is_control or header.is_transactional:
                replay_newest()
            if header.is_control:
                # Compaction leaves the bare header of a marker whose transaction is gone.
                if header.records_count:
                    replayer.on_marker(header, parse_control(data, position))
                continue
            for record in _records(partition, header, data, position):
                if record.key is not None:
                    newest.pop(record.key, None)  # so that what is left stays in the order of the log
                    newest[record.key] = (header, header.base_offset + record.offset_delta, record.value)
            if header.is_transactional:
                replay_newest()
            in_slice += header.records_count
            if in_slice >= LOAD_SLICE_RECORDS:
                in_slice = 0
                replay_newest()
                yield
    replay_newest()


def _records(partition: Partition, header: BatchHeader, data: bytes | memoryview, position: int) -> list[Record]:
    """What cannot be decoded is said and left out: a coordinator without one record is better than none."""
    try:
        return decode_records(data, position)
    except KafkaError as error:
        logger.error("%s: the batch at offset %d is left out: %s", partition.topic_partition, header.base_offset, error)
        return []


def run_slices(slices: Iterator[None], again: Callable[[Callable[[], None]], object], done: Callable[[], None]) -> None:
    """Runs the first slice now and the others in later turns of the loop; a short log is loaded at once."""
    for _ in slices:
        again(lambda: run_slices(slices, again, done))
        return
    done()
