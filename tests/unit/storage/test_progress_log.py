"""Long work is told of once a second."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from oncelog.storage import progress_log
from oncelog.storage.progress_log import ProgressLog
from tests.unit.storage.log_harness import append, copy_log, new_log


def test_quick_work_says_nothing_and_long_work_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    work = ProgressLog("counting", 50, "beans", lambda: now_s)
    with caplog.at_level(logging.INFO, "oncelog.storage"):
        for _ in range(10):
            work.add(1)
            now_s += 0.25
    assert [record.message for record in caplog.records] == [
        "counting: 5 of 50 beans done",
        "counting: 9 of 50 beans done",
    ]


def test_recovery_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_log, "INTERVAL_S", 0.0)
    log = new_log(tmp_path)
    for _ in range(15):
        append(log)
    with caplog.at_level(logging.INFO, "oncelog.storage"):
        copy_log(log, tmp_path / "killed").close(clean=False)
    assert f"recovering orders-0: {log.size_bytes} of {log.size_bytes} bytes done" in caplog.messages
