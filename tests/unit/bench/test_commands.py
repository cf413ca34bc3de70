"""`oncelog bench` as people call it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncelog.bench import profiling
from oncelog.bench.catalogue import FULL
from oncelog.cli.main import cli
from oncelog.testing import broker


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


def test_the_list_names_every_workload() -> None:
    shown = bench("suite", "--list").stdout
    assert all(workload.name in shown for group in FULL for workload in group.workloads)


def test_start_is_measured_on_a_broker_of_its_own() -> None:
    result = bench("start", "--rounds", 1, "-o", "json")
    assert result.exit_code == 0, result.output
    (measured,) = json.loads(result.stdout)["entries"]["start"]["rounds"]["oncelog"]
    assert 0 < measured["figures"]["start_s"] < 30


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
