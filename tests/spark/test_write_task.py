"""What a writing task says of its failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from oncelog.client.errors import FatalError
from oncelog.core.errors import ErrorCode
from oncelog.spark import write_task
from oncelog.spark.routing import RowError
from oncelog.spark.transactor import _is_worth_a_retry, _readable
from oncelog.spark.write_job import TaskFailed, TaskRanAgain, _written
from oncelog.spark.write_task import write_stage
from tests.spark.test_routing import make_orders


class Attempt:
    """Stands for Spark's TaskContext."""

    def __init__(self, number: int) -> None:
        self._number = number

    def attemptNumber(self) -> int:
        return self._number

    def partitionId(self) -> int:
        return 7


def run(monkeypatch: pytest.MonkeyPatch, error: Exception, *, attempt: int = 0) -> list[dict[str, Any]]:
    import pyspark

    def failing(*_: Any) -> pa.RecordBatch:
        raise error

    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: Attempt(attempt))
    monkeypatch.setattr(write_task, "write_batches", failing)
    nothing: Iterator[pa.RecordBatch] = iter(())
    return [row for batch in write_stage(make_orders(), nothing) for row in batch.to_pylist()]


def test_the_reason_of_a_failed_task_reaches_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that raised it would be run again, and its second run would refuse: all that one would read of it."""
    error = FatalError(ErrorCode.MESSAGE_TOO_LARGE, "out-0: too large for the broker")
    with pytest.raises(TaskFailed, match="MESSAGE_TOO_LARGE: out-0: too large for the broker"):
        _written(run(monkeypatch, error))


def test_an_unexpected_failure_comes_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskFailed, match=r"(?s)Traceback.*in failing.*ZeroDivisionError: by nought"):
        _written(run(monkeypatch, ZeroDivisionError("by nought")))


def test_a_bad_row_is_told_as_such_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskFailed) as caught:
        _written(run(monkeypatch, RowError("a row cannot be written: why")))
    assert not _is_worth_a_retry(caught.value)
    plain = _readable(caught.value, None)  # type: ignore[arg-type]
    assert isinstance(plain, RowError)
    assert str(plain) == "a row cannot be written: why"


def test_a_task_that_spark_runs_again_still_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskRanAgain, match=r"task 7 runs a second time \(attempt 1\)"):
        run(monkeypatch, RowError("not reached"), attempt=1)
