"""Rows of the table for what is in batches: few bytes that hold many records, and records that are not there."""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.batch import pack_batch
from oncelog.protocol.primitives import append_varlong
from tests.hostile.amplification import MIB, Row, Values

MANY: Final = 100_000
"""Records of a batch that is still taken."""
TOO_MANY: Final = 19_000_000
LEAST_RECORD: Final = b"\x0c\0\0\0\x01\x01\0"
DAY_MS: Final = 86_400_000
NOW_MS: Final = int(time.time() * 1000)


def _section(count: int) -> bytes:
    """Records without key and value, ten of them in each millisecond."""
    out = bytearray()
    for number in range(count):
        body = bytearray(b"\0")
        append_varlong(body, number // 10)
        append_varlong(body, number)
        body += b"\x01\x01\0"
        append_varlong(out, len(body))
        out += body
    return bytes(out)


def _produce(topic: str, section: bytes, count: int, timestamp_ms: int, codec: int = Codec.ZSTD) -> Values:
    batch = pack_batch(
        section,
        count,
        attributes=codec,
        last_offset_delta=count - 1,
        timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms + (min(count, MANY) - 1) // 10,
        base_offset=0,
        leader_epoch=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    partitions = [{"index": 0, "records": batch}]
    return {"acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": partitions}]}


@cache
def _many(topic: str, timestamp_ms: int = NOW_MS - DAY_MS) -> Values:
    return _produce(topic, _section(MANY), MANY, timestamp_ms)


@cache
def _too_many() -> Values:
    return _produce("plain", LEAST_RECORD * TOO_MANY, TOO_MANY, NOW_MS + DAY_MS)


@cache
def _too_large() -> Values:
    return _produce("anew", bytes(200 * MIB), 1, NOW_MS)


def _by_time(number: int) -> Values:
    partitions = [{"partition_index": 0, "timestamp": NOW_MS - DAY_MS + number * (MANY // 2_000)}]
    return {"replica_id": -1, "topics": [{"name": "mined", "partitions": partitions}]}


def _topic(name: str, **configs: str) -> tuple[tuple[ApiKey, int, Values], ...]:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": settings}
    return ((ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 30_000}),)


def _codes(*codes: ErrorCode) -> frozenset[ErrorCode]:
    return frozenset(codes)


BATCH_ROWS: Final = (
    Row(ApiKey.PRODUCE, 9, "many records from the future", lambda number: _many("plain", NOW_MS + DAY_MS), 2,
        before=_topic("plain"), memory_bytes_max=64 * MIB, answer_bytes_max=10_000,
        codes=_codes(ErrorCode.INVALID_TIMESTAMP)),
    Row(ApiKey.PRODUCE, 9, "many records without a key that need one", lambda number: _many("compacted"), 2,
        before=_topic("compacted", cleanup_policy="compact"), memory_bytes_max=64 * MIB, answer_bytes_max=10_000,
        codes=_codes(ErrorCode.INVALID_RECORD)),
    Row(ApiKey.PRODUCE, 9, "many records to be compressed anew", lambda number: _many("anew"), 2,
        before=_topic("anew", compression_type="lz4"), memory_bytes_max=64 * MIB, codes=_codes(ErrorCode.NONE)),
    Row(ApiKey.PRODUCE, 9, "more records than a batch may have", lambda number: _too_many(), 20,
        before=_topic("plain"), codes=_codes(ErrorCode.MESSAGE_TOO_LARGE)),
    Row(ApiKey.PRODUCE, 9, "few bytes that unfold into more than there is room for", lambda number: _too_large(), 10,
        before=_topic("anew", compression_type="lz4"), peak_bytes_max=200 * MIB,
        codes=_codes(ErrorCode.MESSAGE_TOO_LARGE)),
    Row(ApiKey.PRODUCE, 9, "records that are not there",
        lambda number: _produce("plain", LEAST_RECORD, 2**31 - 1, NOW_MS, Codec.NONE), 500,
        before=_topic("plain"), codes=_codes(ErrorCode.INVALID_RECORD)),
    Row(ApiKey.LIST_OFFSETS, 7, "times within many records", _by_time, 100,
        before=(*_topic("mined"), (ApiKey.PRODUCE, 9, _many("mined"))), memory_bytes_max=64 * MIB),
)  # fmt: skip
