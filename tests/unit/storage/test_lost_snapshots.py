"""Producers outlive the loss of a producer snapshot, also where the batches that it was made from are deleted."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import KafkaError
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.producer_entry import BATCHES_RETAINED_MAX
from oncelog.storage.snapshot_files import SNAPSHOT_SUFFIX
from tests.unit.storage.cleaner_harness import COMPACTED, clean, compacted_log, keyed, put
from tests.unit.storage.damage import Damage
from tests.unit.storage.faulty_disk import FaultyDisk
from tests.unit.storage.log_harness import (
    NOW_MS,
    ORDERS,
    SMALL,
    append,
    append_txn,
    batch,
    delete_old,
    end_txn,
    new_log,
    reopen,
)

PRODUCER = 7
BATCH = batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=0)
HOW = pytest.mark.parametrize("what", ["missing", "cut", "flip"])


def damage(log: Log, offset: int, what: str) -> None:
    Damage(f"{offset:020d}{SNAPSHOT_SUFFIX}", what, position=20).apply(log.folder)


def three_segments(tmp_path: Path) -> Log:
    """Producer 7 has written the first batch, and nobody knows who the others."""
    log = new_log(tmp_path)
    append(log, BATCH)
    while len(log.segments) < 3:
        append(log)
    return log


def restart_with_damage(log: Log, offset: int, what: str) -> Log:
    """Stopped cleanly, and the snapshot at `offset` was damaged before the start."""
    log.close()
    damage(log, offset, what)
    place = LogPlace(log.folder, ORDERS, NOW_MS)
    start, end = log.log_start_offset, log.recovery_point
    return Log(place, log.config, clean=True, log_start_offset=start, recovery_point=end)


def is_duplicate_after_a_kill(log: Log, data: bytes = BATCH) -> bool:
    return append(reopen(log, clean=False), data).duplicate


@HOW
def test_delete_records_after_a_snapshot_was_lost_does_not_let_a_retry_in_twice(tmp_path: Path, what: str) -> None:
    log = three_segments(tmp_path)
    base = log.segments[2].base_offset
    log = restart_with_damage(log, base, what)
    log.delete_records(base)
    assert log.segments[0].base_offset == base
    assert is_duplicate_after_a_kill(log)


@HOW
def test_retention_after_a_snapshot_was_lost_does_not_let_a_retry_in_twice(tmp_path: Path, what: str) -> None:
    log = three_segments(tmp_path)
    damage(log, log.segments[2].base_offset, what)
    log.reconfigure(replace(SMALL, retention_bytes=log.segments[2].size_bytes))
    assert delete_old(log, NOW_MS) == 2
    assert is_duplicate_after_a_kill(log)


@HOW
def test_the_first_snapshot_of_a_log_is_restored_from_a_later_one(tmp_path: Path, what: str) -> None:
    """After the loss of the only snapshot at or below the place where a scan begins, a later one knows as much."""
    log = three_segments(tmp_path)
    base = log.segments[2].base_offset
    log.delete_records(base)
    log = restart_with_damage(log, base, what)
    assert log.producer_state.active_producers() != []
    assert is_duplicate_after_a_kill(log)


@HOW
def test_the_first_snapshot_is_restored_also_where_the_next_start_is_one_after_a_kill(
    tmp_path: Path, what: str
) -> None:
    log = three_segments(tmp_path)
    base = log.segments[2].base_offset
    log.delete_records(base)
    log = reopen(log)
    log.load()
    damage(log, base, what)
    assert is_duplicate_after_a_kill(log)


def test_a_snapshot_restored_from_a_later_one_tells_nothing_of_later_batches(tmp_path: Path) -> None:
    """What happened behind it is found in the batches, and must not be there twice."""
    log = three_segments(tmp_path)
    append_txn(log, 11)
    append(log, batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=1))
    log.roll(NOW_MS)
    base = log.log_end_offset
    log.delete_records(base)
    append_txn(log, 11, 1)
    append_txn(log, 12)
    append(log, batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=2))
    before = {status.producer_id: status for status in log.producer_state.active_producers()}
    log = restart_with_damage(log, base, "missing")
    log.load()
    log = reopen(log, clean=False)
    assert {status.producer_id: status for status in log.producer_state.active_producers()} == before
    end_txn(log, 11, commit=False)
    end_txn(log, 12, commit=False)
    first = [txn.first_offset for txn in log.aborted_transactions(log.log_start_offset, log.log_end_offset)]
    assert first == [before[11].txn_first_offset, before[12].txn_first_offset]


@HOW
def test_cleaning_after_the_first_snapshot_was_lost_does_not_let_a_retry_in_twice(tmp_path: Path, what: str) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, cleanup_policy=("compact", "delete")))
    data = keyed(("a", "1"), producer_id=PRODUCER, producer_epoch=0, base_sequence=0)
    append(log, data)
    log.roll(NOW_MS)
    base = log.log_end_offset
    put(log, ("b", "1"))
    log.delete_records(base)
    damage(log, base, what)
    put(log, ("b", "2"))
    clean(log)
    assert log.files.snapshots.is_intact(base), "a power cut may take the later ones"
    assert is_duplicate_after_a_kill(log, data)


def test_nothing_is_deleted_while_the_snapshot_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = three_segments(tmp_path)
    base = log.segments[1].base_offset
    damage(log, base, "missing")
    disk = FaultyDisk(monkeypatch, tmp_path, code=errno.ENOSPC)
    # The leader epochs are written first, and can do without.
    disk.fail(1)
    with pytest.raises((OSError, KafkaError)):
        log.delete_records(base)
    assert log.segments[0].base_offset == 0
    disk.heal()
    log.delete_records(base)
    assert log.segments[0].base_offset == base
    assert is_duplicate_after_a_kill(log)


def test_a_snapshot_is_on_disk_before_the_batches_that_it_stands_for_go(tmp_path: Path) -> None:
    log = three_segments(tmp_path)
    base = log.segments[2].base_offset
    assert base in log.files.snapshots.unsynced, "a roll does not wait for the disk"
    waiting: list[bool] = []
    failpoints.arm("log.delete.before_rename", lambda: waiting.append(base in log.files.snapshots.unsynced))
    log.delete_records(base)
    failpoints.disarm_all()
    assert waiting == [False, False]


def test_a_snapshot_that_is_made_later_is_the_one_that_was_lost(tmp_path: Path) -> None:
    """It knows nothing of batches from its offset on, not even of the first."""
    log = new_log(tmp_path)
    for sequence in range(13):
        append(log, batch(producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence))
    base = log.segments[1].base_offset
    assert log.log_end_offset - base < BATCHES_RETAINED_MAX
    assert log.producer_state.take_earlier_snapshot(base) == log.files.snapshots.read(base)
