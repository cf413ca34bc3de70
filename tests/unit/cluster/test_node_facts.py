"""What one node keeps of its own: where earlier versions had their journal, which refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.cluster.journal import JournalDamaged, format_line, parse_line
from oncelog.cluster.journal_entries import JournalState, without_secrets
from oncelog.cluster.node_facts import JOURNAL_FILE, NodeFacts

FACTS = NodeFacts("a boot", 3, 120, b"secret")


@pytest.mark.parametrize("facts", [FACTS, NodeFacts()])
def test_what_was_written_is_read(tmp_path: Path, facts: NodeFacts) -> None:
    path = tmp_path / JOURNAL_FILE
    NodeFacts("before").write(path)
    facts.write(path)
    assert NodeFacts.read(path) == facts
    assert path.stat().st_mode & 0o077 == 0


def test_a_journal_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    assert NodeFacts.read(path) is None
    lines = [format_line({"kind": kind, "incarnation": 0}) for kind in ("start", "stop")]
    for count in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:count]))
        assert NodeFacts.read(path) is None


def test_an_earlier_version_does_not_take_it_for_a_journal(tmp_path: Path) -> None:
    FACTS.write(tmp_path / JOURNAL_FILE)
    with pytest.raises(JournalDamaged, match="a newer Oncelog"):
        JournalState.read(tmp_path / JOURNAL_FILE)


def test_the_secret_is_not_shown_to_whoever_inspects_the_folder(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    FACTS.write(path)
    [entry] = parse_line(path.read_bytes().rstrip()) or []
    assert entry["secret"]
    assert without_secrets(entry) == {
        "kind": "moved to __cluster_metadata-0",
        "boot": "a boot",
        "doubtful_epoch": 3,
        "end_offset": 120,
    }
