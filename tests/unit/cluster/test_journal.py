from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oncelog.cluster import journal as journal_module
from oncelog.cluster.journal import Journal, JournalDamaged
from oncelog.core.errors import ErrorCode, KafkaError


def _write(path: Path, count: int) -> None:
    journal = Journal(path)
    journal.open()
    for n in range(count):
        journal.append({"kind": "test", "n": n})
    journal.close()


def _read(path: Path) -> tuple[list[int], int]:
    journal = Journal(path)
    entries, torn_bytes = journal.open()
    journal.close()
    return [entry["n"] for entry in entries], torn_bytes


def test_a_kill_at_any_byte_loses_only_the_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 3)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(1 for end in ends if end <= cut)
        numbers, torn_bytes = _read(path)
        assert numbers == list(range(complete)), cut
        assert torn_bytes == cut - (ends[complete - 1] if complete else 0)
        assert path.stat().st_size == cut, "what is torn is left until the next change, to show that it was"


def test_changes_that_are_made_together_hold_together_or_not_at_all(tmp_path: Path) -> None:
    """A disk writes the pages of one fsync in any order: with a line each, an intact one might follow a torn one."""
    path = tmp_path / "journal"
    _write(path, 2)
    before = path.stat().st_size
    journal = Journal(path)
    journal.open()
    journal.append({"n": 2}, {"n": 3}, {"n": 4})
    journal.close()
    assert _read(path) == ([0, 1, 2, 3, 4], 0)
    whole = path.read_bytes()
    for lost in range(before, len(whole)):
        damaged = bytearray(whole)
        damaged[lost] = 0
        path.write_bytes(damaged)
        assert _read(path) == ([0, 1], len(whole) - before), lost


def test_appending_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 2)
    path.write_bytes(path.read_bytes()[:-5])
    journal = Journal(path)
    journal.open()
    journal.append({"n": 9})
    journal.close()
    assert _read(path) == ([0, 9], 0)


def test_damage_in_the_middle_is_reported_and_nothing_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 3)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="damaged at byte 0"):
        _read(path)
    assert path.read_bytes() == bytes(data)


def test_a_rewrite_keeps_what_it_is_given_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    for n in range(10):
        journal.append({"n": n})
    journal.rewrite([{"n": 100}])
    journal.append({"n": 101})
    journal.close()
    assert _read(path) == ([100, 101], 0)


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    journal.append({"n": 0})
    real_write = os.write

    def half_then_full(fd: int, data: bytes) -> int:
        real_write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(KafkaError, match="No space left") as caught:
        journal.append({"n": 1})
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    journal.append({"n": 2})
    journal.close()
    assert _read(path) == ([0, 2], 0)


def test_nothing_is_appended_to_a_rewritten_file_before_its_name_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    journal.append({"n": 0})

    def broken(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal_module, "sync_path", broken)
    with pytest.raises(KafkaError, match="cannot be synced"):
        journal.rewrite([{"n": 0}])
    with pytest.raises(KafkaError, match="cannot be written"):
        journal.append({"n": 1})
    monkeypatch.undo()
    journal.append({"n": 2})
    journal.close()
    assert _read(path) == ([0, 2], 0)


def test_a_rewrite_without_a_descriptor_left_is_an_error_and_the_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(KafkaError, match="Too many open files"):
        journal.rewrite([{"n": 0}])
    monkeypatch.undo()
    journal.append({"n": 1})
    journal.close()
    assert _read(path) == ([1], 0)
