"""`oncelog bench` as people call it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.bench import profiling, rounds, suite
from oncelog.bench.catalogue import FULL, Group
from oncelog.bench.results import Results
from oncelog.cli.main import cli
from oncelog.testing import broker
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with broker() as process:
        yield process.bootstrap_servers


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


def test_produce_on_a_cluster_by_its_address(servers: str) -> None:
    few = ("--num-records", 300, "--rounds", 2, "--warm-ups", 0)
    result = bench("produce", "-b", f"mine={servers}", *few, "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rounds = found["entries"]["produce"]["rounds"]["mine"]
    assert [one["arrived"] for one in rounds] == [300, 300]
    assert all(one["figures"]["records_per_s"] > 0 for one in rounds)


def test_a_cluster_that_does_not_answer_is_a_failure_with_exit_code_1() -> None:
    result = bench("groups", "-b", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no broker answers at 127.0.0.1:1" in result.stderr


def test_a_side_that_fails_ends_with_exit_code_1(servers: str) -> None:
    setting = ("--set", "max.poll.interval.ms=nonsense")
    result = bench("consume", "-b", f"mine={servers}", "--num-records", 10, "--rounds", 1, "--warm-ups", 0, *setting)
    assert result.exit_code == 1
    assert "FAILED: consume on mine" in result.stdout


@pytest.mark.parametrize("command", [["start"], ["memory"], ["recovery"], ["growth", "ids"]])
def test_what_kills_brokers_is_refused_for_a_cluster_of_somebody_else(command: list[str]) -> None:
    result = bench(*command, "-b", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "only on brokers started here" in result.stderr


def test_wrong_options_are_explained() -> None:
    assert "needs --acks all" in bench("produce", "--acks", "1", "--idempotence").stderr
    assert "'x' is not a list" in bench("recovery", "--log-size", "x").stderr
    assert "there is no group or workload 'nothing'" in bench("suite", "--only", "nothing").stderr
    assert "a name of its own" in bench("produce", "-b", "a=127.0.0.1:1", "-b", "a=127.0.0.1:2").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["produce", "--linger-ms", -1], "-1.0 is not in the range x>=0"),
        (["produce", "--throughput", -2], "-2 is not in the range x>=-1"),
        (["latency", "--seconds", -1], "-1.0 is not in the range x>0"),
        (["latency", "--seconds", 0], "0.0 is not in the range x>0"),
        (["commit-cost", "--seconds", 0], "0.0 is not in the range x>0"),
        (["profile", "produce-100B", "--seconds", -1], "-1.0 is not in the range x>0"),
        (["transactions", "--commit-interval", 0], "0 is not in the range x>=1"),
        (["transactions", "--seconds", 2], "needs --commit-interval"),
        (["transactions", "--commit-interval", 5, "--transactions", 7], "means nothing with --commit-interval"),
        (["transactions", "--commit-interval", 5, "--records-per-transaction", 7], "means nothing with"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused(arguments: list[object], words: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2 and words in result.stderr


def test_transactions_are_committed_in_intervals(servers: str) -> None:
    few = ("--rounds", 1, "--warm-ups", 0, "--seconds", 1.5, "--producers", 2)
    result = bench("transactions", "-b", f"mine={servers}", "--commit-interval", 50, *few, "-o", "json")
    assert result.exit_code == 0, result.output
    entry = json.loads(result.stdout)["entries"]["transactions"]
    assert entry["workload"]["title"] == "records of 100 B, commits every 50 ms, 2 at a time"
    assert entry["rounds"]["mine"][0]["distributions"]["commit_ms"]["count"] >= 4


def test_a_topic_in_which_everything_was_aborted_can_be_read(servers: str) -> None:
    few = ("--num-records", 20, "--rounds", 1, "--warm-ups", 0)
    result = bench("consume", "-b", f"mine={servers}", "--aborted", 100, *few)
    assert result.exit_code == 0, result.output


def test_titles_tell_runs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []

    def run(groups: list[Group], *_: object) -> Results:
        titles.extend(workload.title for group in groups for workload in group.workloads)
        return Results()

    monkeypatch.setattr(rounds, "run", run)
    bench("produce", "-o", "json")
    told = "--num-records 9 --acks 1 --compression lz4 --partitions 4 --batch-size 1000 --linger-ms 0 --throughput 50"
    bench("produce", "-o", "json", *told.split(), "--set", "x=y", "--set", "sasl.password=x")
    bench("consume", "-o", "json", "--aborted", 50)
    bench("groups", "-o", "json")
    assert titles == [
        "1,000,000 records of 100 B",
        "9 records of 100 B, 4 partitions, acks=1, lz4, batches of 1,000 B, linger 0 ms, 50 records/s offered, x=y",
        "1,000,000 records of 100 B, read_committed, 50 % of the transactions aborted",
        "1,000 offset commits, 4 partitions",
    ]


def test_a_quick_look_at_the_suite_goes_to_its_own_folder_and_all_clients_are_told_what_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []
    choices: list[suite.Choice] = []

    def run(choice: suite.Choice, sides: object, folder: Path, progress: object) -> Results:
        folders.append(folder)
        choices.append(choice)
        return Results()

    monkeypatch.setattr(suite, "run", run)
    for arguments in ([], ["--quick"], ["--quick", "--results", "mine", "--set", "security.protocol=ssl"]):
        bench("suite", *arguments)
    told = {workload.settings for group in choices[-1].groups() for workload in group.workloads}
    assert told == {(("security.protocol", "ssl"),)}
    assert folders == [Path("bench-results"), Path("bench-results/quick"), Path("mine")]


def processes_on(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"TMPDIR={folder}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("command", ["produce", "consume", "start"])
@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_shows_the_finished_rounds_and_leaves_nothing_behind(
    command: str, signal_number: int, code: int, tmp_path: Path
) -> None:
    few = [] if command == "start" else ["--num-records", "300", "--warm-ups", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "oncelog", "bench", command, "--rounds", "500", *few],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "round 2 of 500" in line)
        children = 1 if command == "start" else 2
        wait_until(lambda: len(processes_on(tmp_path)) > children)
        # A terminal sends Ctrl-C to everything that runs in it, brokers included; a supervisor tells one process.
        (os.killpg if signal_number == signal.SIGINT else os.kill)(process.pid, signal_number)
        shown, errors = process.communicate(timeout=180)
    assert process.returncode == code, said + errors
    assert "INTERRUPTED" in shown and " oncelog " in shown and "FAILED" not in shown
    assert "Traceback" not in errors
    assert not processes_on(tmp_path) and not list(tmp_path.glob("oncelog-bench-*"))


def test_the_list_names_every_workload() -> None:
    shown = bench("suite", "--list").stdout
    assert all(workload.name in shown for group in FULL for workload in group.workloads)


def test_start_is_measured_on_a_broker_of_its_own() -> None:
    result = bench("start", "--rounds", 1, "-o", "json")
    assert result.exit_code == 0, result.output
    (measured,) = json.loads(result.stdout)["entries"]["start"]["rounds"]["oncelog"]
    assert 0 < measured["figures"]["start_s"] < 180


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (["recovery", "--log-size", "1"], {"recovery_s"}),
        (
            ["growth", "aborted", "--points", "20"],
            {"read_us_per_transaction", "tail_fetch_ms", "start_s", "recovery_s"},
        ),
        (["growth", "ids", "--points", "5"], {"ms_per_transaction", "start_s", "memory_mb"}),
    ],
    ids=["recovery", "aborted", "ids"],
)
def test_brokers_of_its_own_are_killed_and_everything_is_found_again(command: list[str], figures: set[str]) -> None:
    result = bench(*command, "--rounds", 1, "-o", "json")
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.stdout)["entries"].values()
    (measured,) = entry["rounds"]["oncelog"]
    assert measured["problem"] == "" and set(measured["figures"]) == figures


def test_a_missing_profiler_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = bench("profile", "produce-100B")
    assert result.exit_code == 1
    assert "pip install 'oncelog[bench]'" in result.stderr


def test_a_workload_that_does_not_exist_cannot_be_profiled() -> None:
    assert "there is no workload 'x'" in bench("profile", "x").stderr
