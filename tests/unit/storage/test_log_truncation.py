"""Cutting at the end and at the start: offsets, files, epochs and producer state go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.deletions import DeletionQueue, unlink_all
from oncelog.storage.file_cache import FileCache
from oncelog.storage.leader_epochs import FILE_NAME
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from oncelog.storage.retention import delete_old_segments
from tests.unit.storage.log_harness import (
    NOW_MS,
    ORDERS,
    SMALL,
    TOPIC_ID,
    append,
    append_txn,
    batch,
    copy_log,
    delete_old,
    end_txn,
    new_log,
    ranges,
    read_all,
    reopen,
)

DAY_MS = 86_400_000


def filled(folder: Path, config: LogConfig = SMALL, *, count: int = 40) -> Log:
    log = new_log(folder, config)
    for number in range(count):
        append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=3 * number, epoch=number // 10)
    return log


@pytest.mark.parametrize("target", [0, 1, 2, 3, 30, 31, 60, 62, 63, 119, 120, 500])
def test_truncated_log_ends_with_the_batch_before_the_offset(tmp_path: Path, target: int) -> None:
    log = filled(tmp_path)
    end = min(target - target % 3, 120)
    before = read_all(log)
    assert log.truncate_to(target, now_ms=NOW_MS) == end
    assert log.log_end_offset == end
    assert ranges(log) == [(base, base + 2) for base in range(0, end, 3)]
    assert before.startswith(read_all(log))
    assert all(entry.start_offset < end for entry in log.leader_epochs.entries)
    assert all(offset <= end for offset in log.files.snapshots.offsets)
    again = copy_log(log, tmp_path / "copy")
    assert again.log_end_offset == end
    assert again.leader_epochs.entries == log.leader_epochs.entries


@pytest.mark.parametrize("left", ["of before the cut", "empty", "torn"])
def test_a_power_cut_behind_a_cut_leaves_epochs_that_fit_the_log(tmp_path: Path, left: str) -> None:
    """KAFKA-16541. The file is not fsynced when the log is cut, so that what is left of it may be old, or a part.

    What has been cut off was of an epoch that is above those of the batches that took its place.
    """
    log = new_log(tmp_path)
    for epoch in (0, 0, 5, 5):
        append(log, count=3, epoch=epoch)
    log.flush()
    path = log.folder / FILE_NAME
    old = path.read_bytes()
    log.truncate_to(6, now_ms=NOW_MS)
    for base_offset, epoch in ((6, 3), (9, 4), (12, 7)):
        log.append_as_follower(batch(3, base_offset=base_offset, leader_epoch=epoch), leader_epoch=7, now_ms=NOW_MS)
    right = list(log.leader_epochs.entries)
    assert right == [(0, 0), (3, 6), (4, 9), (7, 12)]
    path.write_bytes({"of before the cut": old, "empty": b"", "torn": path.read_bytes()[:-4]}[left])
    again = copy_log(log, tmp_path / "copy")
    assert list(again.leader_epochs.entries) == right
    assert again.end_offset_for_epoch(5) == (4, 12), "what a follower would be cut by"


def test_producer_goes_on_where_the_log_was_cut(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.truncate_to(60, now_ms=NOW_MS)
    assert append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=57).duplicate
    info = append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=60, epoch=9)
    assert (info.first_offset, info.duplicate) == (60, False)
    assert log.leader_epochs.entries == [(0, 0), (1, 30), (9, 60)]


def test_transaction_is_open_again_when_its_marker_is_cut_off(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append_txn(log, 5)
    append(log, count=4)
    end_txn(log, 5, commit=False)
    assert log.aborted_transactions(0, 6) != []
    log.truncate_to(5, now_ms=NOW_MS)
    assert log.producer_state.first_undecided_offset == 0
    assert log.aborted_transactions(0, 5) == []
    assert end_txn(log, 5, commit=True).completed == [(5, 0, 5, False)]


def test_recovery_point_moves_back_and_is_written_down_before_anything_is_appended(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    place = LogPlace(tmp_path / "orders-0", ORDERS, NOW_MS)
    log = Log.create(place, SMALL, TOPIC_ID, on_truncated=lambda: told.append((log.recovery_point, log.log_end_offset)))
    for _ in range(20):
        append(log)
    log.flush()
    log.truncate_to(15, now_ms=NOW_MS)
    assert told == [(15, 15)]
    append(log)
    log.truncate_to(15, now_ms=NOW_MS)
    assert told == [(15, 15)], "what was not flushed was never vouched for"


def test_flush_that_was_under_way_does_not_vouch_for_what_came_after_a_cut(tmp_path: Path) -> None:
    log = filled(tmp_path, count=10)
    work = log.prepare_flush()
    assert work is not None
    log.truncate_to(15, now_ms=NOW_MS)
    for number in range(5, 15):
        append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=3 * number)
    work.run()
    log.finish_flush(work)
    assert log.recovery_point == 0


def test_start_all_over_at_an_offset(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.truncate_fully_and_start_at(1000, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert (log.leader_epochs.entries, len(log.producer_state)) == ([], 0)
    append(log, count=2)
    for clean in (True, False):
        log = reopen(log, clean=clean)
        assert (log.log_start_offset, ranges(log)) == (1000, [(1000, 1001)])
    assert {path.name.partition(".")[0] for path in log.folder.glob("0*")} <= {f"{1000:020d}", f"{1002:020d}"}


def test_a_log_that_starts_all_over_is_as_old_as_its_truncation(tmp_path: Path) -> None:
    """Its segment is rolled and deleted by its age, which must not be that of the log."""
    log = filled(tmp_path)
    log.truncate_fully_and_start_at(1000, now_ms=NOW_MS + 9 * DAY_MS)
    assert log.segments[-1].created_ms == NOW_MS + 9 * DAY_MS


def test_a_truncation_does_not_bring_back_a_producer_that_has_expired_since_the_last_append(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.producer_state.expire(NOW_MS + 9 * DAY_MS)
    assert len(log.producer_state) == 0
    log.truncate_to(60, now_ms=NOW_MS + 9 * DAY_MS)
    assert len(log.producer_state) == 0


def test_truncating_below_the_first_segment_starts_all_over(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.delete_records(100)
    assert log.truncate_to(40, now_ms=NOW_MS) == 40
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)


def test_deleted_records_are_gone_and_whole_segments_with_them(tmp_path: Path) -> None:
    log = filled(tmp_path)
    third = log.segments[2].base_offset
    assert log.delete_records(third + 1) == third + 1
    assert log.segments[0].base_offset == third
    assert log.log_start_offset == third + 1
    assert log.delete_records(5) == third + 1, "the start never moves back"
    assert not list(log.folder.glob("00000000000000000000.*"))
    assert log.leader_epochs.entries[0].start_offset == third + 1
    assert ranges(log)[0] == (third, third + 2)
    again = reopen(log)
    assert (again.log_start_offset, again.log_end_offset) == (third + 1, 120)


def test_everything_can_be_deleted_but_not_more(tmp_path: Path) -> None:
    log = filled(tmp_path)
    with pytest.raises(KafkaError) as raised:
        log.delete_records(121)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.delete_records(120) == 120
    assert len(log.segments) == 1
    assert append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=117).duplicate
    assert append(log).first_offset == 120


def test_deleted_files_are_unlinked_later(tmp_path: Path) -> None:
    queue = DeletionQueue()
    place = LogPlace(tmp_path / "orders-0", ORDERS, NOW_MS, FileCache(), queue.add)
    log = Log.create(place, LogConfig(segment_bytes=300, file_delete_delay_ms=1000), TOPIC_ID)
    for _ in range(10):
        append(log)
    segment = log.segments[0]
    descriptor_path = segment.log_file.path
    content = descriptor_path.read_bytes()
    log.delete_records(9)
    assert not descriptor_path.exists()
    renamed = descriptor_path.with_name(descriptor_path.name + ".deleted")
    assert renamed.read_bytes() == content
    assert queue.take_due(NOW_MS) == []
    assert queue.take_due(NOW_MS + 999) == []
    due = queue.take_due(NOW_MS + 1000)
    assert renamed in due
    unlink_all(due)
    assert not list(log.folder.glob("*.deleted"))
    assert len(queue) == 0


def test_time_retention_deletes_old_segments_and_then_the_active_one(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=300, retention_ms=DAY_MS))
    for number in range(9):
        append(log, timestamp=NOW_MS + number * 1000)
    sizes = len(log.segments)
    assert delete_old(log, NOW_MS + DAY_MS) == 0
    newest_of_first = log.segments[1].base_offset - 1
    assert delete_old(log, NOW_MS + newest_of_first * 1000 + DAY_MS + 1) == 1
    assert len(log.segments) == sizes - 1
    assert log.log_start_offset == log.segments[0].base_offset
    assert delete_old(log, NOW_MS + 10 * DAY_MS) == sizes - 1
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (9, 9, 0)
    assert delete_old(log, NOW_MS + 20 * DAY_MS) == 0, "an empty active segment stays"
    again = reopen(log)
    assert (again.log_start_offset, append(again).first_offset) == (9, 9)


def test_size_retention_keeps_at_least_the_given_size(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=1000, retention_bytes=2500))
    before = log.size_bytes
    deleted = delete_old(log, NOW_MS)
    assert deleted > 0
    assert 2500 <= log.size_bytes < 2500 + 1000 < before


def test_high_watermark_holds_segments_back(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=1000, retention_ms=0))
    second = log.segments[1].base_offset
    later = NOW_MS + DAY_MS
    assert delete_old_segments(log, later, high_watermark=second - 1) == 0
    assert delete_old_segments(log, later, high_watermark=second) == 1


def test_compacted_topics_are_not_deleted_by_age(tmp_path: Path) -> None:
    log = filled(
        tmp_path, LogConfig(segment_bytes=1000, retention_ms=0, retention_bytes=0, cleanup_policy=("compact",))
    )
    assert delete_old(log, NOW_MS + DAY_MS) == 0


def test_retention_is_off_with_minus_one(tmp_path: Path) -> None:
    log = filled(tmp_path, LogConfig(segment_bytes=1000, retention_ms=-1, retention_bytes=-1))
    assert delete_old(log, 2**60) == 0


def test_end_of_an_epoch_is_where_the_next_begins(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.end_offset_for_epoch(1) == (1, 60)
    assert log.end_offset_for_epoch(3) == (3, 120)
    assert log.end_offset_for_epoch(4) == (-1, -1)


@pytest.mark.parametrize("target", [35, 0])
def test_a_kill_before_a_cut_leaves_the_log_as_it_was(tmp_path: Path, target: int) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    log = new_log(tmp_path)
    for _ in range(50):
        append(log)
    before = ranges(log)
    failpoints.arm("log.truncate.before", kill)
    try:
        with pytest.raises(Killed):
            log.truncate_to(target, now_ms=NOW_MS)
    finally:
        failpoints.disarm_all()
    recovered = copy_log(log, tmp_path / "copy")
    assert ranges(recovered) == before
    recovered.close(clean=False)
    log.close(clean=False)
