"""Compaction: what stays, what goes, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.codec import Codec
from oncelog.protocol.batch import (
    HEADER_BYTES,
    CorruptBatchError,
    Record,
    build_batch,
    crc_of,
    decode_records,
    iter_headers,
)
from oncelog.storage.log import Log, Origin
from oncelog.storage.offset_map import ENTRY_BYTES
from oncelog.storage.time_lookup import first_record_from
from tests.unit.storage.cleaner_harness import (
    COMPACTED,
    DAY_MS,
    Left,
    Survivor,
    clean,
    compacted_log,
    header_at,
    keyed,
    left,
    put,
    put_txn,
    read_committed,
    survivors,
)
from tests.unit.storage.log_harness import NOW_MS, append, copy_log, end_txn, headers, read_all, reopen


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return compacted_log(tmp_path)


# Records by key


def test_the_newest_record_of_each_key_stays_where_it_was(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"))
    put(log, ("c", "1"), ("b", "2"))
    put(log, ("z", "last"))
    assert clean(log) == 6
    assert survivors(log) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2"), (5, "z", "last")]
    assert log.log_end_offset == 6


def test_a_batch_keeps_its_offsets_when_records_go(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), producer_id=7, producer_epoch=2, base_sequence=40)
    put(log, ("a", "2"), ("c", "2"))
    put(log, ("z", "last"))
    before = header_at(log, 0)
    clean(log)
    after = header_at(log, 0)
    assert (after.base_offset, after.last_offset, after.records_count) == (0, 2, 1)
    assert after.last_sequence == before.last_sequence == 42
    assert (after.producer_id, after.producer_epoch, after.leader_epoch) == (7, 2, before.leader_epoch)


def test_the_active_segment_is_never_touched(log: Log) -> None:
    put(log, ("a", "1"))
    log.roll(NOW_MS)
    put(log, ("a", "2"), ("b", "1"))
    put(log, ("b", "2"))
    clean(log, roll=False)
    assert survivors(log) == [(0, "a", "1"), (1, "a", "2"), (2, "b", "1"), (3, "b", "2")]


def test_records_without_a_key_go(log: Log) -> None:
    put(log, ("", "no key"), ("a", "1"))
    put(log, ("z", "last"))
    clean(log)
    assert survivors(log) == [(1, "a", "1"), (2, "z", "last")]


def test_an_unchanged_batch_is_copied_byte_by_byte(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"), step_ms=5)
    put(log, ("z", "last"))
    before = read_all(log)
    clean(log)
    assert read_all(log) == before


def test_timestamps_survive_when_the_first_record_of_a_batch_goes(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), step_ms=250)
    put(log, ("a", "2"), ("c", "2"))
    put(log, ("z", "last"))
    clean(log)
    header = header_at(log, 1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS + 250, NOW_MS + 250)
    assert decode_records(read_all(log))[0].timestamp_delta == 0


def test_log_append_time_is_kept(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, message_timestamp_type="LogAppendTime"))
    put(log, ("a", "1"), ("b", "1"), timestamp=NOW_MS - 5000, step_ms=100)
    put(log, ("a", "2"))
    put(log, ("z", "last"))
    clean(log)
    header = header_at(log, 1)
    assert header.timestamp_type_append
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compressed_batch_gets_its_own_codec_again(log: Log, codec: Codec) -> None:
    put(log, ("a", "1" * 400), ("b", "1" * 400), codec=codec)
    put(log, ("a", "2"), codec=codec)
    put(log, ("z", "last"))
    clean(log)
    assert survivors(log) == [(1, "b", "1" * 400), (2, "a", "2"), (3, "z", "last")]
    assert [header.codec for header in headers(log)] == [codec, codec, Codec.NONE]
    data = read_all(log)
    assert all(crc_of(data, position, header.size_bytes) == header.crc for position, header in iter_headers(data))


def test_headers_of_records_survive_a_rewrite(log: Log) -> None:
    named = (("trace", b"x"), ("empty", None))
    records = [Record(0, 0, b"a", b"1"), Record(1, 3, b"b", b"2", named)]
    append(log, build_batch(records, timestamp_ms=NOW_MS), origin=Origin.COORDINATOR)
    put(log, ("a", "2"))
    put(log, ("z", "last"))
    clean(log)
    assert decode_records(read_all(log))[0].headers == named


def test_a_damaged_batch_is_not_given_a_new_checksum(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    path = log.segments[0].log_file.path
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 9] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="CRC"):
        clean(log)
    assert not [name for name in log.folder.iterdir() if name.suffix == ".cleaned"]


# Tombstones


def test_a_tombstone_gets_a_delete_horizon_and_goes_when_it_has_passed(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"))
    put(log, ("z", "last"))
    dirty = clean(log)
    assert survivors(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "z", "last")]
    header = header_at(log, 2)
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert header.max_timestamp == NOW_MS

    put(log, ("y", "1"))
    dirty = clean(log, dirty, now_ms=NOW_MS + DAY_MS - 1)
    assert (2, "a", None) in survivors(log)
    assert header_at(log, 2).base_timestamp == NOW_MS + DAY_MS

    put(log, ("x", "1"))
    clean(log, dirty, now_ms=NOW_MS + DAY_MS)
    assert [s.key for s in survivors(log)] == ["b", "c", "z", "y", "x"]


def test_timestamps_of_records_beside_a_tombstone_are_relative_to_the_horizon(log: Log) -> None:
    put(log, ("a", None), ("b", "1"), step_ms=7)
    put(log, ("z", "last"))
    clean(log)
    header = header_at(log, 0)
    times = [header.base_timestamp + record.timestamp_delta for record in decode_records(read_all(log))]
    assert times == [NOW_MS, NOW_MS + 7]
    assert first_record_from(log, NOW_MS + 5, end_offset=log.log_end_offset) == (NOW_MS + 7, 1, 0)


def test_a_tombstone_removes_what_was_clean_already(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    dirty = clean(log)
    put(log, ("a", None))
    put(log, ("z", "last"))
    clean(log, dirty)
    assert survivors(log) == [(1, "b", "1"), (2, "a", None), (3, "z", "last")]


# Bounds


def test_a_record_younger_than_the_minimum_lag_stays(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, min_compaction_lag_ms=1000))
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    put(log, ("a", "3"), timestamp=NOW_MS + 2000, now_ms=NOW_MS + 2000)
    assert clean(log, now_ms=NOW_MS + 2500) == 2
    assert [s.offset for s in survivors(log)] == [1, 2]
    assert clean(log, 2, now_ms=NOW_MS + 3000) == 3
    assert [s.offset for s in survivors(log)] == [2]


def test_nothing_behind_the_last_stable_offset_is_cleaned(log: Log) -> None:
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.roll(NOW_MS)
    put_txn(log, 9, 0, ("a", "open"))
    put(log, ("b", "1"), ("b", "2"))
    assert clean(log) == 2
    assert [s.offset for s in survivors(log)] == [1, 2, 3, 4]


def test_a_full_map_ends_the_pass_and_the_next_one_goes_on(log: Log) -> None:
    for turn in range(3):
        for number in range(10):
            put(log, (f"k{number}", str(turn)))
    put(log, ("z", "last"))
    dirty, passes = None, 0
    while dirty is None or dirty < log.log_end_offset:
        after = clean(log, dirty, map_memory_bytes=7 * ENTRY_BYTES, roll=not passes)
        assert after > (dirty or 0)
        dirty, passes = after, passes + 1
        kept = {s.key: s.value for s in survivors(log)}
        assert kept == {f"k{n}": "2" for n in range(10)} | {"z": "last"}
    assert passes > 2
    assert len(survivors(log)) == 11


def test_a_map_that_is_full_in_the_middle_of_a_batch_keeps_the_rest(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("b", "2"))
    put(log, ("z", "last"))
    assert clean(log, map_memory_bytes=2 * ENTRY_BYTES) == 2
    assert [s.offset for s in survivors(log)] == [0, 1, 2, 3, 4, 5]
    assert clean(log, 2, map_memory_bytes=20 * ENTRY_BYTES, roll=False) == 6
    assert [s.offset for s in survivors(log)] == [2, 3, 4, 5]


def test_a_log_start_within_a_segment_is_no_obstacle(log: Log) -> None:
    for number in range(6):
        put(log, ("a", str(number)))
    log.delete_records(3)
    assert clean(log, 0) == 6
    assert log.log_start_offset == 3
    assert survivors(log) == [Survivor(5, "a", "5")]


# Segments


def test_small_neighbours_become_one_segment(log: Log) -> None:
    for number in range(5):
        put(log, (f"k{number}", "1"))
        log.roll(NOW_MS)
    assert len(log.segments) == 6
    clean(log)
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert len(survivors(log)) == 5


def test_segments_are_not_merged_beyond_the_segment_size(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, segment_bytes=500))
    for number in range(12):
        put(log, (f"k{number}", "v" * 80))
    before = len(log.segments)
    clean(log)
    assert len(log.segments) == before + 1
    put(log, *[(f"k{number}", "2") for number in range(12)])
    clean(log)
    put(log, ("z", "last"))
    clean(log)
    assert len(survivors(log)) == 13
    assert len(log.segments) == 2
    assert all(segment.size_bytes <= 500 for segment in log.segments)


def test_a_segment_that_loses_everything_leaves_its_place(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, replace(COMPACTED, segment_bytes=200))
    put(log, ("a", "1" * 100))
    put(log, ("b", "1" * 100))
    put(log, ("a", "2" * 100))
    put(log, ("b", "2" * 100))
    clean(log)
    assert [s.offset for s in survivors(log)] == [2, 3]
    assert log.log_start_offset == 0
    assert log.segments[0].base_offset == 0
    log = reopen(log)
    assert [s.offset for s in survivors(log)] == [2, 3]


def test_indexes_and_age_of_the_new_segment_are_right(log: Log) -> None:
    for number in range(60):
        put(log, (f"k{number % 20}", "v" * 50), timestamp=NOW_MS + number)
    log.roll(NOW_MS)
    modified = log.segments[0].log_file.path.stat().st_mtime_ns
    clean(log, roll=False)
    segment = log.segments[0]
    assert segment.largest == (NOW_MS + 59, 59)
    entries = segment.offset_index.entries()
    assert entries
    for entry in entries:
        assert next(segment.batches(entry.position)).header.last_offset == entry.offset
    assert segment.log_file.path.stat().st_mtime_ns == modified
    for offset in range(60):
        assert headers(log)[max(0, offset - 40)].last_offset >= offset


def test_reading_from_any_offset_of_a_compacted_log(log: Log) -> None:
    for number in range(40):
        put(log, (f"k{number % 4}", "v"))
        if number % 7 == 6:
            log.roll(NOW_MS)
    clean(log)
    for offset in range(40):
        result = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
        assert next(iter_headers(bytes(result.data)))[1].base_offset == max(offset, 36)


# Transactions


def test_data_of_aborted_transactions_goes_at_once(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "aborted"))
    end_txn(log, 5, commit=False)
    put(log, ("a", "1"), ("b", "1"))
    put_txn(log, 5, 1, ("b", "aborted"))
    end_txn(log, 5, commit=False)
    put(log, ("z", "last"))
    clean(log)
    assert survivors(log) == [(2, "a", "1"), (3, "b", "1"), (6, "z", "last")]


def test_an_aborted_record_does_not_supersede(log: Log) -> None:
    put(log, ("a", "good"))
    put_txn(log, 5, 0, ("a", "bad"))
    end_txn(log, 5, commit=False)
    put(log, ("z", "last"))
    clean(log)
    assert (0, "a", "good") in survivors(log)


def test_an_abort_before_the_dirty_part_is_over(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "aborted"))
    end_txn(log, 5, commit=False)
    dirty = clean(log)
    put(log, ("a", "1"))
    put_txn(log, 5, 1, ("a", "2"))
    end_txn(log, 5, commit=True)
    clean(log, dirty)
    assert survivors(log) == [(3, "a", "2")]


def test_a_marker_goes_two_passes_after_its_data(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "1"))
    end_txn(log, 5, commit=True)
    put_txn(log, 6, 0, ("b", "1"))
    end_txn(log, 6, commit=False)
    put(log, ("a", "2"))
    for pid in (5, 6):
        put(log, ("y", str(pid)), producer_id=pid, producer_epoch=0, base_sequence=1)
    put(log, ("z", "last"))
    log.producer_state.clear(log.log_end_offset)

    dirty = clean(log)
    assert left(log)[:2] == [Left(1, 1, marker="commit"), Left(3, 3, marker="abort")]
    assert not header_at(log, 1).has_delete_horizon
    assert [txn.last_offset for txn in log.aborted_transactions(0, 100)] == [3]

    put(log, ("x", "1"))
    dirty = clean(log, dirty)
    assert left(log)[:2] == [Left(1, 1, marker="commit"), Left(3, 3, marker="abort")]
    assert header_at(log, 1).base_timestamp == header_at(log, 3).base_timestamp == NOW_MS + DAY_MS
    assert log.aborted_transactions(0, 100) == []

    put(log, ("w", "1"))
    clean(log, dirty, now_ms=NOW_MS + DAY_MS)
    assert not any(batch.marker for batch in left(log))


def test_a_marker_stays_as_long_as_data_of_its_transaction(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "1"), ("b", "1"))
    end_txn(log, 5, commit=True)
    put(log, ("a", "2"))
    put(log, ("z", "last"))
    dirty = None
    for turn in range(4):
        dirty = clean(log, dirty, now_ms=NOW_MS + turn * DAY_MS)
        put(log, ("y", str(turn)))
    assert left(log)[:2] == [Left(0, 1, ("b",)), Left(2, 2, marker="commit")]
    assert not header_at(log, 2).has_delete_horizon


def test_a_marker_beyond_the_bound_decides_data_below_it(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put_txn(log, 5, 0, ("b", "aborted"))
    put_txn(log, 6, 0, ("a", "committed"))
    log.roll(NOW_MS)
    end_txn(log, 5, commit=False)
    end_txn(log, 6, commit=True)
    assert clean(log, roll=False) == 4
    assert survivors(log) == [(1, "b", "1"), (3, "a", "committed")]


def test_the_last_batch_of_an_active_producer_stays_empty(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"), producer_id=7, producer_epoch=3, base_sequence=10)
    put(log, ("a", "2"), ("b", "2"))
    put(log, ("z", "last"))
    clean(log)
    header = header_at(log, 0)
    assert (header.records_count, header.size_bytes, header.base_timestamp) == (0, HEADER_BYTES, -1)
    assert (header.last_sequence, header.producer_epoch, header.max_timestamp) == (11, 3, NOW_MS)
    log.producer_state.clear(log.log_end_offset)
    put(log, ("y", "1"))
    clean(log, 5)
    assert left(log)[0].base == 2


def test_the_marker_with_the_epoch_of_a_producer_without_data_stays(log: Log) -> None:
    """As after every TV2 transaction: the marker has raised the epoch, and the sequence starts anew."""
    put_txn(log, 5, 0, ("a", "1"))
    end_txn(log, 5, commit=True, epoch=1)
    put(log, ("a", "2"))
    put(log, ("z", "last"))
    dirty = None
    for turn in range(4):
        dirty = clean(log, dirty, now_ms=NOW_MS + turn * DAY_MS)
        put(log, ("y", str(turn)))
    assert left(log)[0] == Left(1, 1, marker="emptied")
    assert (header_at(log, 1).producer_epoch, header_at(log, 1).is_control) == (1, True)


def test_the_last_batch_of_a_cleaning_stays_empty(log: Log) -> None:
    put(log, ("a", "1"))
    put_txn(log, 5, 0, ("b", "1"))
    end_txn(log, 5, commit=False)
    put(log, ("", "no key"))
    clean(log)
    assert left(log)[-1] == Left(3, 3, ())
    assert header_at(log, 3).size_bytes == HEADER_BYTES


def test_producer_state_and_transactions_come_back_from_a_compacted_log(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "1"), ("b", "1"))
    put_txn(log, 6, 0, ("c", "1"))
    end_txn(log, 5, commit=True)
    end_txn(log, 6, commit=False)
    put(log, ("a", "2"), ("b", "2"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, ("z", "last"))
    clean(log)
    put_txn(log, 6, 1, ("d", "open"))
    before = {p.producer_id: p for p in log.producer_state.active_producers()}
    for path in log.folder.glob("*.snapshot"):
        path.unlink()
    log.durability.recovery_point = 0
    log = reopen(log, clean=False)
    after = {p.producer_id: p for p in log.producer_state.active_producers()}
    assert after == before
    assert log.producer_state.first_undecided_offset == 8


def test_no_snapshot_remembers_a_transaction_whose_marker_is_gone(log: Log) -> None:
    put_txn(log, 5, 0, ("a", "1"))
    log.roll(NOW_MS)
    end_txn(log, 5, commit=True)
    put(log, ("a", "2"), producer_id=5, producer_epoch=0, base_sequence=1)
    log.roll(NOW_MS)
    dirty = None
    for turn in range(4):
        dirty = clean(log, dirty, now_ms=NOW_MS + turn * DAY_MS)
        put(log, ("z", str(turn)))
    assert not any(batch.marker for batch in left(log))
    newest = max(log.folder.glob("*.snapshot"))
    newest.write_bytes(b"damaged")
    log.durability.recovery_point = 0
    log = reopen(log, clean=False)
    assert log.producer_state.first_undecided_offset is None


def test_a_kill_before_or_after_a_swap_opens_no_transaction_whose_marker_goes_with_it(log: Log, tmp_path: Path) -> None:
    put(log, ("w", "w" * 9000))
    put_txn(log, 5, 0, ("a", "1"))
    log.roll(NOW_MS)
    end_txn(log, 5, commit=True)
    put(log, ("a", "2"), producer_id=5, producer_epoch=0, base_sequence=1)
    put(log, ("x", "x" * 9000))
    log.roll(NOW_MS)
    put(log, ("y", "y" * 9000))
    log.roll(NOW_MS)
    put(log, ("z", "0"))
    log.flush()
    killed: list[Log] = []

    def copy() -> None:
        killed.append(copy_log(log, tmp_path / f"killed-{len(killed)}"))

    for point in ("cleaner.swap.before_rename", "cleaner.swap.after"):
        failpoints.arm(point, copy)
    for turn in range(3):
        clean(log, now_ms=NOW_MS + turn * DAY_MS, roll=False)
    failpoints.disarm_all()
    assert not any(batch.marker for batch in left(log))
    for copied in killed:
        assert copied.producer_state.first_undecided_offset is None
        copied.durability.recovery_point = copied.segments[1].base_offset
        again = reopen(copied, clean=False)
        assert again.producer_state.first_undecided_offset is None


@pytest.mark.parametrize("cut_before_cleaning", [True, False])
def test_a_producer_whose_records_were_deleted_is_known_after_cleaning_and_a_kill(
    tmp_path: Path, cut_before_cleaning: bool
) -> None:
    """By the snapshot of what is the first segment then, and nothing else."""
    log = compacted_log(tmp_path, replace(COMPACTED, cleanup_policy=("compact", "delete")))
    idle = keyed(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, idle)
    put_txn(log, 8, 0, ("a", "2"))
    log.roll(NOW_MS)
    end_txn(log, 8, commit=False)
    put(log, ("b", "b" * 9000))
    log.roll(NOW_MS)
    put(log, ("c", "c" * 9000))
    first_kept = log.segments[1].base_offset
    if cut_before_cleaning:
        log.delete_records(first_kept)
    clean(log)
    log.delete_records(first_kept)
    log = reopen(log, clean=False)
    assert append(log, idle).duplicate
    assert {p.producer_id: p.txn_first_offset for p in log.producer_state.active_producers()} == {7: -1, 8: -1}


def test_a_committed_reader_sees_the_same_before_and_after(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put_txn(log, 5, 0, ("a", "2"), ("c", "1"))
    put_txn(log, 6, 0, ("b", "x"), ("c", "x"))
    end_txn(log, 6, commit=False)
    put_txn(log, 6, 2, ("d", "1"))
    end_txn(log, 5, commit=True)
    end_txn(log, 6, commit=True)
    put(log, ("z", "last"))
    before = read_committed(log)
    newest = {key: offset for offset, (key, _) in before.items()}
    dirty = None
    for turn in range(4):
        dirty = clean(log, dirty, now_ms=NOW_MS + turn * DAY_MS)
        assert read_committed(log) == {offset: before[offset] for offset in newest.values()}


def test_a_duplicate_is_recognised_after_cleaning_and_restart(log: Log) -> None:
    data = keyed(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, data)
    put(log, ("a", "2"))
    clean(log)
    log.durability.recovery_point = 0
    log = reopen(log, clean=False)
    info = append(log, data)
    assert info.duplicate
    assert info.first_offset == 0
