"""A log that follows another: the leader's batches, epochs at elections, and cuts that leave nothing of a lost end."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.log import Log
from tests.unit.storage.log_harness import (
    NOW_MS,
    append,
    append_txn,
    batch,
    copy_log,
    end_txn,
    new_log,
    ranges,
    read_all,
    reopen,
)


def follow(log: Log, data: bytes, *, epoch: int = 0) -> None:
    log.append_as_follower(data, leader_epoch=epoch, now_ms=NOW_MS)


def led(folder: Path, *epochs: int) -> Log:
    """One batch of three records for each epoch."""
    folder.mkdir()
    log = new_log(folder)
    for epoch in epochs:
        append(log, count=3, epoch=epoch)
    return log


def test_a_follower_has_the_bytes_and_the_epochs_of_its_leader(tmp_path: Path) -> None:
    leader, follower = led(tmp_path / "a", 0, 0, 2), led(tmp_path / "b")
    follow(follower, read_all(leader), epoch=2)
    assert read_all(follower) == read_all(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries == [(0, 0), (2, 6)]


@pytest.mark.parametrize(("epoch", "end"), [(0, 6), (1, 6), (2, 9), (3, 9)])
def test_batches_of_a_later_epoch_are_left_out(tmp_path: Path, epoch: int, end: int) -> None:
    """The leader lost its office while it answered (KAFKA-18723)."""
    leader, follower = led(tmp_path / "a", 0, 0, 2), led(tmp_path / "b")
    follow(follower, read_all(leader), epoch=epoch)
    assert follower.log_end_offset == end


def test_a_batch_below_the_end_is_refused(tmp_path: Path) -> None:
    leader, follower = led(tmp_path / "a", 0, 0), led(tmp_path / "b", 0)
    with pytest.raises(KafkaError):
        follow(follower, read_all(leader))
    assert ranges(follower) == [(0, 2)]


def test_a_log_whose_leader_starts_within_a_batch(tmp_path: Path) -> None:
    leader, follower = led(tmp_path / "a", 0, 0, 0), led(tmp_path / "b")
    follower.truncate_fully_and_start_at(4, now_ms=NOW_MS)
    follow(follower, read_all(leader, start=4))
    assert (follower.log_start_offset, follower.log_end_offset) == (4, 9)
    assert ranges(follower) == [(3, 5), (6, 8)]
    for clean in (True, False):
        follower = reopen(follower, clean=clean)
        assert (follower.log_end_offset, ranges(follower)) == (9, [(3, 5), (6, 8)])


def test_a_damaged_batch_does_not_move_an_empty_log(tmp_path: Path) -> None:
    leader, follower = led(tmp_path / "a", 0, 0, 0), led(tmp_path / "b")
    follower.truncate_fully_and_start_at(4, now_ms=NOW_MS)
    data = bytearray(read_all(leader, start=4))
    data[70] ^= 1
    with pytest.raises(KafkaError) as refused:
        follow(follower, bytes(data))
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert (follower.log_start_offset, follower.log_end_offset) == (4, 4)


def test_an_epoch_begins_at_the_election(tmp_path: Path) -> None:
    log = led(tmp_path / "a", 0, 0)
    log.begin_epoch(3)
    log.begin_epoch(3)
    assert log.leader_epochs.entries == [(0, 0), (3, 6)]
    assert log.end_offset_for_epoch(1) == (0, 6), "a follower with an epoch that this log never saw is told"
    append(log, epoch=3)
    log.begin_epoch(3)
    assert log.leader_epochs.entries == [(0, 0), (3, 6)]
    log.begin_epoch(5)
    log.begin_epoch(6)
    assert log.leader_epochs.entries == [(0, 0), (3, 6), (6, 7)], "one that wrote nothing is replaced"


def test_an_epoch_that_cannot_be_noted_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = led(tmp_path / "a", 0)

    def fail(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(log.leader_epochs, "replace", fail)
    with pytest.raises(KafkaError) as refused:
        log.begin_epoch(1)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("target", [6, 7, 100])
def test_an_epoch_without_a_record_is_cut_off_with_nothing_else(tmp_path: Path, target: int) -> None:
    log = led(tmp_path / "a", 0, 0)
    log.begin_epoch(3)
    assert log.truncate_to(target, now_ms=NOW_MS) == 6
    assert log.leader_epochs.entries == [(0, 0)]


@pytest.mark.parametrize(
    ("last_epoch", "end", "expected"),
    [
        (4, 9, None),
        (4, 6, None),
        (4, 10, (4, 9)),
        (3, 6, (2, 6)),
        (2, 6, None),
        (2, 7, (2, 6)),
        (1, 3, (0, 3)),
        (0, 3, None),
        (0, 4, (0, 3)),
    ],
)
def test_where_logs_part(tmp_path: Path, last_epoch: int, end: int, expected: tuple[int, int] | None) -> None:
    log = led(tmp_path / "a", 0, 2, 4)
    assert log.divergence(last_epoch, end) == expected


def test_an_epoch_above_all_is_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(KafkaError) as refused:
        led(tmp_path / "a", 0, 2).divergence(3, 6)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_is_unstable_after_a_cut(tmp_path: Path) -> None:
    """A transaction that ended below the high watermark holds nothing back, one that ended above it does."""
    log = new_log(tmp_path)
    append_txn(log, 5)
    end_txn(log, 5, commit=True)
    append_txn(log, 6)
    end_txn(log, 6, commit=False)
    append(log)
    state = log.producer_state
    state.on_high_watermark(2)
    log.truncate_to(4, now_ms=NOW_MS)
    assert (state.high_watermark, state.first_unstable_offset) == (2, 2)
    state.on_high_watermark(4)
    assert state.first_unstable_offset is None
    log.truncate_to(3, now_ms=NOW_MS)
    assert (state.high_watermark, state.first_unstable_offset) == (3, 2)
    log.truncate_fully_and_start_at(1, now_ms=NOW_MS)
    assert (state.high_watermark, state.first_unstable_offset) == (1, None)


def test_producers_from_before_the_first_segment_survive_a_cut_to_its_start(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.roll(NOW_MS)
    log.delete_records(1)
    append(log, count=3)
    assert log.truncate_to(1, now_ms=NOW_MS) == 1
    for kept in (log, copy_log(log, tmp_path / "copy")):
        assert [status.producer_id for status in kept.producer_state.active_producers()] == [1]


def test_a_cut_that_fails_half_way_is_repaired_by_the_next_one(tmp_path: Path) -> None:
    log = led(tmp_path / "a", 0, 0, 0)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space")

    failpoints.arm("log.truncate.before", fail)
    try:
        with pytest.raises(KafkaError) as refused:
            log.truncate_to(3, now_ms=NOW_MS)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert log.can_be_repaired
    finally:
        failpoints.disarm_all()
    assert log.truncate_to(3, now_ms=NOW_MS) == 3
    assert (log.has_failed, ranges(log)) == (False, [(0, 2)])
