"""Opening a log after a crash, or with files that are damaged or missing."""

from __future__ import annotations

import logging
import os
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from oncelog.storage.segment import Segment
from oncelog.storage.time_lookup import latest_record
from tests.unit.storage.log_harness import (
    NOW_MS,
    ORDERS,
    SMALL,
    append,
    append_txn,
    batch,
    copy_log,
    end_txn,
    files,
    headers,
    new_log,
    ranges,
    read_all,
    reopen,
)

INDEXES = (".index", ".timeindex", ".txnindex")


def mixed_log(folder: Path, config: LogConfig = SMALL, *, count: int = 24) -> Log:
    """Plain, idempotent and transactional batches over several segments and leader epochs."""
    log = new_log(folder, config)
    for number in range(count):
        append(log, count=2, timestamp=NOW_MS + number, epoch=number // 8)
        append(log, producer_id=1, producer_epoch=0, base_sequence=number, epoch=number // 8)
        if number % 3 == 0:
            append_txn(log, 50 + number, leader_epoch=number // 8)
        if number % 6 == 3:
            end_txn(log, 50 + number - 3, commit=False, leader_epoch=number // 8)
    return log


def opened(folder: Path, log: Log, *, recovery_point: int | None = 0, clean: bool = False) -> Log:
    return Log(
        LogPlace(folder, ORDERS, NOW_MS), log.config, clean=clean, log_start_offset=0, recovery_point=recovery_point
    )


def state_of(log: Log) -> tuple[object, ...]:
    aborted = log.aborted_transactions(0, log.log_end_offset)
    return (
        log.log_end_offset,
        read_all(log),
        log.leader_epochs.entries,
        sorted(log.producer_state.active_producers()),
        log.producer_state.first_undecided_offset,
        aborted,
        latest_record(log),
    )


def active_path(log: Log) -> Path:
    return log.segments[-1].log_file.path


@pytest.mark.parametrize("recovery_point", [0, 1, 17, 40, 10_000, None])
def test_killed_log_comes_back_whole_whatever_the_recovery_point(tmp_path: Path, recovery_point: int | None) -> None:
    log = mixed_log(tmp_path)
    expected = state_of(log)
    log.flush()
    shutil.copytree(log.folder, tmp_path / "copy")
    assert state_of(opened(tmp_path / "copy", log, recovery_point=recovery_point)) == expected


def test_recovered_files_equal_those_of_a_clean_stop(tmp_path: Path) -> None:
    log = mixed_log(tmp_path)
    recovered = copy_log(log, tmp_path / "copy")
    recovered.close()
    log.close()
    assert files(recovered.folder, ".log", *INDEXES) == files(log.folder, ".log", *INDEXES)
    assert files(recovered.folder, ".snapshot").keys() == files(log.folder, ".snapshot").keys()


def test_torn_tail_is_cut_at_the_last_whole_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = mixed_log(tmp_path, LogConfig(), count=4)
    whole = log.log_end_offset
    size = log.size_bytes
    append(log, count=3, producer_id=1, producer_epoch=0, base_sequence=4)
    for kept in (1, 11, 12, 60, 61, 62, log.size_bytes - size - 1):
        copy = tmp_path / f"torn-{kept}"
        shutil.copytree(log.folder, copy)
        os.truncate(copy / active_path(log).name, size + kept)
        with caplog.at_level(logging.WARNING, logger="oncelog.storage"):
            recovered = opened(copy, log)
        assert recovered.log_end_offset == whole
        assert (copy / active_path(log).name).stat().st_size == size
        assert f"cutting {kept} bytes" in caplog.text
        caplog.clear()
        info = append(recovered, count=3, producer_id=1, producer_epoch=0, base_sequence=4, epoch=9)
        assert (info.first_offset, info.duplicate) == (whole, False)


@pytest.mark.parametrize("garbage", [bytes(5000), b"\xff" * 100, os.urandom(300)])
def test_garbage_after_the_last_batch_is_cut(tmp_path: Path, garbage: bytes) -> None:
    log = mixed_log(tmp_path, count=4)
    expected = state_of(log)
    with active_path(log).open("ab") as file:
        file.write(garbage)
    assert state_of(copy_log(log, tmp_path / "copy")) == expected


def test_batch_with_a_wrong_crc_ends_the_log_and_later_segments_go(tmp_path: Path) -> None:
    log = mixed_log(tmp_path)
    assert len(log.segments) > 4
    victim = log.segments[2]
    cut = headers(log)
    with victim.log_file.path.open("r+b") as file:
        file.seek(victim.size_bytes - 1)
        file.write(b"\x55")
    recovered = copy_log(log, tmp_path / "copy")
    end = next(header for header in reversed(cut) if header.next_offset <= log.segments[3].base_offset).base_offset
    assert recovered.log_end_offset == end
    assert ranges(recovered) == [(h.base_offset, h.last_offset) for h in cut if h.base_offset < end]
    assert [segment.base_offset for segment in recovered.segments] == [s.base_offset for s in log.segments[:3]]
    assert not list(recovered.folder.glob(f"{log.segments[3].base_offset:020d}.*"))
    assert all(entry.start_offset < end for entry in recovered.leader_epochs.entries)
    append(recovered, epoch=9)
    assert copy_log(recovered, tmp_path / "again").log_end_offset == end + 1


def test_batch_with_an_offset_that_goes_back_ends_the_log(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log, count=5)
    with active_path(log).open("ab") as file:
        file.write(batch(base_offset=3))
    assert copy_log(log, tmp_path / "copy").log_end_offset == 5


def test_only_what_is_above_the_recovery_point_is_read_again(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, LogConfig(index_interval_bytes=200))
    log.flush()
    flushed = log.recovery_point
    append(log, count=3)
    with active_path(log).open("r+b") as file:
        file.seek(30)
        file.write(b"\x99")
    recovered = copy_log(log, tmp_path / "copy")
    assert recovered.recovery_point == flushed
    assert recovered.log_end_offset == flushed + 3, "a bit that rots below the recovery point is not looked at"
    everything = opened(tmp_path / "copy", log, recovery_point=0)
    assert everything.log_end_offset == 0


def test_indexes_of_a_small_log_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log, count=2)
    log.flush()
    looked_at: list[Segment] = []
    monkeypatch.setattr(Segment, "open_indexes", looked_at.append)
    recovered = copy_log(log, tmp_path / "copy")
    assert recovered.log_end_offset == 2
    assert looked_at == [], "they can have no entry, and it is read from its start"


def test_data_above_the_recovery_point_is_not_believed(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, LogConfig(index_interval_bytes=200))
    log.flush()
    flushed = log.recovery_point
    position = log.size_bytes
    append(log, count=3)
    with active_path(log).open("r+b") as file:
        file.seek(position + 70)
        file.write(b"\x99")
    assert copy_log(log, tmp_path / "copy").log_end_offset == flushed


def test_recovery_point_beyond_the_end_is_not_believed(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, LogConfig(index_interval_bytes=200))
    log.flush()
    with active_path(log).open("r+b") as file:
        file.seek(30)
        file.write(b"\x99")
    shutil.copytree(log.folder, tmp_path / "copy")
    assert opened(tmp_path / "copy", log, recovery_point=log.log_end_offset + 1).log_end_offset == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "garbage"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_damaged_companions_are_rebuilt(tmp_path: Path, suffix: str, damage: str, clean: bool) -> None:
    """A torn checkpoint of leader epochs (KAFKA-16541) is one of them."""
    log = mixed_log(tmp_path)
    expected = state_of(log)
    log.close()
    on_disk = files(log.folder, ".index", ".timeindex")
    victims = [path for path in log.folder.iterdir() if path.name.endswith(suffix)]
    assert victims
    for path in victims:
        if damage == "missing":
            path.unlink()
        else:
            content = path.read_bytes()
            path.write_bytes({"empty": b"", "torn": content[:-3], "garbage": b"\x81" * max(7, len(content))}[damage])
    again = opened(log.folder, log, recovery_point=log.log_end_offset, clean=clean)
    assert state_of(again) == expected
    for segment in again.segments:
        assert segment.find(segment.base_offset) is not None
    again.close()
    assert files(log.folder, ".index", ".timeindex") == on_disk


def test_clean_stop_is_not_believed_when_the_end_is_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = mixed_log(tmp_path)
    log.close()
    end, path = log.log_end_offset, active_path(log)
    os.truncate(path, path.stat().st_size - 1)
    again = opened(log.folder, log, recovery_point=end, clean=True)
    assert again.log_end_offset == end, "nothing is looked at before it is needed"
    again.load()
    assert again.log_end_offset < end
    assert "stopped cleanly" in caplog.text
    assert append(again, epoch=9).first_offset == again.log_end_offset - 1


def test_folder_without_segments_begins_at_its_log_start(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, count=3)
    log.close()
    for path in log.folder.glob("*.log"):
        path.unlink()
    place = LogPlace(log.folder, ORDERS, NOW_MS)
    again = Log(place, log.config, clean=False, log_start_offset=5000, recovery_point=5000)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (5000, 5000, 0)
    assert append(again).first_offset == 5000


def test_index_files_without_a_log_are_removed(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, count=3)
    orphan = log.folder / "00000000000000009999.index"
    orphan.write_bytes(bytes(8))
    log = reopen(log)
    log.load()
    assert not orphan.exists()


def test_empty_folder_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    log = Log(LogPlace(tmp_path / "orders-0", ORDERS, NOW_MS), SMALL, clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.topic_id is None
    append(log)


def test_leftovers_of_interrupted_work_are_removed(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, count=3)
    expected = state_of(log)
    log.close()
    leftovers = [
        "00000000000000000000.log.deleted",
        "00000000000000000003.index.cleaned",
        "00000000000000000003.log.cleaned",
        "00000000000000000005.log.swap",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in leftovers:
        (log.folder / name).write_bytes(b"x")
    again = opened(log.folder, log, recovery_point=log.log_end_offset, clean=True)
    assert state_of(again) == expected
    assert not [name for name in leftovers if (log.folder / name).exists()]


def test_a_start_does_not_wait_for_deleted_segments_to_be_unlinked(tmp_path: Path) -> None:
    log = mixed_log(tmp_path, count=3)
    log.close(clean=False)
    deleted = log.folder / "00000000000000000000.log.deleted"
    deleted.write_bytes(b"x")
    later: list[tuple[Sequence[Path], int]] = []
    place = LogPlace(log.folder, ORDERS, NOW_MS, delete_later=lambda paths, delay_ms: later.append((paths, delay_ms)))
    Log(place, SMALL, clean=False)
    assert later == [([deleted], 0)]
    assert deleted.exists()


def test_complete_output_of_the_cleaner_is_swapped_in(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(segment_bytes=250))
    for _ in range(8):
        append(log)
    log.close()
    bases = [segment.base_offset for segment in log.segments]
    assert bases == [0, 2, 4, 6]
    # The first two segments were compacted into one that holds offset 3 only.
    survivor = log.read(3, 1, end_offset=8).data
    (log.folder / "00000000000000000000.log.swap").write_bytes(bytes(survivor))
    (log.folder / "00000000000000000000.index.swap").write_bytes(b"")
    again = opened(log.folder, log, recovery_point=8, clean=True)
    assert ranges(again) == [(3, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
    assert [segment.base_offset for segment in again.segments] == [0, 4, 6]
    assert not list(log.folder.glob("*.swap"))


def test_messages_of_an_old_format_are_refused_and_not_cut_off(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    append(log)
    body = struct.pack(">bbq", 1, 0, NOW_MS) + struct.pack(">i1si1s", 1, b"k", 1, b"v")
    message = struct.pack(">I", zlib.crc32(body)) + body
    with active_path(log).open("ab") as file:
        file.write(struct.pack(">qi", 1, len(message)) + message)
    size = active_path(log).stat().st_size
    with pytest.raises(KafkaError) as raised:
        copy_log(log, tmp_path / "copy")
    assert raised.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert (tmp_path / "copy" / active_path(log).name).stat().st_size == size


def test_snapshots_are_kept_for_segments_and_the_end(tmp_path: Path) -> None:
    log = mixed_log(tmp_path)
    log = reopen(log)
    append(log)
    log.close()
    stems = [int(name.partition(".")[0]) for name in files(log.folder, ".snapshot")]
    assert stems == [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]


def test_snapshots_above_the_end_are_not_used(tmp_path: Path) -> None:
    log = mixed_log(tmp_path)
    log.close()
    newest = max(log.folder.glob("*.snapshot"))
    liar = log.folder / f"{log.log_end_offset + 5:020d}.snapshot"
    shutil.copy(newest, liar)
    again = opened(log.folder, log)
    assert again.log_end_offset == log.log_end_offset
    assert not liar.exists()


def test_loading_is_put_off_and_changes_nothing_on_disk(tmp_path: Path) -> None:
    log = mixed_log(tmp_path)
    log.close()
    before = {path: path.stat().st_mtime_ns for path in log.folder.iterdir()}
    again = opened(log.folder, log, recovery_point=log.log_end_offset, clean=True)
    assert not again.is_loaded
    assert again.close() is True
    assert again.prepare_flush() is None
    assert not again.is_loaded
    assert {path: path.stat().st_mtime_ns for path in log.folder.iterdir()} == before


def test_an_index_is_not_rebuilt_over_a_batch_whose_offset_went_back(tmp_path: Path) -> None:
    """The batch of the last index entry has another offset, which no checksum covers: the log is cut there."""
    log = new_log(tmp_path)
    for _ in range(25):
        append(log)
    log.close()
    segment = log.segments[-1]
    damaged = segment.offset_index.last
    with segment.log_file.path.open("r+b") as file:
        file.seek(damaged.position)
        file.write((1).to_bytes(8, "big"))
    again = reopen(log)
    again.load()
    assert again.log_end_offset == damaged.offset
