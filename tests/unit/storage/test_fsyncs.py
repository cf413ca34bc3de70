"""A process whose folder is thrown away fsyncs nothing; any other one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.storage import fsyncs
from oncelog.storage.atomic_file import replace_file, sync_path
from oncelog.storage.flush_work import FlushWork


@pytest.mark.parametrize("are_needed", [True, False])
def test_files_and_folders_are_fsynced_unless_they_are_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_needed: bool
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(fsyncs, "_are_needed", True)  # so that it is again after this test
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    if not are_needed:
        fsyncs.do_without()
    segment = tmp_path / "t-0" / "0.log"
    segment.parent.mkdir()
    replace_file(segment, b"x")
    sync_path(segment)
    FlushWork(TopicPartition("t", 0), (segment,), segment.parent, 1, 0).run()
    assert segment.read_bytes() == b"x"
    written = ["0.log.*.tmp", "t-0", "0.log", "0.log", "t-0", tmp_path.name]
    assert len(synced) == (len(written) if are_needed else 0)
    assert synced[1:] == (written[1:] if are_needed else [])
