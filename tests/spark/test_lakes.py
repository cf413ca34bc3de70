"""Micro-batches into tables of Delta and Iceberg: each once, whatever fails between the steps."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import oncelog.spark
from oncelog.core import failpoints
from oncelog.spark.source_options import OptionError
from tests.spark.lakes import LAKES, PATIENCE_S, SCHEMA, DeltaLake, Lake
from tests.spark.test_cluster import start_driver
from tests.spark.test_drivers import is_stopped
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
LONG = pytest.mark.long
SLOW = pytest.mark.timeout(3600)  # it starts one Spark after the other
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield LAKES[request.param](tmp_path)
    failpoints.disarm_all()


def test_what_the_page_shows_writes_both_tables(spark: Any, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [shown] = [block for block in blocks if "write_stream_to_delta" in block]
    assert "write_stream_to_iceberg" in shown
    (tmp_path / "catalogs").mkdir()
    delta = DeltaLake(tmp_path)
    delta.add(1, 2)
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    exec(compile(shown.replace("/data/", f"{tmp_path}/"), str(PAGE), "exec"), {"oncelog": oncelog, "rows": rows})
    queries = spark.streams.active
    try:
        assert len(queries) == 2
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert delta_ids(tmp_path / "lake" / "orders") == iceberg_ids(tmp_path) == [1, 2]


def delta_ids(folder: Path) -> list[int]:
    return sorted(DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist())


def iceberg_ids(folder: Path) -> list[int]:
    catalog = load_catalog("shop", type="sql", uri=f"sqlite:///{folder}/catalogs/shop.db")
    return sorted(catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist())


class Died(Exception):
    pass


def die() -> None:
    raise Died("the driver is gone")


@pytest.mark.parametrize(
    ("lake", "point"),
    [
        ("delta", "committed"),
        *(pytest.param("delta", point, marks=LONG) for point in ("claimed", "written")),
        *(pytest.param("iceberg", point, marks=LONG) for point in ("claimed", "written", "committed")),
    ],
    indirect=["lake"],
)
def test_a_driver_that_dies_between_the_steps_leaves_each_row_once(lake: Lake, spark: Any, point: str) -> None:
    lake.add(1, 2, 3)
    failpoints.arm(f"spark.lake.{point}", die)
    with pytest.raises(Exception, match="the driver is gone"):
        lake.run(spark)
    failpoints.disarm_all()
    lake.add(4)
    lake.run(spark)
    assert lake.ids() == [1, 2, 3, 4]
    [row] = [row for row in lake.rows() if row["id"] == 4]
    assert (row["name"], row["at"].isoformat(), str(row["n"])) == ("row 4", "2026-01-02T03:04:05+00:00", "4.50")


@LONG
def test_types_that_are_nested_or_small(lake: Lake, spark: Any) -> None:
    shape = [
        "id",
        "cast(id as short) as small",
        "array(name) as names",
        "named_struct('n', n) as s",
        "map(name, at) as m",
    ]
    lake.add(7)
    lake.run(spark, rows=lambda frame: frame.selectExpr(*shape, "cast(at as date) as day", "cast(id as float) as f"))
    [row] = lake.rows()
    assert (row["small"], row["names"], str(row["s"]["n"]), row["f"]) == (7, ["row 7"], "7.50", 7.0)
    assert [(key, value.isoformat()) for key, value in row["m"]] == [("row 7", "2026-01-02T03:04:05+00:00")]
    assert row["day"].isoformat() == "2026-01-02"


@LONG
def test_moments_do_not_depend_on_the_zone_of_the_session(lake: Lake, spark: Any) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        lake.add(1)
        lake.run(spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert [row["at"].isoformat() for row in lake.rows()] == ["2026-01-02T03:04:05+00:00"]


@LONG
def test_a_query_with_state_goes_on_behind_a_batch_that_was_written(lake: Lake, spark: Any) -> None:
    def counted(frame: Any) -> Any:
        return frame.dropDuplicates(["id"]).select("id")

    lake.add(1, 2)
    failpoints.arm("spark.lake.committed", die)
    with pytest.raises(Exception, match="the driver is gone"):
        lake.run(spark, rows=counted)
    failpoints.disarm_all()
    lake.add(2, 3)
    lake.run(spark, rows=counted)
    assert lake.ids() == [1, 2, 3]


@pytest.mark.parametrize("given", [{"sink": ""}, {"sink": "a b"}, {"sink": "x", "on_new_checkpoint": "y"}])
@LONG
def test_options_that_make_no_sense_are_refused(lake: Lake, spark: Any, given: dict[str, Any]) -> None:
    frame = spark.readStream.schema("id bigint").json(str(lake.folder / "in"))
    with pytest.raises(OptionError):
        lake.write(frame, **given)
    with pytest.raises(OptionError, match="streaming"):
        lake.write(spark.range(1), sink="x")


@pytest.fixture
def started(lake: Lake) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts drivers as processes; those that still run when the test ends are killed."""
    running: list[subprocess.Popen[bytes]] = []

    def start(log: str, **more: Any) -> subprocess.Popen[bytes]:
        order = {"kind": lake.kind, "folder": str(lake.folder), **more}
        running.append(start_driver(lake.folder / log, module="tests.spark.lake_driver", **order))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(60)


@LONG
@SLOW
def test_drivers_that_are_killed_at_each_step_leave_each_row_once(
    lake: Lake, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    for first in range(0, 40, 8):
        lake.add(*range(first, first + 8))
    for point, hit in (("claimed", 1), ("written", 2), ("committed", 2)):
        process = started(f"{point}-{hit}", die_at=point, die_at_hit=hit)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert started("last").wait(PATIENCE_S) == 0
    assert lake.ids() == list(range(40))


@LONG
@SLOW
def test_a_driver_that_slept_through_its_successors_whole_life_writes_nothing(
    lake: Lake, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    for number in range(4):
        lake.add(number)
    zombie = started("zombie", stop_at="written")
    wait_until(lambda: is_stopped(zombie), timeout_s=PATIENCE_S)
    assert len(lake.ids()) == 1
    assert started("successor").wait(PATIENCE_S) == 0
    assert lake.ids() == [0, 1, 2, 3]
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(PATIENCE_S) not in (0, None)
    assert "another driver has taken over the sink lines" in (lake.folder / "zombie").read_text(errors="replace")
    assert lake.ids() == [0, 1, 2, 3]
