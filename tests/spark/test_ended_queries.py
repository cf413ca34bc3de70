"""What a query leaves behind in a driver that lives on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.spark import sink
from oncelog.spark.sink import ExactlyOnceSink


class Closing:
    """Stands for a Transactor."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    running: set[str] = set()
    monkeypatch.setattr(sink, "_open_sinks", {})
    monkeypatch.setattr(sink, "is_running", lambda _, query_id: query_id in running)
    return running


def make_sink(context: Any = "alive") -> ExactlyOnceSink:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context))
    transactor: Any = Closing()
    return ExactlyOnceSink(spark, transactor)


def is_closed(one: ExactlyOnceSink) -> bool:
    transactor: Any = one.transactor
    return bool(transactor.closed)


def test_connections_of_queries_that_ended_are_closed_by_the_next(running: set[str]) -> None:
    first, second, third = make_sink(), make_sink(), make_sink()
    running |= {"a", "b"}
    first.claim("a")
    second.claim("b")
    first.claim("a")
    assert not is_closed(first)
    running.remove("a")
    running.add("c")
    third.claim("c")
    assert [is_closed(one) for one in (first, second, third)] == [True, False, False]


def test_a_query_in_its_last_batch_is_left_alone(running: set[str]) -> None:
    ending, second, third = make_sink(), make_sink(), make_sink()
    ending.claim("a")
    running |= {"b", "c"}
    with ending._busy:
        second.claim("b")
    assert not is_closed(ending)
    third.claim("c")
    assert is_closed(ending)


def test_connections_of_the_run_before_are_closed_by_a_query_that_comes_back(running: set[str]) -> None:
    before, after = make_sink(), make_sink()
    running.add("a")
    before.claim("a")
    after.claim("a")
    assert (is_closed(before), is_closed(after)) == (True, False)


def test_connections_of_a_session_that_was_stopped_are_closed(running: set[str]) -> None:
    before, after = make_sink(context=None), make_sink()
    running |= {"a", "b"}
    before.claim("a")
    after.claim("b")
    assert is_closed(before)
