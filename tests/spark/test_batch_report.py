"""What the progress of a query says of source and sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import oncelog.spark
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from oncelog.spark.batch_report import BatchReport, source_progress
from tests.spark.broken_task import breaking_once
from tests.spark.pipeline import Pipeline
from tests.waiting import wait_until

STREAM = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"


def test_a_source_names_its_topics_and_how_far_behind_it_is() -> None:
    given = {
        "description": STREAM,
        "endOffset": {"b": {"0": 5}, "a": {"0": 1, "1": 2}, "@oncelog": {"topicIds": {}}},
        "latestOffset": {"b": {"0": 5}, "a": {"0": 4, "1": 10}},
        "numInputRows": 3,
    }
    told = source_progress(given)
    assert told["description"] == "oncelog[a, b]"
    assert told["metrics"] == {
        "offsetsBehindLatest": "11",
        "maxOffsetsBehindLatest": "8",
        "minOffsetsBehindLatest": "0",
    }
    assert told["numInputRows"] == 3


@pytest.mark.parametrize(
    "given",
    [
        {"description": "KafkaV2[Subscribe[a]]", "endOffset": {"a": {"0": 1}}, "latestOffset": None},
        {"description": "FileStreamSource[x]", "endOffset": {"logOffset": 3}, "latestOffset": None},
        {"description": STREAM, "endOffset": None, "latestOffset": None},
    ],
)
def test_other_sources_are_left_as_they_are(given: dict[str, Any]) -> None:
    assert source_progress(given) == given


def test_metrics_tell_of_the_batch() -> None:
    written = BatchReport(
        7, 2, ProducerIdAndEpoch(ProducerId(5), ProducerEpoch(3)), 10, 999, {"out": 8, "dead": 2}, 40, 12
    )
    assert written.metrics("dead") == {
        "skipped": "false",
        "attempts": "2",
        "bytes": "999",
        "producerId": "5",
        "producerEpoch": "3",
        "writeMs": "40",
        "commitMs": "12",
        "rows.out": "8",
        "rows.dead": "2",
        "deadLetters": "2",
    }
    assert BatchReport(7, 1).metrics(None) == {"skipped": "true", "attempts": "1"}


@pytest.mark.spark
def test_the_progress_of_a_query_tells_of_rows_topics_epoch_attempts_and_lag(
    pipeline: Pipeline, spark: Any, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from oncelog.spark import small_batch, write_job

    def fail() -> None:
        raise RuntimeError("once")

    monkeypatch.setattr(small_batch, "BATCH_OFFSETS", 0)
    monkeypatch.setattr(write_job, "_writing", breaking_once(write_job._writing, str(tmp_path / "once"), fail))
    dead = pipeline.kafka.create(name("dead"))
    pipeline.settings |= {"dead_letter_topic": dead, "max_request_size": 2000}
    pipeline.options["maxOffsetsPerTrigger"] = "3"
    pipeline.kafka.send(pipeline.source, [b"a", b"x" * 3000, b"b", b"c"], partition=0)
    seen: list[dict[str, Any]] = []
    listener = oncelog.spark.on_progress(spark, seen.append)
    try:
        query = pipeline.run()
        wait_until(lambda: len([one for one in seen if one["id"] == query.id]) == 2)
    finally:
        spark.streams.removeListener(listener)
    first, last = seen
    assert first["sink"]["description"] == f"oncelog[{pipeline.target}, transactional id {pipeline.id}]"
    assert first["sink"]["numOutputRows"] == 3
    metrics = first["sink"]["metrics"]
    assert (metrics["attempts"], metrics[f"rows.{pipeline.target}"], metrics["deadLetters"]) == ("2", "2", "1")
    assert int(metrics["bytes"]) > 0
    assert int(last["sink"]["metrics"]["producerEpoch"]) > int(metrics["producerEpoch"])
    assert [source["description"] for source in first["sources"]] == [f"oncelog[{pipeline.source}]"]
    assert [source["metrics"]["offsetsBehindLatest"] for source in first["sources"]] == ["1"]
    assert oncelog.spark.last_progress(query) == last
