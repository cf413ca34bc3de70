"""Sinks into tables of Delta and Iceberg without Spark: drivers that die, sleep and meet. With Spark: test_lakes."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from oncelog.core.ids import TopicPartition
from oncelog.spark.delta_table import DeltaFiles, _refuse_unsafe_storage
from oncelog.spark.lake_sink import CommitRefused, LakeSink, Version
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.planning import OffsetRange, bounds_number, bounds_text
from oncelog.spark.resume import CannotResume, NewCheckpoint
from oncelog.spark.source_options import OptionError
from oncelog.spark.transactor import DriverFenced
from oncelog.spark.written_batches import LastBatch
from tests.spark.lakes import LAKES, ROWS, DeltaLake, IcebergLake, Lake


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made: Lake = LAKES[request.param](tmp_path)
    made.target()
    return made


class Driver:
    """The steps of a driver, one by one. Batch N has the rows 10 * N and 10 * N + 1."""

    def __init__(self, lake: Lake, query: str = "query", **given: Any) -> None:
        target = lake.target()
        self.sink: Any = LakeSink(None, target, "lines", given.get("new", NewCheckpoint.REFUSE))  # type: ignore[arg-type]
        self.query = query
        self.planned_ms: int | None = given.get("planned_ms", 1)
        self.tables: str | None = given.get("tables")

    def batch(self, number: int) -> MicroBatch:
        return MicroBatch(self.query, number, "/checkpoint", None, {}, planned_ms=self.planned_ms)

    def begin(self, number: int) -> tuple[Version, list[bytes]] | None:
        """Claims the sink if need be, and writes files. None if the batch is in the table."""
        version = self.sink.owned_version(self.batch(number))
        if self.sink.has(version, self.batch(number), self.tables):
            return None
        rows = pa.RecordBatch.from_pylist([{"id": 10 * number + n, "name": "x"} for n in range(2)], schema=ROWS)
        write = self.sink.table.file_writer(version)
        return version, list(write(iter([rows]), f"{number}-{random.getrandbits(64)}"))

    def commit(self, number: int, begun: tuple[Version, list[bytes]]) -> None:
        version, files = begun
        self.sink.commit(version, self.batch(number), files, self.tables)

    def write(self, number: int) -> None:
        begun = self.begin(number)
        if begun is not None:
            self.commit(number, begun)


def rows_of(*batches: int) -> list[int]:
    return [10 * number + n for number in batches for n in range(2)]


def test_a_batch_is_written_once_however_often_it_is_run(lake: Lake) -> None:
    first, second = Driver(lake), Driver(lake)
    first.write(0)
    first.write(0)
    second.write(0)
    second.write(1)
    assert lake.ids() == rows_of(0, 1)


def test_a_driver_that_slept_before_its_commit_is_fenced(lake: Lake) -> None:
    old = Driver(lake)
    old.write(0)
    begun = old.begin(1)
    assert begun is not None
    new = Driver(lake)
    new.begin(1)  # it has claimed the sink, and written nothing
    with pytest.raises(DriverFenced):
        old.commit(1, begun)
    new.write(1)
    new.write(2)
    with pytest.raises(DriverFenced):
        old.begin(2)
    assert lake.ids() == rows_of(0, 1, 2)


def test_a_driver_that_slept_is_fenced_by_another_query(lake: Lake) -> None:
    old = Driver(lake)
    begun = old.begin(0)
    assert begun is not None
    Driver(lake, "other", new=NewCheckpoint.REPROCESS).begin(0)
    with pytest.raises(DriverFenced):
        old.commit(0, begun)
    assert lake.ids() == []


def test_others_may_write_to_the_table_meanwhile(lake: Lake) -> None:
    driver = Driver(lake)
    begun = driver.begin(0)
    assert begun is not None
    lake.commit_elsewhere()
    driver.commit(0, begun)
    assert lake.ids() == [-1, *rows_of(0)]
    assert driver.begin(0) is None


def test_a_commit_that_is_said_to_have_failed_and_has_not(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lake)
    begun = driver.begin(0)
    assert begun is not None
    real = type(driver.sink.table).commit

    def lose_the_answer(*given: Any) -> None:
        real(*given)
        raise CommitRefused("so it seems")

    monkeypatch.setattr(type(driver.sink.table), "commit", lose_the_answer)
    driver.commit(0, begun)
    assert lake.ids() == rows_of(0)


def test_a_commit_that_failed_for_another_reason_is_an_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lake)
    begun = driver.begin(0)
    assert begun is not None

    def refuse(*_: Any) -> None:
        raise CommitRefused("the columns were changed")

    monkeypatch.setattr(type(driver.sink.table), "commit", refuse)
    with pytest.raises(CommitRefused, match="columns were changed"):
        driver.commit(0, begun)


def test_another_query_is_refused_and_fences_nobody(lake: Lake) -> None:
    driver = Driver(lake)
    driver.write(0)
    with pytest.raises(CannotResume, match="its checkpoint is a new one"):
        Driver(lake, "other").begin(0)
    driver.write(1)
    other = Driver(lake, "other", new=NewCheckpoint.REPROCESS)
    other.write(0)
    with pytest.raises(CannotResume, match="its checkpoint is a new one"):
        Driver(lake).begin(2)
    again = Driver(lake, new=NewCheckpoint.REPROCESS)
    again.write(0)
    assert lake.ids() == sorted(rows_of(0, 1) + rows_of(0) + rows_of(0))


def test_a_table_that_was_made_again_is_refused(lake: Lake) -> None:
    with pytest.raises(CannotResume, match="knows nothing of the sink"):
        Driver(lake).begin(3)


def test_an_old_copy_of_the_checkpoint_is_refused(lake: Lake) -> None:
    """What it plans as batch 1 or 2 has other rows than those that the table has under that number."""
    first = Driver(lake)
    for number in range(3):
        first.write(number)
    with pytest.raises(
        CannotResume, match=r"is about to run batch 1, but the table .* the checkpoint is an older copy"
    ):
        Driver(lake).begin(1)
    with pytest.raises(
        CannotResume, match=r"is about to run batch 2, but the table .* the checkpoint is an older copy"
    ):
        Driver(lake, planned_ms=2).begin(2)
    Driver(lake).write(2)
    Driver(lake, planned_ms=2).write(3)
    assert lake.ids() == rows_of(0, 1, 2, 3)


def test_an_old_copy_of_the_table_is_refused(lake: Lake) -> None:
    Driver(lake).write(0)
    with pytest.raises(CannotResume, match=r"has batches up to 0 of this query, .* goes on with batch 2"):
        Driver(lake).begin(2)
    Driver(lake, new=NewCheckpoint.REPROCESS).write(2)
    assert lake.ids() == rows_of(0, 2)


def test_a_batch_of_an_earlier_version_is_known_by_its_number(lake: Lake) -> None:
    Driver(lake, planned_ms=None).write(0)
    Driver(lake).write(0)
    Driver(lake).write(1)
    assert lake.ids() == rows_of(0, 1)


LEVELS = TopicPartition("levels", 0)
BEFORE, NOW = (bounds_text([OffsetRange(LEVELS, 0, end)]) for end in (7, 8))
"""What was read of a topic as a table."""


def test_a_batch_that_is_run_again_for_its_state_must_read_the_tables_it_read(lake: Lake) -> None:
    Driver(lake, tables=BEFORE).write(0)
    for _ in range(2):  # each claims the sink, and keeps what the table says of the batch
        with pytest.raises(CannotResume, match=r"""'endingOffsets': '{"levels": {"0": 7}}'"""):
            Driver(lake, tables=NOW).begin(0)
    again = Driver(lake, tables=BEFORE)
    assert again.begin(0) is None
    again.tables = NOW
    again.write(1)
    # A batch that has not read any does not have those of the one before.
    Driver(lake).write(2)
    assert Driver(lake, tables=BEFORE).begin(2) is None
    assert lake.ids() == rows_of(0, 1, 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_drivers_that_die_sleep_and_meet_at_random_write_each_batch_once(lake: Lake, seed: int) -> None:
    """Each step of each driver comes at any moment; a driver that is fenced or dies is replaced."""
    chosen = random.Random(seed)
    drivers: list[Driver] = [Driver(lake), Driver(lake)]
    begun: dict[Driver, tuple[int, tuple[Version, list[bytes]]]] = {}
    next_batch = others = 0
    for _ in range(40):
        place = chosen.randrange(len(drivers))
        driver = drivers[place]
        try:
            if chosen.random() < 0.15:
                raise DriverFenced("it dies")
            if chosen.random() < 0.1:
                lake.commit_elsewhere()
                others += 1
            elif driver in begun:
                number, work = begun.pop(driver)
                driver.commit(number, work)
                next_batch = max(next_batch, number + 1)
            else:
                number = chosen.choice([next_batch, max(0, next_batch - 1)])
                if (work_done := driver.begin(number)) is not None:
                    begun[driver] = (number, work_done)
        except DriverFenced:
            begun.pop(driver, None)
            drivers[place] = Driver(lake)
    assert next_batch >= 3
    assert lake.ids() == [-1] * others + rows_of(*range(next_batch))


def clean_log(folder: Path) -> None:
    """Only the last commit is left, and a checkpoint."""
    from deltalake import DeltaTable

    table = DeltaTable(str(folder))
    table.create_checkpoint()
    for path in (folder / "_delta_log").glob("*.json"):
        if int(path.stem) < table.version():
            path.unlink()


def test_state_survives_checkpoints_and_cleaning_of_the_log(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    Driver(lake).write(0)
    clean_log(tmp_path / "table")
    driver = Driver(lake)
    driver.write(0)
    driver.write(1)
    assert lake.ids() == rows_of(0, 1)


def test_tables_that_were_read_are_known_when_the_log_of_delta_is_cleaned(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    Driver(lake, tables=BEFORE).write(0)
    clean_log(tmp_path / "table")
    lake.commit_elsewhere()
    clean_log(tmp_path / "table")
    with pytest.raises(CannotResume, match=r"has changed since, .* Choose one: start a new checkpoint"):
        Driver(lake, tables=NOW).begin(0)
    assert Driver(lake, tables=BEFORE).begin(0) is None


def test_every_commit_renews_all_that_delta_may_forget(tmp_path: Path) -> None:
    """With delta.setTransactionRetentionDuration, identifiers without a time or with an old one are forgotten."""
    driver, tables = Driver(DeltaLake(tmp_path), tables=BEFORE), bounds_number(BEFORE)
    begun_ms = int(time.time() * 1000)
    driver.write(0)
    Driver(DeltaLake(tmp_path)).begin(1)
    _, *commits = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    found = [[json.loads(line).get("txn") for line in path.read_text().splitlines()] for path in commits]
    transactions = [{txn["appId"]: txn["version"] for txn in actions if txn is not None} for actions in found]
    names = ("", ":query:owner", ":query", ":query:tables", ":query:plan")
    values = ((1, 1, -1, 0), (1, 1, 0, tables, 1), (2, 2, 0, tables, 1))
    assert transactions == [
        {f"oncelog:lines{name}": number for name, number in zip(names, numbers, strict=False)} for numbers in values
    ]
    assert all(txn["lastUpdated"] >= begun_ms for actions in found for txn in actions if txn is not None)


@pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "MOUNT_ALLOW_UNSAFE_RENAME", "allow_unsafe_rename"])
@pytest.mark.parametrize("value", ["true", "1", "on", "YES", "y"])
def test_storage_on_which_two_writers_make_the_same_commit_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with pytest.raises(OptionError, match=name):
        _refuse_unsafe_storage({name: value})
    _refuse_unsafe_storage({name: "false"})
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=name):
        _refuse_unsafe_storage({})


def test_state_survives_the_end_of_snapshots(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    driver = Driver(lake)
    driver.write(0)
    lake.commit_elsewhere()
    old = [snapshot.snapshot_id for snapshot in lake.table().metadata.snapshots[:-1]]
    lake.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert len(lake.table().metadata.snapshots) == 1
    second = Driver(lake)
    second.write(0)
    second.write(1)
    assert lake.ids() == [-1, *rows_of(0, 1)]


def test_rows_go_to_the_files_of_their_partition(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = DeltaLake(tmp_path)
    target = lake.target("name")
    names = ["a", None, "b/c=d %", "", "a"]
    rows = pa.RecordBatch.from_pydict({"id": range(5), "name": names}, schema=ROWS)
    version = target.read("query")
    files = list(target.file_writer(version)(iter([rows]), "x"))
    target.claim(version, "query", 1)
    target.commit(target.read("query"), "query", 1, LastBatch(0), files, "{}")
    assert len(files) == 3
    assert {row["id"]: row["name"] for row in lake.rows()} == dict(enumerate(["a", None, "b/c=d %", None, "a"]))
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(filters=[("name", "=", "a")])
    assert sorted(found["id"].to_pylist()) == [0, 4]


def test_a_task_has_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.spark.delta_table.MAX_OPEN_FILES", 2)
    lake = DeltaLake(tmp_path)
    target = lake.target("name")
    version = target.read("query")
    batches = [pa.RecordBatch.from_pydict({"id": [n], "name": [str(n % 3)]}, schema=ROWS) for n in range(9)]
    files = list(target.file_writer(version)(iter(batches), "x"))
    assert len(files) == 9, "each is closed before its value comes again"
    target.claim(version, "query", 1)
    target.commit(target.read("query"), "query", 1, LastBatch(0), files, "{}")
    assert {row["id"]: row["name"] for row in lake.rows()} == {n: str(n % 3) for n in range(9)}


def test_a_null_where_the_table_wants_a_value_fails_the_task(tmp_path: Path) -> None:
    write = DeltaFiles(str(tmp_path), {}, ROWS, (), ("name",))
    rows = pa.RecordBatch.from_pylist([{"id": 1}], schema=ROWS)
    with pytest.raises(ValueError, match="no value in name"):
        list(write(iter([rows]), "x"))


def field(name: str, of: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": of, "nullable": nullable, "metadata": {}}


@pytest.mark.parametrize(
    ("fields", "partition_by", "problem"),
    [
        ([field("id", "string")], [], 'has it as "long"'),
        ([field("more", "long")], [], "has no such column"),
        ([field("id", "void")], [], "a type Delta does not have"),
        ([field("id", {"type": "array", "elementType": "variant", "containsNull": True})], [], "does not have"),
        ([field("id", "long")], ["id"], "is partitioned by"),
    ],
)
def test_a_table_of_delta_that_does_not_fit_is_refused(
    tmp_path: Path, fields: list[dict[str, Any]], partition_by: list[str], problem: str
) -> None:
    target = DeltaLake(tmp_path).target()
    with pytest.raises(OptionError, match=problem):
        target.create({"type": "struct", "fields": fields}, partition_by)


def test_a_table_of_delta_with_rules_for_rows_is_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = DeltaLake(tmp_path)
    lake.target()
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(OptionError, match=r"delta\.constraints\.positive"):
        lake.target()


@pytest.mark.parametrize("kind", sorted(LAKES))
@pytest.mark.parametrize(
    ("given", "problem"),
    [({"sink": "x"}, "streaming"), ({"sink": ""}, "sink is ''"), ({"sink": "a b"}, "sink is 'a b'")],
)
def test_what_is_refused_has_made_no_table(tmp_path: Path, kind: str, given: dict[str, Any], problem: str) -> None:
    lake: Lake = LAKES[kind](tmp_path)
    frame = SimpleNamespace(isStreaming=False)
    with pytest.raises(OptionError, match=problem):
        lake.write(frame, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    from oncelog.spark.delta_table import DeltaTarget
    from oncelog.spark.iceberg_table import IcebergTarget

    assert "hidden" not in repr(DeltaTarget("t", "s", ROWS, {"key": "hidden"}))
    assert "hidden" not in repr(IcebergTarget("a.t", "s", ROWS, "c", {"key": "hidden"}))
    assert "hidden" not in repr(DeltaFiles("t", {"key": "hidden"}, ROWS, (), ()))
