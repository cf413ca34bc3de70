"""Messages as three versions of PostgreSQL sent them for one script (tests/connect/capture_pgoutput.py)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.connect import pgoutput
from oncelog.connect.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Data,
    Delete,
    Insert,
    Keepalive,
    MalformedStream,
    Message,
    Relation,
    Truncate,
    Update,
    decode,
    decode_stream,
)

FILES = sorted((Path(__file__).parents[2] / "data" / "pgoutput").glob("*.txt"))
ITEMS = (Column("id", 23, True), Column("name", 25, False), Column("big", 25, False))
MORE = (*ITEMS, Column("more", 23, False))
WHOLE = (Column("a", 23, True), Column("b", 25, True))


def messages(file: Path) -> list[bytes]:
    return [bytes.fromhex(line) for line in file.read_text().split()]


def shape(message: Any) -> Any:
    """Without what differs from server to server."""
    match message:
        case Begin():
            return "begin"
        case Commit():
            return "commit"
        case Relation():
            return (message.schema, message.name, message.identity, message.columns)
        case Insert():
            return ("insert", message.new)
        case Update():
            return ("update", message.old, message.new)
        case Delete():
            return ("delete", message.old)
        case Truncate():
            return ("truncate", len(message.oids))
        case Message():
            return (message.is_transactional, message.prefix, message.content)


def test_there_are_three_versions() -> None:
    assert [file.stem for file in FILES] == ["postgresql-15", "postgresql-16", "postgresql-18"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_messages_of_a_server_are_understood(file: Path) -> None:
    decoded = [decode(message) for message in messages(file)]
    assert [shape(message) for message in decoded] == [
        "begin",
        ("public", "items", "d", ITEMS),
        ("insert", ["1", "é", "x" * 3000]),
        ("insert", ["2", None, ""]),
        "commit",
        "begin",
        ("update", None, ["1", "new", UNCHANGED]),
        ("update", ["2", None, None], ["3", None, ""]),
        "commit",
        "begin",
        ("delete", ["3", None, None]),
        (True, "prefix", b"content"),
        "commit",
        "begin",
        ("public", "whole", "f", WHOLE),
        ("insert", ["1", "one"]),
        ("update", ["1", "one"], ["1", "two"]),
        ("delete", ["1", "two"]),
        "commit",
        "begin",
        ("public", "items", "d", MORE),
        ("insert", ["4", "x", "y", None]),
        "commit",
        "begin",
        ("public", "items", "d", MORE),
        ("public", "whole", "f", WHOLE),
        ("truncate", 2),
        "commit",
    ]
    begins = [message for message in decoded if isinstance(message, Begin)]
    commits = [message for message in decoded if isinstance(message, Commit)]
    for begin, commit in zip(begins, commits, strict=True):
        assert begin.final_lsn == commit.lsn < commit.end_lsn and begin.time_ms == commit.time_ms
    ends = [commit.end_lsn for commit in commits]
    assert ends == sorted(set(ends)), "positions grow with every commit"
    for earlier, later in zip(commits, begins[1:], strict=False):
        assert later.final_lsn >= earlier.end_lsn, "so a commit is before a position or behind it, never across"


@pytest.mark.parametrize("file", FILES[-1:], ids=lambda file: file.stem)
def test_a_message_that_is_cut_off_is_refused_and_never_half_read(file: Path) -> None:
    for message in messages(file):
        if message[:1] in b"IUDM":
            for size in range(1, min(len(message), 60)):
                with pytest.raises(MalformedStream):
                    decode(message[:size])


@given(st.binary())
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedStream):
        decode_stream(data)


def test_the_stream_around_the_messages() -> None:
    assert decode_stream(b"k" + (5).to_bytes(8, "big") + bytes(8) + b"\x01") == Keepalive(5, True)
    begin = b"B" + (7).to_bytes(8, "big") + (2_000_000).to_bytes(8, "big") + (9).to_bytes(4, "big")
    chunk = decode_stream(b"w" + bytes(8) + (6).to_bytes(8, "big") + bytes(8) + begin)
    assert chunk == Data(6, Begin(7, 946_684_802_000, 9))
    assert decode_stream(b"w" + bytes(24) + b"Yxxxx") == Data(0, None)
    status = pgoutput.encode_status(0x1_0000_0002, pgoutput.EPOCH_MS + 3)
    assert status == b"r" + (0x1_0000_0002).to_bytes(8, "big") * 3 + (3000).to_bytes(8, "big") + b"\0"


def test_positions_are_written_as_the_server_writes_them() -> None:
    assert pgoutput.lsn_text(0x1_016B_3748) == "1/16B3748"
    assert pgoutput.parse_lsn("1/16B3748") == 0x1_016B_3748
