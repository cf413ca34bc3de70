"""What is checked of batches before they may be appended, and what is changed in them.

Kafka's LogValidator walks through every record. Here a batch is judged by its header, which a client's CRC covers, by
whether its records can be in its bytes, and, where they are not compressed, by their lengths: see
`oncelog.record.validation`. Records are looked into where a topic needs that (`storage.record_examination`).

Deviations that follow unless every record is looked at: the timestamp limits are applied to the first record and to the
largest timestamp, not to those in between, and the largest timestamp is believed rather than computed; offset deltas of
the records are believed too. A client sends exactly one batch per partition, as in Kafka since magic 2.
"""

from __future__ import annotations

from typing import Final

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_PRODUCER_EPOCH, TopicPartition
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TIMESTAMP_APPEND_BIT,
    BatchHeader,
    ControlMarker,
    crc_of,
    crc_of_covered,
    parse_control,
    read_header,
    stamp_append_time,
)
from oncelog.protocol.compressed_frame import unpacked_bytes_max
from oncelog.protocol.primitives import Readable
from oncelog.protocol.record_walk import check_count, check_lengths
from oncelog.storage.log_config import LogConfig
from oncelog.storage.producer_state import Origin
from oncelog.storage.record_examination import Examination, compress_anew, examine, needs_examination

LENGTHS_MAX: Final = 50
"""Lengths of records that are followed: an encoder that is wrong is wrong from the start, and it costs microseconds."""
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
        raise _wrong_crc(header, partition)


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
    """What only a client can get wrong, of what its checksum covers. Which sequence and epoch are due is the producer
    state's business."""
    count = header.records_count
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise _invalid(partition, f"{count} records do not match a last offset delta of {header.last_offset_delta}")
    attributes = header.attributes
    if attributes & CONTROL_BIT:
        raise _invalid(partition, "clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(partition, f"producer {header.producer_id} sent sequence {header.base_sequence}")
    if header.producer_id >= 0 and header.producer_epoch < NO_PRODUCER_EPOCH:
        message = f"{partition}: producer {header.producer_id} sent epoch {header.producer_epoch}"
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if attributes & TIMESTAMP_APPEND_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"{partition}: only the broker may set log append time")
    if attributes & CODEC_MASK > _CODEC_MAX:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{partition}: codec {header.codec} is unknown")


def check_structure(header: BatchHeader, section: bytes, start: int, config: LogConfig) -> None:
    """Whether the records can be there, without looking at more of them than their lengths.

    The records are in `section` from `start` on. What is let through is refused by the readers that find it.
    """
    count, codec = header.records_count, header.attributes & CODEC_MASK
    if codec:
        check_count(count, unpacked_bytes_max(codec, section[start:]))
    else:
        check_count(count, len(section) - start)
        if config.checks_lengths:
            check_lengths(section, count, start, followed_max=LENGTHS_MAX)
    if count > config.batch_records_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {count} records exceeds oncelog.batch.records.max={config.batch_records_max}",
        )


def check_batches(
    data: Readable,
    *,
    origin: Origin,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    examination: Examination = Examination.IN_PLACE,
) -> list[CheckedBatch]:
    """Everything that can be said without knowing the log: raises KafkaError, or returns batches fit to be written.

    Replicated batches were judged and stamped by their leader: only their bytes are checked. Raises LongExamination
    with `Examination.IF_SHORT`.
    """
    batches = split_batches(data, partition)
    if origin is Origin.CLIENT and len(batches) > 1:
        raise _invalid(partition, f"{len(batches)} batches were sent, one is allowed")
    checked: list[CheckedBatch] = []
    for header, body in batches:
        is_control = header.is_control
        if not is_control and len(body) > config.max_message_bytes and origin is not Origin.REPLICATION:
            check_size(len(body), config, partition)
        if origin is Origin.CLIENT:
            if header.base_offset != 0:
                raise _invalid(partition, f"the base offset of a new batch must be 0, not {header.base_offset}")
            header, body = _checked_inside(header, body, config, now_ms, partition, examination)
        else:
            check_crc(header, body, partition)
            if origin is Origin.COORDINATOR and not is_control and config.codec not in (None, header.codec):
                body = compress_anew(header, body, config.codec, partition)
                header = read_header(body)
        control = read_control(header, body) if is_control else None
        if origin is not Origin.REPLICATION and config.stamps_append_time:
            body = memoryview(stamp_append_time(body, now_ms))
            header = read_header(body)
        checked.append(CheckedBatch(header, body, control))
    return checked


def _checked_inside(
    header: BatchHeader,
    body: memoryview,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    examination: Examination,
) -> tuple[BatchHeader, memoryview]:
    """A client's batch: its checksum, its structure, and if its topic needs that, its records."""
    covered = bytes(body[PREFIX_BYTES:])
    if crc_of_covered(covered) != header.crc:
        # Before all that it covers: a client sends a damaged batch again, and takes every other code for the last word.
        raise _wrong_crc(header, partition)
    check_client_batch(header, partition)
    try:
        check_structure(header, covered, HEADER_BYTES - PREFIX_BYTES, config)
    except KafkaError as error:
        raise KafkaError(error.code, f"{partition}: {error.message}") from None
    if examination is Examination.DONE or not needs_examination(header, config, now_ms):
        return header, body
    examined = examine(body, config, now_ms, partition, only_if_short=examination is Examination.IF_SHORT)
    if examined is body:
        return header, body
    check_size(len(examined), config, partition)
    return read_header(examined), examined


def _wrong_crc(header: BatchHeader, partition: TopicPartition) -> KafkaError:
    return _corrupt(partition, f"stored CRC {header.crc:#010x} does not match the batch")


def _corrupt(partition: TopicPartition, what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition}: {what}")


def _invalid(partition: TopicPartition, what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"{partition}: {what}")
