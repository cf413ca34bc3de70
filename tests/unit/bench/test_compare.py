"""`make bench`: both sides where Apache Kafka can be had, and a loud word where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.bench import suite
from oncelog.bench.results import Results
from peers import compare


@pytest.fixture
def without_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "kafka_available", lambda: "there is no working `java` on PATH")


def test_both_sides_are_ours_to_start_and_oncelog_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "kafka_available", lambda: None)
    measured, remarks = compare.sides()
    assert [side.name for side in measured] == ["oncelog", "kafka"]
    assert all(side.is_ours for side in measured) and remarks == []


@pytest.mark.usefixtures("without_kafka")
def test_without_apache_kafka_it_says_so_and_measures_oncelog_alone(capsys: pytest.CaptureFixture[str]) -> None:
    measured, remarks = compare.sides()
    assert [side.name for side in measured] == ["oncelog"]
    assert "APACHE KAFKA IS NOT MEASURED" in remarks[0] and "no working `java`" in remarks[0]
    assert remarks[0] in capsys.readouterr().err


@pytest.mark.usefixtures("without_kafka")
def test_the_remark_reaches_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def run(choice: suite.Choice, sides: object, folder: Path, progress: object, remarks: object) -> Results:
        given.extend([choice, remarks])
        return Results({"oncelog": ""}, {"cores": 1, "memory_gb": 1, "system": "s", "python": "3"}, "today")

    monkeypatch.setattr(suite, "run", run)
    assert compare.main(["--quick", "--only", "start,memory", "--results", str(tmp_path)]) == 0
    assert given[0] == suite.Choice(True, ("start", "memory"), None)
    assert "APACHE KAFKA IS NOT MEASURED" in str(given[1])


def test_names_that_do_not_exist_are_refused_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--only", "nothing"]) == 2
    assert "'nothing'" in capsys.readouterr().err


def test_a_report_can_be_written_again_only_from_results(tmp_path: Path) -> None:
    assert compare.main(["--render", "--results", str(tmp_path)]) == 1
