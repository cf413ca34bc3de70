"""When a log starts a new segment, and what the old one leaves on disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import KafkaError
from oncelog.storage.log import Log, Origin
from oncelog.storage.log_config import LogConfig
from oncelog.storage.producer_snapshot import decode_snapshot
from tests.unit.storage.log_harness import (
    NOW_MS,
    append,
    append_txn,
    batch,
    copy_log,
    files,
    new_log,
    ranges,
    reopen,
)

BATCH_BYTES = len(batch())
HOUR_MS = 3_600_000


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segment_is_filled_to_the_last_byte(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=3 * BATCH_BYTES))
    for _ in range(7):
        append(log)
    assert bases(log) == [0, 3, 6]
    assert [segment.size_bytes for segment in log.segments] == [3 * BATCH_BYTES, 3 * BATCH_BYTES, BATCH_BYTES]


def test_segment_is_rolled_by_the_time_of_its_records(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_ms=HOUR_MS))
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + HOUR_MS)
    assert bases(log) == [0], "an hour is not more than an hour"
    append(log, timestamp=NOW_MS + HOUR_MS + 1, now_ms=NOW_MS + HOUR_MS)
    assert bases(log) == [0, 2]


def test_time_of_the_first_batch_is_known_after_a_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_ms=HOUR_MS))
    append(log, timestamp=NOW_MS)
    log = reopen(log)
    append(log, timestamp=NOW_MS + HOUR_MS + 1, now_ms=NOW_MS + HOUR_MS)
    assert bases(log) == [0, 1]


def test_without_timestamps_the_brokers_clock_counts(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_ms=HOUR_MS))
    append(log, timestamp=-1, now_ms=NOW_MS + HOUR_MS + 1)
    assert bases(log) == [0], "an empty segment is not rolled"
    append(log, timestamp=-1, now_ms=NOW_MS + HOUR_MS + 1)
    assert bases(log) == [0, 1]


def test_jitter_shortens_the_time_by_a_fixed_part_per_segment() -> None:
    config = LogConfig(segment_ms=HOUR_MS, segment_jitter_ms=600_000)
    times = {config.roll_after_ms("orders", base_offset) for base_offset in range(50)}
    assert len(times) > 40
    assert all(HOUR_MS - 600_000 < time <= HOUR_MS for time in times)
    assert config.roll_after_ms("orders", 7) == config.roll_after_ms("orders", 7)


def test_full_index_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    for _ in range(15):
        append(log)
    # Six entries fit, and the first batch of a segment has none.
    assert bases(log) == [0, 7, 14]


def test_full_time_index_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=0, segment_index_bytes=40))
    for number in range(9):
        append(log, timestamp=NOW_MS + number)
    assert bases(log) == [0, 3, 6]
    assert [len(segment.time_index) for segment in log.segments] == [2, 2, 2]


def test_relative_offset_that_does_not_fit_rolls(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log)
    append(log, batch(base_offset=2**31 - 1), origin=Origin.REPLICATION)
    assert bases(log) == [0]
    append(log, batch(base_offset=2**31), origin=Origin.REPLICATION)
    assert bases(log) == [0, 2**31]
    assert ranges(log) == [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 2**31)]


def test_roll_leaves_complete_files_and_a_snapshot(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=100))
    append(log, timestamp=NOW_MS + 9)
    for sequence in range(4):
        append(log, producer_id=4, producer_epoch=0, base_sequence=sequence)
    log.roll(NOW_MS)
    append(log)
    on_disk = files(log.folder, ".index", ".timeindex", ".snapshot")
    # An entry for every second batch: positions 2 and 4; their last offsets are the same numbers.
    step = 2 * BATCH_BYTES
    assert on_disk["00000000000000000000.index"] == b"".join(
        value.to_bytes(4, "big") for value in (2, step, 4, 2 * step)
    )
    assert on_disk["00000000000000000000.timeindex"] == (NOW_MS + 9).to_bytes(8, "big") + bytes(4)
    (entry,) = decode_snapshot(on_disk["00000000000000000005.snapshot"])
    assert (entry.producer_id, entry.last_sequence) == (4, 3)


def test_rolling_an_empty_segment_changes_nothing(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.roll(NOW_MS) is log.segments[0]
    append(log)
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert bases(log) == [0, 1]


@pytest.mark.parametrize(
    "point",
    [
        "log.roll.before",
        "log.roll.before_create",
        "segment.create.after_log_file",
        "log.roll.before_snapshot",
        "log.snapshot.before_write",
        "checkpoint.before_rename",
    ],
)
def test_roll_that_fails_is_done_by_the_next_append(tmp_path: Path, point: str) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=2 * BATCH_BYTES))
    append_txn(log, 1)
    append_txn(log, 1, 1)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    failpoints.arm(point, fail)
    try:
        with pytest.raises(KafkaError):
            append(log)
    finally:
        failpoints.disarm_all()
    crashed = copy_log(log, tmp_path / "crashed")
    assert ranges(crashed) == [(0, 0), (1, 1)]
    assert crashed.producer_state.first_undecided_offset == 0
    append(log)
    assert bases(log) == [0, 2]
    assert ranges(log) == [(0, 0), (1, 1), (2, 2)]
