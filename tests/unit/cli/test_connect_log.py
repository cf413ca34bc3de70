"""What connectors log goes to the terminal, as long as there is one; and how far they are."""

from __future__ import annotations

import logging

import pytest

from oncelog.cli import progress
from oncelog.cli.connect import _copied, _LogLines
from oncelog.connect.progress import Progress, SnapshotProgress, Status


def test_a_terminal_that_is_gone_does_not_disturb_whoever_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: str) -> None:
        raise BrokenPipeError(text)

    monkeypatch.setattr(progress, "say", gone)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.Logger("connector")
    logger.addHandler(_LogLines())
    logger.warning("something")


def test_a_snapshot_is_shown_with_its_table_and_its_rows() -> None:
    reading = Status("shop", Progress(snapshot=SnapshotProgress("public.orders", 1200, 4000)))
    assert _copied([reading, Status("out")]) == (
        "shop: snapshot of public.orders, 1,200 of about 4,000 rows, out: 0 records"
    )
    assert SnapshotProgress("t", 5000, 4000).text() == "t, 5,000 of about 5,000 rows"
