"""What is checked of batches before they may be appended, and what is changed in them.

Kafka's LogValidator walks through every record. Here a batch is judged by its header, which a client's CRC covers, and
records are looked into in two cases only: a compacted topic needs keys, and a topic with a `compression.type` of its
own gets its batches compressed anew.

Deviations that follow: the timestamp limits are applied to the first record and to the largest timestamp, not to those
in between, and the largest timestamp is believed rather than computed; offset deltas of the records are believed too.
A client sends exactly one batch per partition, as in Kafka since magic 2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog.core.errors import ErrorCode, InvalidRecords, KafkaError
from oncelog.core.ids import NO_TIMESTAMP, TopicPartition
from oncelog.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    ControlMarker,
    build_batch,
    crc_of,
    decode_records,
    parse_control,
    read_header,
    stamp_append_time,
)
from oncelog.protocol.compression import Codec
from oncelog.protocol.primitives import Readable
from oncelog.storage.log_config import LogConfig
from oncelog.storage.producer_state import Origin

_CODEC_MAX: Final = max(Codec)


class CheckedBatch(NamedTuple):
    """A batch whose bytes are whole and whose CRC is right. `body` is the batch and nothing else."""

    header: BatchHeader
    body: memoryview
    control: ControlMarker | None


def split_batches(data: Readable, partition: TopicPartition) -> list[tuple[BatchHeader, memoryview]]:
    """Headers and bytes of the batches, which must fill `data` without a rest."""
    view = memoryview(data)
    batches: list[tuple[BatchHeader, memoryview]] = []
    position, end = 0, len(view)
    while position < end:
        header = read_header(view, position)
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if not HEADER_BYTES <= size <= end - position:
            raise _corrupt(partition, f"a batch claims {size} bytes, {end - position} were sent")
        if header.magic != MAGIC:
            raise KafkaError(
                ErrorCode.INVALID_RECORD if 0 <= header.magic < MAGIC else ErrorCode.CORRUPT_MESSAGE,
                f"{partition}: magic {header.magic} is not supported, only {MAGIC} (Kafka 0.11 and later)",
            )
        batches.append((header, view if size == end else view[position : position + size]))
        position += size
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{partition}: no batch at all was sent")
    return batches


def check_crc(header: BatchHeader, body: memoryview, partition: TopicPartition) -> None:
    if crc_of(body, 0, len(body)) != header.crc:
        raise _corrupt(partition, f"stored CRC {header.crc:#010x} does not match the batch")


def read_control(header: BatchHeader, body: Readable, position: int = 0) -> ControlMarker | None:
    """The marker in a control batch; None in other batches and in control batches that compaction has emptied."""
    return parse_control(body, position) if header.is_control and header.records_count else None


def check_size(size_bytes: int, config: LogConfig, partition: TopicPartition) -> None:
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{partition}: a batch of {size_bytes} bytes exceeds max.message.bytes={config.max_message_bytes}",
        )


def check_client_batch(header: BatchHeader, partition: TopicPartition) -> None:
    """What only a client can get wrong. Its sequence and epoch are the producer state's business."""
    if header.base_offset != 0:
        raise _invalid(partition, f"the base offset of a new batch must be 0, not {header.base_offset}")
    count = header.records_count
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise _invalid(partition, f"{count} records do not match a last offset delta of {header.last_offset_delta}")
    if header.is_control:
        raise _invalid(partition, "clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(partition, f"producer {header.producer_id} sent sequence {header.base_sequence}")
    if header.timestamp_type_append:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"{partition}: only the broker may set log append time")
    if header.codec > _CODEC_MAX:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{partition}: codec {header.codec} is unknown")


def check_timestamps(
    header: BatchHeader, body: Readable, config: LogConfig, now_ms: int, partition: TopicPartition
) -> None:
    """Only a batch whose header is out of bounds is looked into, to name the records at fault."""

    def is_outside(timestamp: int) -> bool:
        ahead_ms = timestamp - now_ms
        return timestamp != NO_TIMESTAMP and (
            ahead_ms > config.message_timestamp_after_max_ms or -ahead_ms > config.message_timestamp_before_max_ms
        )

    for timestamp in (header.base_timestamp, header.max_timestamp):
        if is_outside(timestamp):
            ahead_ms = timestamp - now_ms
            numbers = [
                number
                for number, record in enumerate(decode_records(body))
                if is_outside(header.base_timestamp + record.timestamp_delta)
            ]
            raise InvalidRecords(
                ErrorCode.INVALID_TIMESTAMP,
                f"{partition}: timestamp {timestamp} is {abs(ahead_ms)} ms {'ahead of' if ahead_ms > 0 else 'behind'} "
                "the broker's clock, see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
                tuple(numbers),
            )


def check_keys(body: Readable, partition: TopicPartition) -> None:
    """A record without a key cannot be compacted."""
    numbers = tuple(number for number, record in enumerate(decode_records(body)) if record.key is None)
    if numbers:
        message = f"{partition}: {len(numbers)} record(s) have no key, which a compacted topic needs"
        raise InvalidRecords(ErrorCode.INVALID_RECORD, message, numbers)


def compress_anew(header: BatchHeader, body: Readable, codec: int) -> bytes:
    """The same records under another codec."""
    return build_batch(
        decode_records(body),
        timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        codec=codec,
    )


def check_batches(
    data: Readable, *, origin: Origin, config: LogConfig, now_ms: int, partition: TopicPartition
) -> list[CheckedBatch]:
    """Everything that can be said without knowing the log: raises KafkaError, or returns batches fit to be written.

    Replicated batches were judged and stamped by their leader: only their bytes are checked.
    """
    batches = split_batches(data, partition)
    if origin is Origin.CLIENT and len(batches) > 1:
        raise _invalid(partition, f"{len(batches)} batches were sent, one is allowed")
    checked: list[CheckedBatch] = []
    for header, body in batches:
        if origin is not Origin.REPLICATION and not header.is_control:
            check_size(len(body), config, partition)
        if origin is Origin.CLIENT:
            check_client_batch(header, partition)
        check_crc(header, body, partition)
        control = read_control(header, body)
        if origin is Origin.CLIENT:
            if not config.stamps_append_time:
                check_timestamps(header, body, config, now_ms, partition)
            if config.is_compacted:
                check_keys(body, partition)
        if origin is not Origin.REPLICATION:
            header, body = _fit_to_topic(header, body, config, now_ms, partition)
        checked.append(CheckedBatch(header, body, control))
    return checked


def _fit_to_topic(
    header: BatchHeader, body: memoryview, config: LogConfig, now_ms: int, partition: TopicPartition
) -> tuple[BatchHeader, memoryview]:
    """The batch with the topic's codec and timestamp type. Markers are never compressed."""
    changed = False
    codec = config.codec
    if codec is not None and codec != header.codec and not header.is_control:
        body, changed = memoryview(compress_anew(header, body, codec)), True
        check_size(len(body), config, partition)
    if config.stamps_append_time:
        body, changed = memoryview(stamp_append_time(body, now_ms)), True
    return (read_header(body) if changed else header), body


def _corrupt(partition: TopicPartition, what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition}: {what}")


def _invalid(partition: TopicPartition, what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"{partition}: {what}")
