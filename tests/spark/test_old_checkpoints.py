"""Checkpoints that are not what the group remembers: old copies, and runs whose group is gone.

Whatever is restored, no row is written twice and none is passed over: the batch is skipped as far as its input was
committed, and refused where that cannot be told.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.pipeline import Pipeline

pytestmark = pytest.mark.spark


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%03d" % i for i in range(first, end)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of files that a stream reads."""
    made = tmp_path / "files"
    made.mkdir()
    (made / "a.txt").write_text("fa\n")
    return made


def keep_a_copy(pipeline: Pipeline) -> Callable[[], None]:
    """Of the checkpoint as it is now. Returns what restores it."""
    copy = f"{pipeline.checkpoint}-copy"
    shutil.copytree(pipeline.checkpoint, copy)

    def restore() -> None:
        shutil.rmtree(pipeline.checkpoint)
        shutil.copytree(copy, pipeline.checkpoint)

    return restore


def test_a_restored_checkpoint_that_cuts_smaller_batches_doubles_nothing(pipeline: Pipeline) -> None:
    kafka = pipeline.kafka
    pipeline.options["maxOffsetsPerTrigger"] = "20"
    kafka.send(pipeline.source, numbered(0, 20), partition=0)
    pipeline.run()
    restore = keep_a_copy(pipeline)
    kafka.send(pipeline.source, numbered(20, 60), partition=0)
    pipeline.run()
    restore()
    pipeline.options["maxOffsetsPerTrigger"] = "10"
    pipeline.run()
    assert kafka.values(pipeline.target) == numbered(0, 60)
    # It has caught up, and goes on.
    kafka.send(pipeline.source, numbered(60, 65), partition=0)
    pipeline.run()
    assert kafka.values(pipeline.target) == numbered(0, 65)


def test_a_restored_checkpoint_of_a_query_with_state_is_refused(pipeline: Pipeline) -> None:
    def run() -> None:
        counts = pipeline.read().groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        pipeline.writer(counts).outputMode("update").trigger(availableNow=True).start().awaitTermination()

    kafka = pipeline.kafka
    kafka.send(pipeline.source, [(b"k", b"1")], partition=0)
    run()
    restore = keep_a_copy(pipeline)
    kafka.send(pipeline.source, [(b"k", b"1")], partition=0)
    run()
    restore()
    with pytest.raises(Exception, match="the checkpoint is an older copy"):
        run()
    assert kafka.values(pipeline.target) == [b"1", b"2"]


@pytest.mark.parametrize("mixed", [False, True], ids=["files", "files and a topic"])
def test_a_restored_checkpoint_of_other_sources_loses_nothing(
    pipeline: Pipeline, spark: Any, folder: Path, mixed: bool
) -> None:
    """The batch of that number was committed, but now it would have another file in it."""

    def run() -> None:
        files = spark.readStream.format("text").load(str(folder))
        pipeline.run(pipeline.read().selectExpr("cast(value as string)").union(files) if mixed else files)

    run()
    restore = keep_a_copy(pipeline)
    (folder / "b.txt").write_text("fb\n")
    run()
    restore()
    (folder / "c.txt").write_text("fc\n")
    with pytest.raises(Exception, match="the checkpoint is an older copy"):
        run()
    assert pipeline.kafka.values(pipeline.target) == [b"fa", b"fb"]


def plan_later(pipeline: Pipeline, batch: int) -> None:
    """As a driver would have planned it whose clock is an hour ahead of that of its successor."""
    path = Path(pipeline.checkpoint, "offsets", str(batch))
    version, metadata, *sources = path.read_text().split("\n")
    noted = json.loads(metadata)
    noted["batchTimestampMs"] += 3_600_000
    path.write_text("\n".join([version, json.dumps(noted), *sources]))


@pytest.mark.parametrize("how", ["changed", "deleted", "deleted, and clocks differ"])
def test_a_batch_is_not_written_again_for_a_group_that_knows_nothing(pipeline: Pipeline, how: str) -> None:
    kafka = pipeline.kafka
    for value in (b"1", b"2"):
        kafka.send(pipeline.source, [value], partition=0)
        pipeline.run()
    # The driver died before Spark noted the second batch.
    Path(pipeline.checkpoint, "commits", "1").unlink()
    if how == "changed":
        pipeline.settings["group_id"] = f"{pipeline.id}-other"
    else:
        kafka.delete_group(pipeline.id)
    if how == "deleted, and clocks differ":
        plan_later(pipeline, 1)
    with pytest.raises(Exception, match="group_id was changed, or the group was deleted or has expired"):
        pipeline.run()
    assert kafka.values(pipeline.target) == [b"1", b"2"]


def test_another_group_is_taken_when_nothing_is_to_be_run_again(pipeline: Pipeline) -> None:
    kafka = pipeline.kafka
    kafka.send(pipeline.source, [b"1"], partition=0)
    pipeline.run()
    pipeline.settings["group_id"] = f"{pipeline.id}-other"
    kafka.send(pipeline.source, [b"2"], partition=0)
    pipeline.run()
    assert kafka.values(pipeline.target) == [b"1", b"2"]


def test_a_topic_read_at_two_positions_is_not_continued_from_the_group(pipeline: Pipeline, tmp_path: Path) -> None:
    kafka = pipeline.kafka
    kafka.send(pipeline.source, numbered(0, 20), partition=0)

    def both() -> Any:
        pipeline.options["maxOffsetsPerTrigger"] = "5"
        slow = pipeline.read().selectExpr("concat('a', cast(value as string)) as value")
        del pipeline.options["maxOffsetsPerTrigger"]
        return slow.union(pipeline.read().selectExpr("concat('b', cast(value as string)) as value"))

    query = pipeline.start(both(), processingTime="1 minute")
    while query.isActive and not query.recentProgress:
        query.awaitTermination(0.1)
    query.stop()
    assert len(kafka.values(pipeline.target)) == 25
    old, pipeline.checkpoint = pipeline.checkpoint, str(tmp_path / "new")
    pipeline.options |= {"startingOffsets": "committed", "kafka.group.id": pipeline.id}
    with pytest.raises(Exception, match=f"had come to 5 and 20 in {pipeline.source}-0"):
        pipeline.run(both())
    # The old checkpoint goes on.
    pipeline.options.clear()
    pipeline.checkpoint = old
    pipeline.run(both())
    assert kafka.values(pipeline.target) == sorted([tag + n for tag in (b"a", b"b") for n in numbered(0, 20)])
