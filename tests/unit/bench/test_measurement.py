"""A measurement in which something did not arrive has a problem, whatever its figures say."""

from __future__ import annotations

import json

import pytest

from oncelog.bench.drive import read_answer
from oncelog.bench.measurement import Distribution, Measurement

GOOD = Measurement({"records_per_s": 5.0}, expected=10, arrived=10)


def test_one_that_is_whole_has_no_problem() -> None:
    assert GOOD.problem == ""


@pytest.mark.parametrize(
    ("measurement", "words"),
    [
        (Measurement({"records_per_s": 5.0}, expected=10, arrived=9), "9 records where 10 were expected"),
        (Measurement({"records_per_s": 5.0}, expected=10, arrived=11), "11 records where 10 were expected"),
        (Measurement({"records_per_s": 5.0}, expected=10, arrived=10, errors=2), "2 errors"),
        (Measurement(expected=10, arrived=10), "nothing was measured"),
        (Measurement.failed("the disk is full"), "the disk is full"),
    ],
)
def test_records_lost_or_doubled_errors_and_emptiness_are_problems(measurement: Measurement, words: str) -> None:
    assert measurement.problem == words


def test_it_survives_json() -> None:
    measured = Measurement({"a": 1.5}, {"commit_ms": Distribution.of([3.0, 1.0])}, expected=4, arrived=4, note="n")
    assert Measurement.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured


def test_a_file_cannot_talk_a_problem_away() -> None:
    entries = Measurement({"a": 1.0}, expected=10, arrived=9).to_dict()
    assert Measurement.from_dict({**entries, "problem": ""}).problem


def test_percentiles_are_samples_that_were_seen() -> None:
    distribution = Distribution.of([float(number) for number in range(1000, 0, -1)])
    assert (distribution.at(0.0), distribution.at(50.0), distribution.at(99.0)) == (1.0, 501.0, 991.0)
    assert (distribution.at(99.9), distribution.at(100.0)) == (1000.0, 1000.0)
    assert Distribution.of([]).count == 0


def test_a_driver_that_dies_or_talks_nonsense_is_a_failure() -> None:
    assert "Broken" in read_answer(1, "", "Traceback\nBroken: no\n").problem
    assert "exit code -9" in read_answer(-9, "", "").problem
    assert "Broken: no" in read_answer(1, "", 'KafkaException: {"Broken: no\n"}\n%3|17.5|FAIL|rdkafka| gone\n').problem
    assert "cannot be read" in read_answer(0, "", "").problem
    assert "cannot be read" in read_answer(0, "[1, 2", "").problem
    assert read_answer(0, "noise\n" + json.dumps(GOOD.to_dict()) + "\n", "") == GOOD
