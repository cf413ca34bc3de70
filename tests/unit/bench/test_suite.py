"""A report that cannot lie: a lost record gives no ratio and the exit code 1. Parts are merged, of the same sides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oncelog.bench import machine, results, suite
from oncelog.bench.catalogue import Group
from oncelog.bench.driver.job import Job
from oncelog.bench.interruption import Terminated
from oncelog.bench.measurement import Measurement
from oncelog.bench.render import page, plots
from oncelog.bench.results import Entry, Results
from oncelog.bench.workload import Workload
from tests.unit.bench.fakes import Answer, FakeCluster

MACHINE = machine.describe()
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
    assert "| produce 100 B | rate | 300 records/s | 100 records/s | 3.00x | 3.00..3.00 | 2 | >= 1x | met |" in page


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


def test_parts_keep_the_moment_of_their_run_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for moment, only in (("Monday", ("produce-1KB", "latency")), ("Tuesday", ("produce-1KB", "groups"))):
        monkeypatch.setattr(results, "now", lambda moment=moment: moment)
        run(tmp_path, only)
    merged = results.load(tmp_path)
    assert merged is not None
    moments = {name: entry.taken_at for name, entry in merged.entries.items()}
    assert moments == {"produce-1KB": "Tuesday", "latency-1000": "Monday", "groups": "Tuesday"}
    remark = "Groups were measured at different moments. Monday: latency; Tuesday: produce, groups"
    suite.report(merged, tmp_path, lambda _: None)
    assert remark in capsys.readouterr().out and remark in (tmp_path / "report.md").read_text()
    assert not any("moments" in remark for remark in run(tmp_path / "once").remarks)


def test_an_older_file_without_moments_of_its_parts_keeps_its_own(tmp_path: Path) -> None:
    content = json.loads(run(tmp_path, ("produce-1KB",)).to_json())
    del content["entries"]["produce-1KB"]["taken_at"]
    (tmp_path / "results.json").write_text(json.dumps({**content, "taken_at": "2020-02-02"}))
    assert run(tmp_path, ("produce-100B",)).entries["produce-1KB"].taken_at == "2020-02-02"


def test_results_of_other_sides_are_not_mixed_in_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "now", lambda: "2026-01-02 03:04:05 UTC")
    for kafka in ("kafka", "other", "third"):
        assert set(run(tmp_path, ("produce-1KB",), kafka=kafka).entries) == {"produce-1KB"}
    kept = {path.name: json.loads(path.read_text())["sides"] for path in tmp_path.glob("results*.json")}
    assert {name: list(sides)[1] for name, sides in kept.items()} == {
        "results-2026-01-02-03-04-05.json": "kafka",
        "results-2026-01-02-03-04-05-2.json": "other",
        "results.json": "third",
    }


def test_results_of_another_machine_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, ("produce-100B",))
    monkeypatch.setattr(machine, "describe", lambda: {**MACHINE, "cores": 64})
    assert set(run(tmp_path, ("produce-1KB",)).entries) == {"produce-1KB"}
    assert len(list(tmp_path.glob("results-*.json"))) == 1


def interrupts(action: str, interruption: BaseException) -> Answer:
    """In the first workload of 1 KB records."""

    def answer(job: Job, made: Measurement) -> Measurement:
        if job.action == action and job.workload.size_bytes == 1000:
            raise interruption
        return made

    return answer


@pytest.mark.parametrize(("interruption", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_interrupted_it_keeps_and_reports_the_workloads_that_were_finished(
    interruption: BaseException, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(tmp_path, ("produce-1KB",))
    made = run(tmp_path, answer=interrupts("produce", interruption))
    assert set(made.entries) == set(ONLY)
    kept = results.load(tmp_path)
    assert kept is not None and kept.entries["produce-1KB"] == before.entries["produce-1KB"], "as it was"
    assert suite.report(made, tmp_path, lambda _: None) == code
    assert "produce 100 B" in capsys.readouterr().out


def test_interrupted_before_anything_was_finished_it_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    made = run(tmp_path, ("produce-1KB",), interrupts("produce", KeyboardInterrupt()))
    assert suite.report(made, tmp_path, said.append) == 130
    assert said == ["nothing was measured"] and not list(tmp_path.iterdir())


def test_the_report_is_written_after_each_group_and_the_results_after_each_workload(tmp_path: Path) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def answer(job: Job, made: Measurement) -> Measurement:
        if job.action in ("produce", "latency"):
            is_saved, is_reported = (tmp_path / "results.json").exists(), (tmp_path / "report.md").exists()
            seen.append((job.workload.name, is_saved, is_reported))
        return made

    run(tmp_path, (*ONLY, "latency"), answer)
    assert list(dict.fromkeys(seen)) == [
        ("produce-100B", False, False), ("produce-1KB", True, False), ("latency-1000", True, True),
    ]  # fmt: skip


def test_a_quick_look_has_a_folder_of_its_own() -> None:
    assert suite.Choice(is_quick=True).folder == suite.QUICK_FOLDER != suite.Choice().folder


def test_with_three_sides_it_says_what_ratios_are_of(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0, "two": 2.0, "three": 3.0})
    choice = suite.Choice(only=("produce-1KB",), rounds=1)
    made = suite.run(choice, cluster.sides(), tmp_path, lambda _: None, do=cluster.drive)
    assert made.remarks == ["Ratios are those of one over two."]


def test_how_a_client_connects_is_not_kept(tmp_path: Path) -> None:
    workload = Workload("w", "produce", "w", settings=(("sasl.password", "pass"), ("client.id", "mine")))
    assert Entry("g", "G", workload).to_dict()["workload"]["settings"] == (("client.id", "mine"),)


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


def test_settings_of_a_run_come_on_top_of_those_of_a_workload() -> None:
    own, given = (("security.protocol", "SSL"), ("linger.ms", "1")), (("linger.ms", "2"),)
    group = Group("g", "G", (Workload("w", "produce", "w", settings=own),), rounds=1)
    ((workload,),) = [each.workloads for each in suite.Choice(settings=given, catalogue=(group,)).groups()]
    assert dict(workload.settings) == {"security.protocol": "SSL", "linger.ms": "2"}
