"""Compacted logs to be cleaned in tests: records by key, transactions, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from oncelog.core.steps import at_once
from oncelog.protocol.batch import BatchHeader, Record, build_batch, decode_records, iter_headers, parse_control
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.cleaner import CleaningPass
from oncelog.storage.cleaner_pace import Pace
from oncelog.storage.cleaner_plan import find_cleanable
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_config import LogConfig
from tests.unit.storage.log_harness import NOW_MS, append, headers_in, new_log, read_all

DAY_MS = 86_400_000
MAP_BYTES = 1_000_000
COMPACTED = LogConfig(
    segment_bytes=10_000,
    index_interval_bytes=200,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DAY_MS,
)


class Survivor(NamedTuple):
    offset: int
    key: str
    value: str | None


class Left(NamedTuple):
    """A batch as it is in the log: its offsets, its records by key, or the marker it is."""

    base: int
    last: int
    keys: tuple[str, ...] = ()
    marker: str = ""


def compacted_log(folder: Path, config: LogConfig = COMPACTED) -> Log:
    return new_log(folder, config)


def keyed(*pairs: tuple[str, str | None], timestamp: int = NOW_MS, step_ms: int = 0, **fields: Any) -> bytes:
    """A batch of records; None as a value is a tombstone, an empty key is none."""
    records = [
        Record(i, i * step_ms, key.encode() or None, None if value is None else value.encode())
        for i, (key, value) in enumerate(pairs)
    ]
    return build_batch(records, timestamp_ms=timestamp, **fields)


def put(log: Log, *pairs: tuple[str, str | None], now_ms: int = NOW_MS, **fields: Any) -> AppendInfo:
    """Append as a coordinator does, which may leave out keys and verification."""
    return append(log, keyed(*pairs, **fields), origin=Origin.COORDINATOR, now_ms=now_ms)


def put_txn(log: Log, pid: int, sequence: int, *pairs: tuple[str, str | None], epoch: int = 0) -> AppendInfo:
    guard = log.producer_state.start_verification(pid, epoch, sequence, supports_epoch_bump=False, now_ms=NOW_MS)
    data = keyed(*pairs, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return append(log, data, guard=guard)


def stable_end(log: Log) -> int:
    log.producer_state.on_high_watermark(log.log_end_offset)
    unstable = log.producer_state.first_unstable_offset
    return log.log_end_offset if unstable is None else unstable


def clean(
    log: Log,
    first_dirty: int | None = None,
    *,
    now_ms: int = NOW_MS,
    map_memory_bytes: int = MAP_BYTES,
    roll: bool = True,
) -> int:
    """Everything that can be cleaned, whether it is due or not. Returns the next first dirty offset."""
    if roll:
        log.roll(now_ms)
    cleanable = find_cleanable(log, first_dirty, last_stable_offset=stable_end(log), now_ms=now_ms)
    work = CleaningPass(cleanable, map_memory_bytes=map_memory_bytes, now_ms=now_ms, pace=Pace(rest_s=0))
    at_once(work.prepare())
    work.build_map()
    for group in work.groups:
        assert log.replace_segments(work.clean(group))
    return work.end_offset


def survivors(log: Log) -> list[Survivor]:
    """The records of all data batches, aborted or not."""
    data = read_all(log)
    return [
        Survivor(
            header.base_offset + record.offset_delta,
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for position, header in iter_headers(data)
        if not header.is_control
        for record in decode_records(data, position)
    ]


def left(log: Log) -> list[Left]:
    data = read_all(log)
    found = []
    for position, header in iter_headers(data):
        if header.is_control:
            marker = "emptied"
            if header.records_count:
                marker = "commit" if parse_control(data, position).is_commit else "abort"
            found.append(Left(header.base_offset, header.last_offset, marker=marker))
        else:
            keys = tuple((record.key or b"").decode() for record in decode_records(data, position))
            found.append(Left(header.base_offset, header.last_offset, keys))
    return found


def header_at(log: Log, offset: int) -> BatchHeader:
    return next(header for header in headers_in(read_all(log)) if header.base_offset <= offset <= header.last_offset)


def read_committed(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What a consumer shows its user, by offset: aborted transactions are left out by the rule of the protocol."""
    seen: dict[int, tuple[bytes | None, bytes | None]] = {}
    data = read_all(log)
    waiting = sorted(
        log.aborted_transactions(log.log_start_offset, log.log_end_offset), key=lambda txn: txn.first_offset
    )
    aborted: set[int] = set()
    for position, header in iter_headers(data):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            if header.records_count and parse_control(data, position).is_abort:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for record in decode_records(data, position):
                seen[header.base_offset + record.offset_delta] = (record.key, record.value)
    return {offset: pair for offset, pair in seen.items() if offset < stable_end(log)}
