"""A query must find its checkpoint again when it is started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.spark import lake_sink, postgres_table, sink
from oncelog.spark.checkpoint import DEFAULT_LOCATION, is_made_up
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.resume import NewCheckpoint
from oncelog.spark.source_options import OptionError
from tests.spark.pipeline import Pipeline

RANDOM = "0b5f7f0e-4ad1-4a56-8f6e-5b3f6a2c9d10"


@pytest.mark.parametrize(
    ("checkpoint", "default", "name", "made_up"),
    [
        ("file:/data/checkpoints/copy", None, None, False),
        (f"file:/tmp/temporary-{RANDOM}", None, None, True),
        (f"file:/tmp/temporary-{RANDOM}", "/data", "copy", True),
        (f"file:/data/all/{RANDOM}", "/data/all", None, True),
        (f"hdfs://host:9000/data/all/{RANDOM}", "hdfs://host:9000/data/all/", None, True),
        (f"file:/home/me/all/{RANDOM}", "all", None, True),
        (f"file:/home/me/all/{RANDOM}", "./all", None, True),
        (f"file:/home/all/{RANDOM}", "../all", None, True),
        (f"file:/data/all/{RANDOM}", "/data//all", None, True),
        (f"file:/data/all/{RANDOM}", "file:///data/old/../all", None, True),
        ("file:/data/all/copy", "/data/all", "copy", False),
        # Given by hand.
        (f"file:/data/all/{RANDOM}", None, None, False),
        (f"file:/elsewhere/{RANDOM}", "/data/all", None, False),
    ],
)
def test_folders_that_spark_made_up(checkpoint: str, default: str | None, name: str | None, made_up: bool) -> None:
    assert is_made_up(checkpoint, default_location=default, query_name=name) is made_up


NOWHERE: Any = None
SINKS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "topics": (sink, lambda spark: sink.ExactlyOnceSink(spark, NOWHERE)),
    "lake": (lake_sink, lambda spark: lake_sink.LakeSink(spark, NOWHERE, "s", NewCheckpoint.REFUSE)),
    "postgres": (postgres_table, lambda spark: postgres_table.PostgresTableSink(spark, NOWHERE, NewCheckpoint.REFUSE)),
}


@pytest.mark.parametrize(("module", "make"), SINKS.values(), ids=SINKS.keys())
def test_no_sink_writes_without_a_checkpoint_that_is_found_again(
    module: Any, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = MicroBatch("q", 0, f"file:/tmp/temporary-{RANDOM}", None, {})
    monkeypatch.setattr(module, "running_batch", lambda *_: batch)
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda _, default: default))
    with pytest.raises(OptionError, match=r"no checkpointLocation.*Give it one"):
        make(spark)(None, 0)


@pytest.mark.spark
@pytest.mark.parametrize("default", [False, True], ids=["temporary", "default place without a name"])
def test_a_query_without_a_checkpoint_of_its_own_is_refused(pipeline: Pipeline, tmp_path: Path, default: bool) -> None:
    pipeline.kafka.send(pipeline.source, [b"a"])
    pipeline.checkpoint = ""
    if default:
        pipeline.spark.conf.set(DEFAULT_LOCATION, str(tmp_path / "all"))
    try:
        with pytest.raises(Exception, match=r"no checkpointLocation.*Give it one"):
            pipeline.run()
        assert pipeline.kafka.read(pipeline.target, committed=False) == []
    finally:
        pipeline.spark.conf.unset(DEFAULT_LOCATION)


@pytest.mark.spark
def test_a_named_query_has_its_folder_in_the_default_place(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.checkpoint = ""
    pipeline.spark.conf.set(DEFAULT_LOCATION, str(tmp_path / "all"))
    try:
        for value in (b"a", b"b"):
            pipeline.kafka.send(pipeline.source, [value])
            writer = pipeline.writer(pipeline.read().select("key", "value")).queryName(pipeline.id)
            writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        pipeline.spark.conf.unset(DEFAULT_LOCATION)
    assert pipeline.kafka.values(pipeline.target) == [b"a", b"b"]
