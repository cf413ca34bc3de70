"""A report that cannot lie: a lost record gives no ratio and the exit code 1. Parts are merged, of the same sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.bench import results, suite
from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement
from oncelog.bench.render import page, plots
from oncelog.bench.results import Results
from tests.unit.bench.fakes import Answer, FakeCluster

ONLY = ("produce-100B", "produce-1KB")


def run(folder: Path, only: tuple[str, ...] = ONLY, answer: Answer | None = None, kafka: str = "kafka") -> Results:
    cluster = FakeCluster({"oncelog": 300.0, kafka: 100.0}, answer)
    return suite.run(suite.Choice(only=only, rounds=2), cluster.sides(), folder, lambda _: None, do=cluster.drive)


def loses(side: str) -> Answer:
    def answer(job: Job, made: Measurement) -> Measurement:
        is_loser = job.action == "produce" and job.bootstrap_servers.startswith(side)
        return replace(made, arrived=made.arrived - 1) if is_loser and job.workload.size_bytes == 100 else made

    return answer


def test_two_whole_sides_give_ratios_and_the_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.report(run(tmp_path), tmp_path, lambda _: None) == 0
    shown = capsys.readouterr().out
    assert shown.count("3.00x") >= 2 and "FAILED" not in shown
    page = (tmp_path / "report.md").read_text()
    assert "| produce 100 B | rate | 300 records/s | 100 records/s | 3.00x | >= 1x | met |" in page


@pytest.mark.parametrize("side", ["oncelog", "kafka"])
def test_a_side_that_loses_a_record_gives_no_ratio_and_the_exit_code_1(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suite.report(run(tmp_path, answer=loses(side)), tmp_path, lambda _: None) == 1
    shown = capsys.readouterr().out
    assert f"FAILED: produce-100B on {side}: 1,999,999 records where 2,000,000 were expected" in shown
    lines = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| produce 100 B")]
    assert lines and not any("x |" in line.replace(">= 1x |", "") for line in lines), "there is no ratio anywhere"
    assert any("FAILED" in line and "no figure" in line for line in lines)
    assert "| produce 1 KB | rate | 300 records/s | 100 records/s | 3.00x" in (tmp_path / "report.md").read_text()


def test_parts_measured_one_by_one_are_merged_and_measured_again_they_are_replaced(tmp_path: Path) -> None:
    run(tmp_path, ("produce-1KB",))
    run(tmp_path, ("produce-100B",), loses("kafka"))
    both = results.load(tmp_path)
    assert both is not None and list(both.entries) == ["produce-100B", "produce-1KB"], "in the order of the catalogue"
    assert both.problems
    again = run(tmp_path, ("produce-100B",))
    assert set(again.entries) == {"produce-100B", "produce-1KB"} and not again.problems


def test_results_of_other_sides_are_not_mixed_in(tmp_path: Path) -> None:
    run(tmp_path, ("produce-100B",))
    assert set(run(tmp_path, ("produce-1KB",), kafka="other").entries) == {"produce-1KB"}
    assert '"produce-100B"' in (tmp_path / "before-results.json").read_text(), "and not lost"


def test_all_rounds_are_kept_in_the_file(tmp_path: Path) -> None:
    made = run(tmp_path)
    kept = results.load(tmp_path)
    assert kept == made
    assert [len(rounds) for rounds in made.entries["produce-1KB"].rounds.values()] == [2, 2]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        results.load(tmp_path)


def test_one_side_alone_is_shown_without_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster({"oncelog": 300.0})
    remark = "APACHE KAFKA IS NOT MEASURED"
    choice = suite.Choice(only=ONLY, rounds=1)
    made = suite.run(choice, cluster.sides(), tmp_path, lambda _: None, [remark], do=cluster.drive)
    assert suite.report(made, tmp_path, lambda _: None) == 0
    assert remark in capsys.readouterr().out
    page = (tmp_path / "report.md").read_text()
    assert remark in page and "ratio |" not in page


@pytest.mark.skipif(not plots.available(), reason="matplotlib is not installed")
def test_pictures_of_rates_latencies_and_growth_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    only = ("produce", "latency", "transactions-1")
    made = run(tmp_path, only)
    names = [name for _, name in plots.draw(made, tmp_path / "a")]
    assert names == ["rates-produce.svg", "rates-transactions.svg", "latency-latency-1000.svg",
                     "latency-transactions-1.svg"]  # fmt: skip
    plots.draw(made, tmp_path / "b")
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_page_keeps_its_words_and_gets_new_results(tmp_path: Path) -> None:
    target = tmp_path / "speed.md"
    target.write_text(f"before\n{page.BEGIN}\nold figures\n{page.END}\nafter\n")
    page.update(target, run(tmp_path / "results"))
    text = target.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "3.00x" in text and "old figures" not in text
    if plots.available():
        assert "(speed/rates-produce.svg)" in text and (tmp_path / "speed" / "rates-produce.svg").exists()


def test_a_page_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "speed.md"
    target.write_text("words\n")
    with pytest.raises(page.PageError):
        page.update(target, run(tmp_path / "results"))
    assert target.read_text() == "words\n"
