"""When a producer was last heard of outlives a restart, so that old timestamps cost nobody its duplicate protection."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.core.errors import KafkaError
from oncelog.protocol.batch import build_control_batch
from oncelog.storage.log import Log, LogPlace, Origin
from tests.unit.storage.faulty_disk import FaultyDisk
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, append_txn, batch, end_txn, new_log, reopen

DAY_MS = 86_400_000
OLD = batch(timestamp=NOW_MS - 3 * DAY_MS, producer_id=7, producer_epoch=0, base_sequence=0)


def restart(log: Log, *, clean: bool, now_ms: int, has_checkpoint: bool = True) -> Log:
    log.close(clean=clean)
    return Log(
        LogPlace(log.folder, log.topic_partition, now_ms),
        log.config,
        clean=clean,
        log_start_offset=0 if has_checkpoint else None,
        recovery_point=log.recovery_point if has_checkpoint else None,
    )


def is_duplicate(log: Log, now_ms: int = NOW_MS) -> bool:
    log.producer_state.expire(now_ms)
    return append(log, OLD, now_ms=now_ms).duplicate


def test_a_batch_with_old_timestamps_is_a_duplicate_after_a_clean_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, OLD)
    for _ in range(3):
        log = reopen(log)
        assert is_duplicate(log)


def test_a_batch_with_old_timestamps_is_a_duplicate_after_a_kill_and_a_full_scan(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, OLD)
    log.flush()
    for _ in range(3):
        log = restart(log, clean=False, now_ms=NOW_MS, has_checkpoint=False)
        assert is_duplicate(log)


def test_a_batch_with_old_timestamps_is_a_duplicate_after_a_roll_and_a_kill(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, OLD)
    log.roll(NOW_MS)
    append(log)
    log.flush()
    assert is_duplicate(reopen(log, clean=False))


def test_the_clock_of_the_last_append_counts_and_not_that_of_the_restart(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, OLD)
    log = restart(log, clean=True, now_ms=NOW_MS + DAY_MS - 1)
    assert is_duplicate(log, NOW_MS + DAY_MS - 1)
    log = restart(log, clean=True, now_ms=NOW_MS + DAY_MS)
    assert log.producer_state.active_producers() == []


def test_a_marker_is_heard_of_as_well(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append_txn(log, 7)
    end_txn(log, 7, commit=True)
    log.producer_state._producers[7].last_timestamp = NOW_MS - 3 * DAY_MS
    assert len(reopen(log).producer_state) == 1


def test_a_log_that_repairs_itself_does_not_forget_who_wrote_since_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been open for days, and the batches are read again."""
    now_ms = NOW_MS + 3 * DAY_MS
    log = new_log(tmp_path, SMALL)
    append_txn(log, 11)
    append(log, OLD, now_ms=now_ms)
    disk = FaultyDisk(monkeypatch, tmp_path, code=errno.ENOSPC)
    disk.fail(2)
    abort = build_control_batch(False, producer_id=11, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms)
    with pytest.raises(KafkaError):
        append(log, abort, origin=Origin.COORDINATOR, now_ms=now_ms)
    disk.heal()
    assert log.can_be_repaired
    log.repair()
    assert is_duplicate(log, now_ms)


def test_a_log_that_is_truncated_does_not_forget_who_wrote_since_it_was_opened(tmp_path: Path) -> None:
    now_ms = NOW_MS + 3 * DAY_MS
    log = new_log(tmp_path)
    append(log, OLD, now_ms=now_ms)
    append(log, now_ms=now_ms)
    log.truncate_to(1, now_ms=now_ms)
    assert is_duplicate(log, now_ms)
