"""A log in a temporary folder, batches to put into it, and ways to look at what is in it."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import BatchHeader, Record, build_batch, build_control_batch, decode_records, iter_headers
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.log import Log, LogPlace, Origin
from oncelog.storage.log_config import LogConfig
from oncelog.storage.retention import delete_old_segments

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
TOPIC_ID = uuid.UUID(int=0x1234)
VALUE = b"v" * 30
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)
"""About ten batches of `batch()` per segment, and an index entry every second one."""


def batch(
    count: int = 1,
    *,
    value: bytes | None = VALUE,
    key: bytes | None = b"k",
    timestamp: int = NOW_MS,
    step_ms: int = 0,
    **fields: Any,
) -> bytes:
    records = [Record(i, i * step_ms, key, value) for i in range(count)]
    return build_batch(records, timestamp_ms=timestamp, **fields)


def new_log(folder: Path, config: LogConfig = SMALL, partition: TopicPartition = ORDERS) -> Log:
    return Log.create(LogPlace(folder / str(partition), partition, NOW_MS), config, TOPIC_ID)


def append(log: Log, data: bytes | None = None, *, epoch: int = 0, now_ms: int = NOW_MS, **fields: Any) -> AppendInfo:
    origin = fields.pop("origin", Origin.CLIENT)
    guard, marker_tv = fields.pop("guard", None), fields.pop("marker_tv", 0)
    if data is None:
        data = batch(**fields)
    return log.append(data, leader_epoch=epoch, origin=origin, now_ms=now_ms, guard=guard, marker_tv=marker_tv)


def append_txn(
    log: Log, pid: int, sequence: int = 0, *, count: int = 1, epoch: int = 0, leader_epoch: int = 0
) -> AppendInfo:
    """A batch of a transaction that the coordinator knows of."""
    guard = log.producer_state.start_verification(pid, epoch, sequence, supports_epoch_bump=False, now_ms=NOW_MS)
    data = batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return append(log, data, guard=guard, epoch=leader_epoch)


def end_txn(
    log: Log, pid: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, leader_epoch: int = 0
) -> AppendInfo:
    marker = build_control_batch(
        commit, producer_id=pid, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp_ms=NOW_MS
    )
    return append(log, marker, origin=Origin.COORDINATOR, epoch=leader_epoch)


def delete_old(log: Log, now_ms: int) -> int:
    """Retention, where all of the log is committed."""
    return delete_old_segments(log, now_ms, high_watermark=log.log_end_offset)


def read_all(log: Log, *, max_bytes: int = 1 << 20, start: int | None = None) -> bytes:
    """Everything, the way a consumer reads it: from where the last answer ended."""
    offset = log.log_start_offset if start is None else start
    chunks = []
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes, end_offset=log.log_end_offset)
        if not result.data:
            break
        chunks.append(bytes(result.data))
        offset = headers_in(result.data)[-1].next_offset
    return b"".join(chunks)


def headers_in(data: bytes | memoryview) -> list[BatchHeader]:
    return [header for _, header in iter_headers(bytes(data))]


def headers(log: Log) -> list[BatchHeader]:
    return headers_in(read_all(log))


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for header in headers(log)]


def values(log: Log) -> list[bytes | None]:
    data = read_all(log)
    return [record.value for position, _ in iter_headers(data) for record in decode_records(data, position)]


def reopen(log: Log, *, clean: bool = True, config: LogConfig | None = None) -> Log:
    """Stop and start. Without `clean` the process is killed: what was not written is lost."""
    log.close(clean=clean)
    place = LogPlace(log.folder, log.topic_partition, NOW_MS)
    return Log(
        place,
        config or log.config,
        clean=clean,
        log_start_offset=log.log_start_offset,
        recovery_point=log.recovery_point,
    )


def files(folder: Path, *suffixes: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in suffixes}


def copy_log(log: Log, target: Path, log_start_offset: int | None = None) -> Log:
    """What a kill right now would leave, opened as after a crash. The log start may be that of an older checkpoint."""
    shutil.copytree(log.folder, target)
    place = LogPlace(target, log.topic_partition, NOW_MS)
    return Log(
        place,
        log.config,
        clean=False,
        log_start_offset=log.log_start_offset if log_start_offset is None else log_start_offset,
        recovery_point=log.recovery_point,
    )
