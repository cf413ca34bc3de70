"""Who may write: of two instances of a source, the one that started later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from oncelog.connect.errors import Fenced
from oncelog.connect.source import Note, Stored
from oncelog.connect.source_log import SourceLog

NOTE = Note("system", 1, "slot", 1, False)


def test_an_older_instance_with_a_new_producer_does_not_take_over_again(
    servers: str, unique: Callable[[str], str]
) -> None:
    name = unique("source")
    settings = {"transaction.timeout.ms": 60_000, "max.request.size": 1_000_000}

    def log() -> SourceLog:
        return SourceLog(name, {"bootstrap.servers": servers}, settings)

    with closing(log()) as older, closing(log()) as newer:
        older.take_over()
        older.commit(Stored(1, NOTE))
        older._give_up_producer()  # as after a transaction that was open for too long
        older.take_over()
        older.commit(Stored(2, NOTE))
        older._give_up_producer()
        newer.take_over()
        with pytest.raises(Fenced, match="another instance"):
            older.take_over()
        newer.commit(Stored(3, NOTE))
        stored = newer.read()
        assert stored is not None and stored.position == 3
