"""Tables of Delta and Iceberg for tests of the sinks into them. They are read by the packages of the formats alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import oncelog.spark
from oncelog.spark.delta_table import DeltaTarget
from oncelog.spark.iceberg_table import IcebergTarget

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
"""Of tests without Spark."""
PATIENCE_S = 600
SCHEMA = "id bigint, name string, at timestamp, n decimal(20, 2)"


class Lake:
    """A streaming query over a folder of JSON lines, into a table of a lake."""

    kind = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir(exist_ok=True)

    def add(self, *ids: int) -> None:
        lines = [json.dumps({"id": n, "name": f"row {n}", "at": "2026-01-02T03:04:05Z", "n": f"{n}.50"}) for n in ids]
        (self.folder / "in" / f"{uuid.uuid4().hex}.json").write_text("\n".join(lines))

    def writer(self, spark: Any, *, rows: Callable[[Any], Any] = lambda frame: frame, **given: Any) -> Any:
        # A batch for each file.
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return self.write(rows(reader.json(str(self.folder / "in"))), sink="lines", **given)

    def run(self, spark: Any, *, checkpoint: str = "checkpoint", **given: Any) -> None:
        writer = self.writer(spark, **given).option("checkpointLocation", str(self.folder / checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE_S)
        assert not query.isActive

    def write(self, frame: Any, **given: Any) -> Any:
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def target(self) -> Any:
        """The table as a sink sees it."""
        raise NotImplementedError

    def commit_elsewhere(self) -> None:
        """Somebody else adds the row -1."""
        raise NotImplementedError

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())


class DeltaLake(Lake):
    kind = "delta"

    def write(self, frame: Any, **given: Any) -> Any:
        return oncelog.spark.write_stream_to_delta(frame, table=str(self.folder / "table"), **given)

    def target(self, *partition_by: str) -> DeltaTarget:
        made = DeltaTarget(str(self.folder / "table"), "lines", ROWS, {})
        columns = [("id", "long"), ("name", "string")]
        fields = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in columns]
        made.create({"type": "struct", "fields": fields}, list(partition_by))
        return made

    def rows(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(str(self.folder / "table")).to_pyarrow_table().to_pylist()
        return found

    def commit_elsewhere(self) -> None:
        from deltalake import DeltaTable, write_deltalake

        table = DeltaTable(str(self.folder / "table"))
        schema = pa.schema(table.schema().to_arrow())
        write_deltalake(table, pa.Table.from_pylist([{"id": -1}], schema=schema), mode="append")


class IcebergLake(Lake):
    kind = "iceberg"

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/tables",
        }

    def write(self, frame: Any, **given: Any) -> Any:
        return oncelog.spark.write_stream_to_iceberg(
            frame, table="shop.lines", catalog="tests", catalog_properties=self.catalog, **given
        )

    def target(self) -> IcebergTarget:
        made = IcebergTarget("shop.lines", "lines", ROWS, "tests", self.catalog)
        made.create()
        return made

    def table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("tests", **self.catalog).load_table("shop.lines")

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return found

    def commit_elsewhere(self) -> None:
        table = self.table()
        table.append(pa.Table.from_pylist([{"id": -1}], schema=table.schema().as_arrow()))


LAKES = {lake.kind: lake for lake in (DeltaLake, IcebergLake)}
