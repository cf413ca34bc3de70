"""Writes what a server sends for a fixed script to tests/data/pgoutput: `python -m tests.connect.capture_pgoutput`.

One file per server version that is installed here, one message per line, in hexadecimal.
"""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg

from tests.connect.postgres import installations, postgres_server

FOLDER = Path(__file__).parents[1] / "data" / "pgoutput"
BEFORE = [
    "create table items (id int primary key, name text, big text)",
    "alter table items alter column big set storage external",
    "create table whole (a int, b text)",
    "alter table whole replica identity full",
    "create publication p for table items, whole",
]
SCRIPT = [
    ["insert into items values (1, 'é', repeat('x', 3000)), (2, null, '')"],
    ["update items set name = 'new' where id = 1", "update items set id = 3 where id = 2"],
    ["delete from items where id = 3", "select pg_logical_emit_message(true, 'prefix', 'content')"],
    ["insert into whole values (1, 'one')", "update whole set b = 'two'", "delete from whole"],
    ["alter table items add column more int default 7", "insert into items values (4, 'x', 'y', null)"],
    ["truncate items, whole"],
]


def capture(programs: Path) -> list[bytes]:
    """The messages of the script, without the stream's own headers."""
    with postgres_server(programs) as server:
        url = server.create_database("capture")
        with psycopg.connect(url, autocommit=True) as sql:
            for statement in BEFORE:
                sql.execute(statement)
            sql.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
            for statements in SCRIPT:
                with sql.transaction():
                    for statement in statements:
                        sql.execute(statement)
        with closing(psycopg.connect(url, autocommit=True, replication="database")) as stream:
            return _messages(stream, len(SCRIPT))


def _messages(stream: psycopg.Connection, commits: int) -> list[bytes]:
    options = "(proto_version '1', publication_names 'p', messages 'true')"
    stream.pgconn.exec_(f"START_REPLICATION SLOT s LOGICAL 0/0 {options}".encode())
    found: list[bytes] = []
    while sum(message[:1] == b"C" for message in found) < commits:
        size, data = stream.pgconn.get_copy_data(1)
        if size == 0:
            select.select([stream.pgconn.socket], [], [], 10)
            stream.pgconn.consume_input()
        elif bytes(data[:1]) == b"w":
            found.append(bytes(data[25:]))
    return found


def main() -> None:
    for programs in installations():
        messages = capture(programs)
        version = _version(programs)
        (FOLDER / f"postgresql-{version}.txt").write_text("".join(message.hex() + "\n" for message in messages))
        sys.stderr.write(f"PostgreSQL {version}: {len(messages)} messages\n")


def _version(programs: Path) -> str:
    told = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return told.split()[2].split(".")[0]


if __name__ == "__main__":
    main()
