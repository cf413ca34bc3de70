"""Logs and folders that nobody has any more do not keep their descriptors: a test crashes them by letting them go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oncelog.storage.folder_lock import FolderLock
from oncelog.storage.log_dir import LogDir
from tests.descriptors import open_descriptors_of_files
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, append_txn, end_txn, new_log, ranges


def crash_everything(folder: Path) -> None:
    log = new_log(folder)
    append_txn(log, 1)
    end_txn(log, 1, commit=False)
    LogDir.open(folder / "data", node_id=1, config_for=lambda _: SMALL, now_ms=NOW_MS)


def test_what_a_crash_leaves_open_is_closed(tmp_path: Path) -> None:
    before = open_descriptors_of_files()
    crash_everything(tmp_path)
    assert open_descriptors_of_files() == before
    FolderLock(tmp_path / "data").release()


def test_what_others_have_open_stays_open(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    append(log)
    before = open_descriptors_of_files()
    (tmp_path / "crashed").mkdir()
    crash_everything(tmp_path / "crashed")
    assert open_descriptors_of_files() == before
    append(log)
    assert open_descriptors_of_files() == before
    assert ranges(log) == [(0, 0), (1, 1)]


def test_a_process_that_ends_with_open_logs_says_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.unit.storage.log_harness import append, new_log; "
        "log = new_log(pathlib.Path(sys.argv[1])); append(log)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stderr == ""
