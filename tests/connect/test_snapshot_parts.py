"""Parts of an exported snapshot, read by connections of their own: all rows as of one moment, each once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from oncelog.connect.postgres_source import PostgresSource
from oncelog.connect.published_tables import read_part
from oncelog.connect.settings import source_settings
from tests.connect.test_postgres_source import Bank

ROWS = 3000


@pytest.fixture
def bank(database: str, servers: str, unique: Callable[[str], str]) -> Bank:
    made = Bank(database, servers, unique("parts"))
    made.execute(f"insert into transfers (amount) select n from generate_series(1, {ROWS}) n")
    return made


@pytest.mark.parametrize("pages", [1, 5, 100_000])
def test_parts_are_all_rows_of_the_moment(bank: Bank, pages: int) -> None:
    settings = source_settings(bank.settings, {})
    with closing(PostgresSource(settings, lambda _: 1)) as source:
        assert source.resume(None).snapshot is not None
        snapshot = source.begin_snapshot()
        bank.execute("delete from transfers where id % 3 = 0", "update accounts set balance = 0")
        bank.execute(f"insert into transfers (amount) select n from generate_series(1, {ROWS}) n")
        parts = source.tables.parts(pages)
        records = [record for part in parts for record in read_part(settings, snapshot, part)]
    assert len(parts) == 2 if pages == 100_000 else len(parts) > 5
    by_topic = {
        topic: sorted(r.value or b"" for r in records if r.topic == topic) for topic in {r.topic for r in records}
    }
    assert by_topic == {
        f"{bank.name}.accounts": sorted(b'{"id":%d,"balance":100,"note":"x"}' % n for n in range(1, 11)),
        f"{bank.name}.transfers": sorted(b'{"id":%d,"amount":%d}' % (n, n) for n in range(1, ROWS + 1)),
    }
    indexes = [dict(record.headers)["index"] for record in records]
    assert len(set(indexes)) == len(records)


def test_parts_have_only_the_rows_that_the_publication_wants(bank: Bank) -> None:
    bank.execute("alter publication bank set table transfers (id) where (id > 10 or id = 1)")
    settings = source_settings(bank.settings, {})
    with closing(PostgresSource(settings, lambda _: 1)) as source:
        source.resume(None)
        snapshot = source.begin_snapshot()
        found = [r.value for part in source.tables.parts(2) for r in read_part(settings, snapshot, part)]
    assert sorted(found, key=str) == sorted((b'{"id":%d}' % n for n in range(1, ROWS + 1) if n > 10 or n == 1), key=str)
