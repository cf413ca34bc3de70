"""Logs and folders that a test crashes do not keep their descriptors: see `tests/open_files`."""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.log_dir import LogDir
from tests import open_files
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, append_txn, end_txn, new_log, open_descriptors, ranges


def crash_everything(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    log = new_log(folder)
    append_txn(log, 1)
    end_txn(log, 1, commit=False)
    LogDir.open(folder / "data", node_id=1, config_for=lambda _: SMALL, now_ms=NOW_MS)


def test_what_a_crash_leaves_open_is_closed(tmp_path: Path) -> None:
    before, number = open_descriptors(), open_files.last_number()
    crash_everything(tmp_path)
    assert open_descriptors() >= before + 3
    open_files.close_opened_since(number)
    assert open_descriptors() == before


def test_what_was_opened_before_stays_open(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    before, number = open_descriptors(), open_files.last_number()
    crash_everything(tmp_path / "crashed")
    open_files.close_opened_since(number)
    assert open_descriptors() == before
    append(log)
    assert open_descriptors() == before


def test_only_what_lies_in_the_folder_of_the_crashed_broker_is_closed(tmp_path: Path) -> None:
    before = open_descriptors()
    for name in ("one", "two"):
        crash_everything(tmp_path / name)
    both = open_descriptors() - before
    open_files.close_under(tmp_path / "one")
    assert open_descriptors() == before + both // 2


def test_a_log_that_is_used_again_opens_its_files_again(tmp_path: Path) -> None:
    number = open_files.last_number()
    log = new_log(tmp_path)
    append(log)
    open_files.close_opened_since(number)
    append(log)
    assert ranges(log) == [(0, 0), (1, 1)]
