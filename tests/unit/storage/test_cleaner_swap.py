"""The swap of cleaned segments: killed at every rename, refused when the log has changed, failing half way."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.steps import at_once
from oncelog.storage.cleaner import CleaningPass
from oncelog.storage.cleaner_pace import CleaningStopped, Pace
from oncelog.storage.cleaner_plan import find_cleanable
from oncelog.storage.deletions import unlink_at_once
from oncelog.storage.interrupted_files import finish_interrupted_work
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.segment_names import SEGMENT_SUFFIXES
from tests.unit.storage.cleaner_harness import (
    COMPACTED,
    clean,
    compacted_log,
    put,
    put_txn,
    read_committed,
    stable_end,
    survivors,
)
from tests.unit.storage.log_harness import NOW_MS, ORDERS, append, end_txn, files, reopen

POINTS = (
    "segment.create.after_log_file",
    "cleaner.before_fsync",
    "cleaner.swap.before_rename",
    "segment.delete.before_rename",
    "cleaner.swap.after",
)


class Killed(BaseException):
    """What a kill -9 is to the code that meets it: nothing behind it runs."""


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.disarm_all()


def kill() -> None:
    raise Killed


def dirty_log(folder: Path) -> Log:
    """Four segments, two groups, with transactions that reach over segments."""
    folder.mkdir(exist_ok=True)
    log = compacted_log(folder, COMPACTED)
    put(log, ("a", "1"), ("b", "1"))
    put_txn(log, 5, 0, ("a", "2"), ("c", "x" * 4000))
    log.roll(NOW_MS)
    put_txn(log, 6, 0, ("b", "aborted"), ("d", "y" * 4000))
    end_txn(log, 5, commit=True)
    log.roll(NOW_MS)
    end_txn(log, 6, commit=False)
    put(log, ("a", "3"), ("e", "z" * 4000))
    log.roll(NOW_MS)
    put(log, ("e", "w" * 4000), ("f", "1"))
    put_txn(log, 6, 2, ("c", "new"))
    end_txn(log, 6, commit=True)
    put(log, ("z", "last"))
    log.roll(NOW_MS)
    return log


def opened_after_kill(folder: Path, dead: Log) -> Log:
    place = LogPlace(folder, ORDERS, NOW_MS)
    return Log(place, dead.config, clean=False, log_start_offset=0, recovery_point=dead.recovery_point)


def cleaning(log: Log) -> CleaningPass:
    cleanable = find_cleanable(log, None, last_stable_offset=stable_end(log), now_ms=NOW_MS)
    work = CleaningPass(cleanable, map_memory_bytes=1 << 20, now_ms=NOW_MS, pace=Pace(rest_s=0))
    at_once(work.prepare())
    work.build_map()
    return work


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_leaves_the_old_segments_or_the_new_one(tmp_path: Path, point: str, flushed: bool) -> None:
    reference = dirty_log(tmp_path / "reference-root")
    everything = read_committed(reference)
    newest = {key: offset for offset, (key, _) in everything.items()}
    kills = 0
    for hit in itertools.count(1):
        root = tmp_path / f"{point}-{hit}"
        log = dirty_log(root)
        if flushed:
            log.flush()
        failpoints.arm(point, failpoints.on_nth_hit(hit, kill))
        try:
            clean(log, roll=False)
        except Killed:
            kills += 1
        else:
            break
        finally:
            failpoints.disarm_all()
        recovered = opened_after_kill(log.folder, log)
        assert not [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
        assert recovered.log_end_offset == reference.log_end_offset
        seen = read_committed(recovered)
        assert seen.items() <= everything.items()
        assert {offset: everything[offset] for offset in newest.values()}.items() <= seen.items()
        assert recovered.producer_state.first_undecided_offset is None
        clean(recovered, roll=False)
        assert read_committed(recovered) == {offset: everything[offset] for offset in newest.values()}
        recovered.close(clean=False)
    assert kills >= (2 if "swap" in point or "delete" in point else 1)


def test_a_kill_during_recovery_of_a_swap_is_recovered_too(tmp_path: Path) -> None:
    """The renames of a start are plain ones: what is there after each of them is opened again."""
    log = dirty_log(tmp_path)
    work = cleaning(log)
    cleaned = work.clean(work.groups[0])
    names = sorted(path.name for path in cleaned.files)
    expected = None
    for done in range(len(names) + 1):
        folder = tmp_path / f"copy-{done}"
        shutil.copytree(log.folder, folder)
        for number, name in enumerate(sorted(names, key=lambda name: ".log." not in name)):
            target = name.removesuffix(".cleaned") + ("" if number < done else ".swap")
            (folder / name).rename(folder / target)
        if done:
            for base, _ in cleaned.replaces:
                for path in folder.glob(f"{base:020d}.*"):
                    if path.name + ".cleaned" not in names and path.suffix not in (".swap", ".snapshot"):
                        path.unlink()
        recovered = opened_after_kill(folder, log)
        expected = expected or survivors(recovered)
        assert survivors(recovered) == expected
        recovered.close(clean=False)


def test_an_empty_cleaned_segment_takes_the_old_transaction_index_away(tmp_path: Path) -> None:
    """Left alone, it would hide committed records of the same producer: no marker is left to end the abort."""
    log = compacted_log(tmp_path)
    put(log, ("a", "0"))
    log.roll(NOW_MS)
    put_txn(log, 5, 0, ("a", "x"))
    end_txn(log, 5, commit=False)
    log.roll(NOW_MS)
    put(log, ("a", "1"))
    log.roll(NOW_MS)
    base = log.segments[1].base_offset
    empty = log.folder / f"{base:020d}.log.swap"
    empty.write_bytes(b"")
    recovered = opened_after_kill(log.folder, log)
    assert recovered.segments[1].size_bytes == 0
    assert recovered.aborted_transactions(0, 100) == []


def test_segments_that_were_deleted_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    work = cleaning(log)
    cleaned = work.clean(work.groups[0])
    log.delete_records(log.segments[1].base_offset)
    before = survivors(log)
    assert not log.replace_segments(cleaned)
    assert survivors(log) == before


def test_a_log_that_was_cut_meanwhile_is_left_alone(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    work = cleaning(log)
    cleaned = work.clean(work.groups[0])
    log.truncate_to(1, now_ms=NOW_MS)
    append(log)
    assert not log.replace_segments(cleaned)


def test_the_active_segment_is_not_replaced(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    work = cleaning(log)
    cleaned = work.clean(work.groups[-1])
    log.truncate_to(log.segments[-1].base_offset, now_ms=NOW_MS)
    assert log.replace_segments(cleaned) == (len(log.segments) > 1)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_rename_stops_the_log_until_it_is_recovered(tmp_path: Path, code: int) -> None:
    """By a restart, or by the next append if nothing but space was missing."""
    log = dirty_log(tmp_path)
    before = read_committed(log)

    def fail() -> None:
        raise OSError(code, "injected")

    failpoints.arm("segment.delete.before_rename", failpoints.on_nth_hit(2, fail))
    with pytest.raises(KafkaError, match="half way") as caught:
        clean(log, roll=False)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    failpoints.disarm_all()
    with pytest.raises(KafkaError):
        log.read(0, 1 << 20, end_offset=log.log_end_offset)
    if code == errno.EIO:
        with pytest.raises(KafkaError, match="restart the broker"):
            append(log)
        log = opened_after_kill(log.folder, log)
    append(log)
    newest = {key: offset for offset, (key, _) in before.items()}
    assert {before[offset] for offset in newest.values()} <= set(read_committed(log).values())
    assert not [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]


@pytest.mark.parametrize("point", ["segment.create.after_log_file", "cleaner.before_fsync"])
def test_a_full_disk_leaves_no_files_and_the_log_as_it_was(tmp_path: Path, point: str) -> None:
    log = dirty_log(tmp_path)
    before = survivors(log)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    failpoints.arm(point, fail)
    work = cleaning(log)
    with pytest.raises(OSError, match="injected"):
        work.clean(work.groups[0])
    assert not list(log.folder.glob("*.cleaned"))
    assert survivors(log) == before
    append(log)


def test_what_another_cleaning_has_left_is_removed_first(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    leftover = log.folder / f"{log.segments[1].base_offset:020d}.log.cleaned"
    leftover.write_bytes(b"")
    cleaning(log)
    assert not leftover.exists()


@pytest.mark.parametrize("point", ["cleaner.swap.before_rename", "segment.delete.before_rename"])
def test_a_kill_leaves_all_records_whatever_another_cleaning_has_left(tmp_path: Path, point: str) -> None:
    """A `.cleaned` file of a lower offset does not make the only copy of a segment an unfinished one."""
    kills = 0
    for hit in itertools.count(1):
        log = dirty_log(tmp_path / f"{hit}")
        before = read_committed(log)
        newest = {key: offset for offset, (key, _) in before.items()}
        aborted = log.aborted_transactions(0, log.log_end_offset)
        work = cleaning(log)
        assert len(work.groups) == 2
        assert log.replace_segments(work.clean(work.groups[0]))
        cleaned = work.clean(work.groups[1])
        (log.folder / f"{0:020d}.log.cleaned").write_bytes(b"")
        failpoints.arm(point, failpoints.on_nth_hit(hit, kill))
        try:
            log.replace_segments(cleaned)
        except Killed:
            kills += 1
        else:
            break
        finally:
            failpoints.disarm_all()
        recovered = opened_after_kill(log.folder, log)
        seen = read_committed(recovered)
        assert {offset: before[offset] for offset in newest.values()}.items() <= seen.items()
        assert seen.items() <= before.items()
        assert set(recovered.aborted_transactions(0, log.log_end_offset)) <= set(aborted)
        assert not [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]
        recovered.close(clean=False)
    assert kills >= 4


def test_a_kill_while_unfinished_output_is_removed_mixes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `.log` goes after its companions: one of them alone would be taken for what follows a renamed `.log`."""
    log = dirty_log(tmp_path)
    expected = files(log.folder, *SEGMENT_SUFFIXES)
    work = cleaning(log)
    work.clean(work.groups[0])
    for path in work.clean(work.groups[1]).files:
        swapped = path.rename(path.with_name(path.name.removesuffix(".cleaned") + ".swap"))
        if ".log" not in path.suffixes:
            swapped.write_bytes(b"another index")
    unlink = Path.unlink
    for removed in itertools.count():
        folder = tmp_path / f"copy-{removed}"
        shutil.copytree(log.folder, folder)
        left = iter(range(removed))

        def unlink_or_die(path: Path, missing_ok: bool = False, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Killed
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink_or_die)
            try:
                finish_interrupted_work(folder, unlink_at_once)
            except Killed:
                pass
            else:
                break
        finish_interrupted_work(folder, unlink_at_once)
        assert files(folder, *SEGMENT_SUFFIXES) == expected
        assert not [path.name for path in folder.iterdir() if path.suffix in (".cleaned", ".swap")]
    assert removed >= 6


def test_a_split_of_a_segment_that_was_not_completed_is_undone(tmp_path: Path) -> None:
    """Kafka splits segments; the last of the new ones gets its name first, when the old one is there."""
    log = compacted_log(tmp_path)
    for number in range(4):
        put(log, (f"k{number}", "v"))
    before = survivors(log)
    (log.folder / f"{0:020d}.log.cleaned").write_bytes(b"")
    (log.folder / f"{2:020d}.log.swap").write_bytes(bytes(log.read(2, 1 << 20, end_offset=4).data))
    recovered = opened_after_kill(log.folder, log)
    assert survivors(recovered) == before
    assert [segment.base_offset for segment in recovered.segments] == [0]
    assert not [path.name for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap")]


def test_a_log_that_was_repaired_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """The repair has removed the output of the cleaner, as every opening does."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    log = dirty_log(tmp_path)
    put_txn(log, 7, 0, ("g", "1"))
    work = cleaning(log)
    cleaned = work.clean(work.groups[0])
    failpoints.arm("log.append.before_txn_index", failpoints.on_nth_hit(1, fail))
    with pytest.raises(KafkaError, match="half way"):
        end_txn(log, 7, commit=False)
    append(log)
    before = survivors(log)
    assert not log.replace_segments(cleaned)
    append(log)
    assert survivors(log)[: len(before)] == before


def test_a_stopped_cleaning_ends_soon_and_leaves_no_files(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    work = cleaning(log)
    work.pace.stop()
    with pytest.raises(CleaningStopped):
        work.clean(work.groups[0])
    assert not list(log.folder.glob("*.cleaned"))


def test_a_clean_stop_after_a_swap_needs_no_recovery(tmp_path: Path) -> None:
    log = dirty_log(tmp_path)
    clean(log, roll=False)
    after = survivors(log)
    log = reopen(log)
    assert survivors(log) == after
    assert log.producer_state.first_undecided_offset is None
