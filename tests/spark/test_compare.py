"""The comparison with Spark's connector cannot lie: a side that failed has no number, and nothing is divided by it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from peers.spark.cases import CASES, Case, Lab, Place, WrongOutput, check
from peers.spark.compare import _measure
from peers.spark.results import Result, save
from peers.spark.topics import Content

OPTIONS = argparse.Namespace(rounds=3, warm_up=1)


def case(ours: Any, theirs: Any, *, higher_is_better: bool = True) -> Case:
    return Case("copy", "rows/s", ours, theirs, "we", "they", 0.8, higher_is_better, needs_connector=True)


def measure(one: Case, connector: object = object()) -> Result:
    lab = cast("Lab", argparse.Namespace(connector=connector))
    return _measure(one, lab, OPTIONS, Console(quiet=True))


def test_sides_alternate_and_warm_up_is_not_counted() -> None:
    order: list[str] = []

    def side(name: str, value: float) -> Any:
        def run(_: Lab) -> float:
            order.append(name)
            return value

        return run

    result = measure(case(side("ours", 90.0), side("theirs", 100.0)))
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (result.ours, result.theirs) == ([90.0] * 3, [100.0] * 3)
    assert result.ratio == 0.9
    assert result.met


def test_a_failed_side_gives_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: Lab) -> float:
        raise WrongOutput("999 rows came out of 1,000")

    result = measure(case(lambda _: 90.0, broken))
    assert (result.ratio, result.met) == (None, None)
    assert result.row()[3:] == ["-", "at least 0.80x", "-"]
    numbers, page = save([result], {"rows": 1000}, tmp_path)
    assert "999 rows came out" in page.read_text()
    assert json.loads(numbers.read_text())["results"][0]["ratio"] is None
    assert "WrongOutput" in capsys.readouterr().err


def test_without_the_connector_our_side_stands_alone() -> None:
    result = measure(case(lambda _: 90.0, lambda _: 100.0), connector=None)
    assert (result.ratio, result.met, result.theirs, result.problems) == (None, None, [], [])


def test_of_times_the_lower_is_better() -> None:
    assert measure(case(lambda _: 79.0, lambda _: 100.0, higher_is_better=False)).met
    assert measure(case(lambda _: 81.0, lambda _: 100.0, higher_is_better=False)).met is False


def test_other_rows_than_went_in_are_a_failure() -> None:
    place = cast("Place", argparse.Namespace(content=Content(1000, 77, 5)))
    check(place, Content(1000, 77, 5), keyed=True)
    check(place, Content(1000, 77, 6), keyed=False)
    for found, keyed in ((Content(1000, 77, 6), True), (Content(1000, 78, 5), False), (Content(999, 77, 5), True)):
        with pytest.raises(WrongOutput):
            check(place, found, keyed=keyed)


def test_every_goal_of_the_pipeline_is_measured() -> None:
    goals = {one.name: one.goal for one in CASES if one.goal is not None}
    assert goals == {
        "read to noop": 1.0,
        "topic to topic, keys kept": 0.8,
        "topic to topic, no keys": 0.8,
        "small micro-batch": 1.3,
    }
