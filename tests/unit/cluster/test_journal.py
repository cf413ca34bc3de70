from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.cluster.journal import JournalDamaged, format_line, read_journal


def _write(path: Path, count: int) -> None:
    path.write_bytes(b"".join(format_line({"kind": "test", "n": n}) for n in range(count)))


def _read(path: Path) -> tuple[list[int], int]:
    found = read_journal(path)
    return [entry["n"] for entry in found.entries], found.torn_bytes


def test_a_kill_at_any_byte_has_lost_only_the_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 3)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(1 for end in ends if end <= cut)
        assert _read(path) == (list(range(complete)), cut - (ends[complete - 1] if complete else 0)), cut
        assert path.stat().st_size == cut, "nothing is changed by reading"


def test_changes_that_were_made_together_hold_together_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 2)
    before = path.stat().st_size
    whole = path.read_bytes() + format_line([{"n": 2}, {"n": 3}, {"n": 4}])
    path.write_bytes(whole)
    assert _read(path) == ([0, 1, 2, 3, 4], 0)
    for lost in range(before, len(whole)):
        damaged = bytearray(whole)
        damaged[lost] = 0
        path.write_bytes(damaged)
        assert _read(path) == ([0, 1], len(whole) - before), lost


def test_damage_in_the_middle_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write(path, 3)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="damaged at byte 0"):
        _read(path)


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert _read(tmp_path / "journal") == ([], 0)
