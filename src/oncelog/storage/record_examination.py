"""A look at every record of a client's batch, where its topic needs one: what is at fault, and the batch to be stored.

A compacted topic needs keys, one with a `compression.type` of its own gets batches compressed anew, a timestamp out of
bounds has to be blamed on some records, and `oncelog.record.validation=records` asks for it. A few bytes can hold
hundreds of thousands of records. So an examination builds nothing of them, names only the first that are at fault, and
one that would take long is left to a worker: whoever appends is told so with `LongExamination`, calls `examine` there,
and appends what it returns.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from oncelog.core.config import LONG_MAX
from oncelog.core.errors import ErrorCode, InvalidRecords, KafkaError
from oncelog.core.ids import NO_TIMESTAMP, TopicPartition
from oncelog.protocol.batch import (
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack_batch,
    read_header,
    with_max_timestamp,
)
from oncelog.protocol.compression import OUTPUT_BYTES_MAX, CompressionError, OutputTooLarge, decompress
from oncelog.protocol.record_walk import MalformedRecords, walk_records
from oncelog.storage.log_config import LogConfig

NAMED_RECORDS_MAX: Final = 10
"""Records at fault that an answer names; the message has the number of all."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a client's batch that is to be looked at."""
SHORT_RECORDS_MAX: Final = 5_000
SHORT_BYTES_MAX: Final = 1024 * 1024


class Examination(Enum):
    """What an append does about the examination of its batch."""

    IN_PLACE = auto()
    IF_SHORT = auto()
    DONE = auto()


class LongExamination(Exception):
    """The batch is to be examined by a worker first."""


class _Faults:
    """The first few records that are at fault, and how many there are."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.count = 0

    def add(self, number: int) -> None:
        if self.count < NAMED_RECORDS_MAX:
            self.numbers.append(number)
        self.count += 1


def needs_examination(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    return (
        config.checks_records
        or config.is_compacted
        or (config.codec is not None and config.codec != header.codec)
        or _timestamp_problem(header, config, now_ms) is not None
    )


def examine(
    data: memoryview, config: LogConfig, now_ms: int, partition: TopicPartition, *, only_if_short: bool = False
) -> memoryview:
    """The batch as the topic wants it. Raises KafkaError, and LongExamination with `only_if_short`.

    Its header, checksum and structure have been checked.
    """
    header = read_header(data)
    if only_if_short and header.records_count > SHORT_RECORDS_MAX:
        raise LongExamination
    section = _unpacked(
        header, data, partition, SHORT_BYTES_MAX if only_if_short else UNPACKED_BYTES_MAX, only_if_short
    )
    try:
        largest_delta = _check_records(header, section, config, now_ms, partition)
    except MalformedRecords as error:
        code = ErrorCode.INVALID_RECORD if header.codec else error.code
        raise KafkaError(code, f"{partition}: {error.message}") from None
    max_timestamp = header.base_timestamp + largest_delta
    if not -LONG_MAX <= max_timestamp <= LONG_MAX:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"{partition}: {max_timestamp} is no timestamp")
    codec = header.codec if config.codec is None else config.codec
    if codec != header.codec:
        return memoryview(_compressed(header, section, codec, max_timestamp))
    return data if max_timestamp == header.max_timestamp else memoryview(with_max_timestamp(data, max_timestamp))


def _unpacked(
    header: BatchHeader, data: memoryview, partition: TopicPartition, bytes_max: int, only_if_short: bool
) -> bytes:
    section = bytes(data[HEADER_BYTES:])
    if not header.codec:
        return section
    try:
        return decompress(header.codec, section, bytes_max)
    except OutputTooLarge:
        if only_if_short:
            raise LongExamination from None
        message = f"{partition}: a batch unfolds into more than {bytes_max} bytes"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message) from None
    except CompressionError as error:
        # As Kafka answers it. CORRUPT_MESSAGE would have clients send the same again.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{partition}: {error.message}") from None


def _check_records(
    header: BatchHeader, section: bytes, config: LogConfig, now_ms: int, partition: TopicPartition
) -> int:
    """The largest timestamp delta. Raises InvalidRecords and MalformedRecords."""
    low, high = _timestamp_limits(header, config, now_ms)
    no_timestamp = NO_TIMESTAMP - header.base_timestamp
    needs_keys = config.is_compacted
    outside, keyless = _Faults(), _Faults()
    largest: int | None = None
    for number, (timestamp_delta, offset_delta, has_key) in enumerate(walk_records(section, header.records_count)):
        if offset_delta != number:
            code = ErrorCode.UNKNOWN_SERVER_ERROR if header.codec else ErrorCode.INVALID_RECORD
            raise KafkaError(code, f"{partition}: record {number} has offset delta {offset_delta}")
        if not low <= timestamp_delta <= high and timestamp_delta != no_timestamp:
            outside.add(number)
        if needs_keys and not has_key:
            keyless.add(number)
        if largest is None or timestamp_delta > largest:
            largest = timestamp_delta
    problem = _timestamp_problem(header, config, now_ms)
    if outside.count or problem is not None:
        problem = problem or f"{outside.count} timestamp(s) are too far from the broker's clock"
        message = (
            f"{partition}: {problem}, see message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            f"{_and_more(outside)}"
        )
        raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, message, tuple(outside.numbers))
    if keyless.count:
        message = f"{partition}: {keyless.count} record(s) have no key, which a compacted topic needs"
        raise InvalidRecords(ErrorCode.INVALID_RECORD, message, tuple(keyless.numbers))
    return largest or 0


def _and_more(faults: _Faults) -> str:
    rest = faults.count - len(faults.numbers)
    return f" ({len(faults.numbers)} records are named, and there are {rest} more)" if rest > 0 else ""


def _timestamp_limits(header: BatchHeader, config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The smallest and the largest timestamp delta that may be."""
    if config.stamps_append_time:
        return -LONG_MAX, LONG_MAX
    ahead_ms = now_ms - header.base_timestamp
    return ahead_ms - config.message_timestamp_before_max_ms, ahead_ms + config.message_timestamp_after_max_ms


def _timestamp_problem(header: BatchHeader, config: LogConfig, now_ms: int) -> str | None:
    """What is wrong with the times of the first record and of the latest, by the header."""
    if config.stamps_append_time:
        return None
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if earliest <= header.base_timestamp <= latest and earliest <= header.max_timestamp <= latest:
        return None
    for timestamp in (header.base_timestamp, header.max_timestamp):
        ahead_ms = timestamp - now_ms
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            side = "ahead of" if ahead_ms > 0 else "behind"
            return f"timestamp {timestamp} is {abs(ahead_ms)} ms {side} the broker's clock"
    return None


def compress_anew(header: BatchHeader, data: memoryview, codec: int, partition: TopicPartition) -> memoryview:
    """A batch of our own under the topic's codec."""
    section = _unpacked(header, data, partition, OUTPUT_BYTES_MAX, only_if_short=False)
    return memoryview(_compressed(header, section, codec, header.max_timestamp))


def _compressed(header: BatchHeader, section: bytes, codec: int, max_timestamp: int) -> bytes:
    """The same records under another codec."""
    return pack_batch(
        section,
        header.records_count,
        attributes=codec | header.attributes & TRANSACTIONAL_BIT,
        last_offset_delta=header.last_offset_delta,
        timestamp_ms=header.base_timestamp,
        max_timestamp_ms=max_timestamp,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
