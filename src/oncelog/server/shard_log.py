"""The log behind a coordinator's shard: how its records are appended, and how a shard is built from them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.errors import KafkaError
from oncelog.core.ids import ProducerIdAndEpoch
from oncelog.protocol.batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlMarker,
    Record,
    build_batch,
    decode_records,
    parse_control,
)
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.intact_batches import intact_batches
from oncelog.storage.producer_state import Origin
from oncelog.storage.record_slices import has_sole_value, sole_key
from oncelog.storage.segment import segment_number
from oncelog.storage.segment_batches import FileBatch
from oncelog.storage.verification_guards import VerificationGuard

logger = logging.getLogger("oncelog.server")

LOAD_SLICE_RECORDS: Final = 5_000
"""Records replayed in one turn of the loop, so that loading a long log never holds up other clients for long."""

LOAD_RETRY_MS: Final = 100
LOAD_RETRY_MS_MAX: Final = 10_000


class Replayer(Protocol):
    """Receives the records and markers of a log in their order."""

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
    """Append the records as one batch, with a producer as part of its transaction."""
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
    not clean yet is that. Records of transactions are not, since it is their markers that decide what they supersede,
    and tombstones are not, which end what a transaction has pending.

    What is damaged is said and left out: a coordinator without some records is better than none. Raises OSError.
    """
    batches: list[FileBatch] = []
    in_slice = 0
    for batch in _stored_batches(partition):
        header = batch.header
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


def _stored_batches(partition: Partition) -> Iterator[FileBatch]:
    """All intact batches. Compaction may replace segments that are not read yet."""
    log = partition.log
    offset, end_offset = log.log_start_offset, log.log_end_offset
    while offset < end_offset:
        segments = list(log.segments)
        number = segment_number(segments, offset)
        segment = segments[number]
        upper = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        first = offset
        for batch in intact_batches(segment, upper):
            if batch.header.next_offset > first:
                yield batch
                if segment not in log.segments:
                    offset = batch.header.next_offset
                    break
        else:
            offset = upper


def _replay_transactional(partition: Partition, batch: FileBatch, replayer: Replayer) -> None:
    header = batch.header
    if not header.is_control:
        _replay_newest(partition, [batch], replayer)
    elif header.records_count:
        # Compaction leaves the bare header of a marker whose transaction is gone.
        try:
            marker = parse_control(batch.data, batch.start)
        except KafkaError as error:
            logger.error("%s: a marker is left out: %s", partition.topic_partition, error)
        else:
            replayer.on_marker(header, marker)


def _replay_newest(partition: Partition, batches: Sequence[FileBatch], replayer: Replayer) -> None:
    """The newest record of each key, in the order of the log. From the end on, nothing else has to be decoded.

    Except for tombstones: what a transaction has pending for a key is forgotten with one, also when a newer record
    follows it, and compaction does not remove one while the transaction is open.
    """
    newest: dict[bytes, tuple[BatchHeader, int, bytes | None]] = {}
    deleted: dict[bytes, tuple[BatchHeader, int]] = {}
    for _, header, data, position in reversed(batches):
        key = sole_key(header, data, position)
        if key is not None and key in newest and has_sole_value(data, position, key):
            continue
        for record in reversed(_records(partition, header, data, position)):
            if record.key is None:
                continue
            offset = header.base_offset + record.offset_delta
            if record.key not in newest:
                newest[record.key] = (header, offset, record.value)
            elif record.value is None:
                deleted[record.key] = (header, offset)
    for key, (header, offset, value) in reversed(newest.items()):
        if key in deleted:
            replayer.on_record(*deleted[key], key, None)
        replayer.on_record(header, offset, key, value)


def _records(partition: Partition, header: BatchHeader, data: bytes, position: int) -> list[Record]:
    try:
        return decode_records(data, position)
    except KafkaError as error:
        logger.error("%s: the batch at offset %d is left out: %s", partition.topic_partition, header.base_offset, error)
        return []


def load_shard(
    partition: Partition,
    later: Callable[[int, Callable[[], None]], object],
    begin: Callable[[], Replayer],
    done: Callable[[], None],
    refuse: Callable[[Exception], None],
    retry_ms: int = LOAD_RETRY_MS,
) -> None:
    """Replays the log into a shard that `begin` makes ready for it: the first slice now, the others in later turns.

    A log that cannot be read for the moment is read again from its start, until it can be. After any other error
    `refuse` is called: a shard with half of its log would say that there is nothing, and clients would believe it.
    """

    def failed(error: Exception) -> None:
        if not isinstance(error, OSError):
            refuse(error)
            return
        if retry_ms == LOAD_RETRY_MS:
            logger.error(
                "%s cannot be read now and will be tried again until it can be: %s", partition.topic_partition, error
            )
        next_retry_ms = min(2 * retry_ms, LOAD_RETRY_MS_MAX)
        later(retry_ms, lambda: load_shard(partition, later, begin, done, refuse, next_retry_ms))

    def loaded() -> None:
        if retry_ms != LOAD_RETRY_MS:
            logger.info("%s can be read again", partition.topic_partition)
        done()

    run_slices(replay_log(partition, begin()), lambda again: later(0, again), loaded, failed)


def run_slices(
    slices: Iterator[None],
    again: Callable[[Callable[[], None]], object],
    done: Callable[[], None],
    failed: Callable[[Exception], None],
) -> None:
    """Runs the first slice now and the others in later turns of the loop; a short log is loaded at once."""
    try:
        for _ in slices:
            again(lambda: run_slices(slices, again, done, failed))
            return
    except Exception as error:  # noqa: BLE001  `failed` says it, or tries again
        failed(error)
        return
    done()
