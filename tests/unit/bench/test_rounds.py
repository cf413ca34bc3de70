"""Sides take turns, and a side that lost something is not measured any further."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog.bench import interruption, rounds
from oncelog.bench.catalogue import Group
from oncelog.bench.cells import lifecycle
from oncelog.bench.driver.job import Job
from oncelog.bench.interruption import Terminated, running, sigterm_in_order
from oncelog.bench.measurement import Measurement
from oncelog.bench.results import Results
from oncelog.bench.side import Side, resident_mb
from oncelog.bench.workload import Workload
from oncelog.child_process import ChildProcess
from tests.unit.bench.fakes import FakeBroker, FakeCluster

PRODUCE = Workload("produce-x", "produce", "produce", 100)
CONSUME = Workload("consume-x", "consume", "consume", 100)


def run(cluster: FakeCluster, folder: Path, *workloads: Workload, count: int = 3, warm_ups: int = 0) -> Results:
    group = Group("group", "Group", workloads, count, warm_ups)
    return rounds.run([group], cluster.sides(), folder, lambda _: None, cluster.drive)


def test_who_begins_alternates_from_round_to_round(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0, "two": 2.0})
    run(cluster, tmp_path, PRODUCE, count=4)
    assert cluster.measured("produce") == ["one", "two", "two", "one", "one", "two", "two", "one"]


def test_warm_ups_are_run_on_every_side_and_not_kept(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0, "two": 2.0})
    results = run(cluster, tmp_path, PRODUCE, count=3, warm_ups=2)
    assert sorted(cluster.measured("produce")) == ["one"] * 5 + ["two"] * 5
    assert {side: len(kept) for side, kept in results.entries["produce-x"].rounds.items()} == {"one": 3, "two": 3}


def test_both_sides_get_the_same_workload_and_data(tmp_path: Path) -> None:
    seen: list[tuple[str, Workload]] = []

    def answer(job: Job, made: Measurement) -> Measurement:
        seen.append((job.action, job.workload))
        return made

    run(FakeCluster({"one": 1.0, "two": 2.0}, answer), tmp_path, PRODUCE)
    assert {workload for action, workload in seen if action == "produce"} == {PRODUCE}


def test_a_side_that_lost_a_record_has_a_problem_and_is_not_asked_again(tmp_path: Path) -> None:
    def answer(job: Job, made: Measurement) -> Measurement:
        is_loser = job.action == "produce" and job.bootstrap_servers.startswith("two")
        return replace(made, arrived=made.arrived - 1) if is_loser else made

    cluster = FakeCluster({"one": 1.0, "two": 2.0}, answer)
    entry = run(cluster, tmp_path, PRODUCE).entries["produce-x"]
    assert entry.problem("two") == "99 records where 100 were expected"
    assert entry.problem("one") == ""
    assert cluster.measured("produce").count("two") == 1
    assert cluster.measured("produce").count("one") == 3


def test_a_warm_up_that_fails_counts(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0}, lambda job, made: replace(made, errors=int(job.action == "produce")))
    assert run(cluster, tmp_path, PRODUCE, warm_ups=1).problems == ["produce-x on one: 1 errors"]


def test_what_was_produced_is_read_back_and_compared(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0}, lambda job, made: replace(made, errors=int(job.action == "verify")))
    assert run(cluster, tmp_path, PRODUCE).problems == ["produce-x on one: read back: 1 errors"]


@pytest.mark.parametrize("kind", ["transactions", "commit-cost"])
def test_what_was_committed_is_read_back_by_a_committed_reader(tmp_path: Path, kind: str) -> None:
    readers: list[Job] = []

    def answer(job: Job, made: Measurement) -> Measurement:
        if job.action != "verify":
            return replace(made, figures={**made.figures, "committed_records": 40.0})
        readers.append(job)
        return replace(made, arrived=0)

    workload = Workload("x", kind, "x", isolation="read_uncommitted")
    problems = run(FakeCluster({"one": 1.0}, answer), tmp_path, workload, warm_ups=1).problems
    assert problems == ["x on one: read back: 0 records where 40 were expected"]
    (reader,) = readers
    assert (reader.expected, reader.workload.isolation) == (40, "read_committed")


def test_a_close_look_after_the_rounds_voids_all_of_them(tmp_path: Path) -> None:
    def answer(job: Job, made: Measurement) -> Measurement:
        return replace(made, errors=2, note="2 records differ") if job.action == "verify" else made

    entry = run(FakeCluster({"one": 1.0}, answer), tmp_path, CONSUME).entries["consume-x"]
    assert [kept.problem for kept in entry.rounds["one"]] == [
        "", "", "", "verification: 2 errors 2 records differ",
    ]  # fmt: skip


def test_a_side_that_cannot_be_prepared_does_not_take_the_other_with_it(tmp_path: Path) -> None:
    def answer(job: Job, made: Measurement) -> Measurement:
        return Measurement.failed("no room") if job.bootstrap_servers.startswith("one") else made

    entry = run(FakeCluster({"one": 1.0, "two": 2.0}, answer), tmp_path, CONSUME).entries["consume-x"]
    assert entry.problem("one") == "no room"
    assert entry.problem("two") == "" and len(entry.rounds["two"]) == 3


def test_interrupted_it_keeps_the_rounds_that_all_sides_have_finished(tmp_path: Path) -> None:
    count = 0

    def answer(job: Job, made: Measurement) -> Measurement:
        nonlocal count
        count += job.action == "produce"
        if count == 6:
            raise KeyboardInterrupt
        return made

    cluster = FakeCluster({"one": 1.0, "two": 2.0}, answer)
    results = run(cluster, tmp_path, PRODUCE, CONSUME, count=8)
    kept = {
        name: {side: len(rounds) for side, rounds in entry.rounds.items()} for name, entry in results.entries.items()
    }
    assert kept == {"produce-x": {"one": 2, "two": 2}}
    assert results.interruption == 130 and results.remarks == [rounds.INTERRUPTED]
    assert [broker.events for broker in cluster.brokers] == [["start", "stop"]] * 2


@pytest.mark.parametrize("workload", [PRODUCE, CONSUME], ids=["produce", "consume"])
def test_interrupted_it_asks_nothing_more_of_a_broker_that_ends_anyway(tmp_path: Path, workload: Workload) -> None:
    def answer(job: Job, made: Measurement) -> Measurement:
        if job.action == workload.kind:
            raise KeyboardInterrupt
        return made

    cluster = FakeCluster({"one": 1.0}, answer)
    run(cluster, tmp_path, workload)
    assert cluster.jobs[-1] == ("one", workload.kind)


def test_a_client_that_waits_for_a_start_is_not_waited_for_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = f"kill -TERM {os.getpid()}; sleep 600"
    monkeypatch.setattr(lifecycle, "command", lambda _: ["sh", "-c", client])
    began_s = time.monotonic()
    with sigterm_in_order(), pytest.raises(Terminated):
        lifecycle.start_to_first_ack_s(FakeBroker(tmp_path), Job("first-ack", "", "", PRODUCE))
    assert time.monotonic() - began_s < 300


def test_a_process_that_is_being_started_when_sigterm_comes_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ChildProcess[str]] = []

    class Interrupted(ChildProcess[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(interruption, "ChildProcess", Interrupted)
    with sigterm_in_order(), pytest.raises(Terminated), running(["sleep", "600"]):
        pytest.fail("SIGTERM was forgotten")
    assert started[0].returncode == -signal.SIGKILL


def test_the_memory_of_a_process_that_has_ended_is_a_failure_and_no_crash() -> None:
    with subprocess.Popen(["true"]) as process:
        # Until somebody waits for it, the system knows it as a process without memory.
        while Path(f"/proc/{process.pid}/stat").exists() and " Z " not in Path(f"/proc/{process.pid}/stat").read_text():
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match="has ended"):
            resident_mb(process.pid)
    with pytest.raises(RuntimeError, match="has ended"):
        resident_mb(process.pid)


def test_brokers_are_stopped_and_their_folders_removed(tmp_path: Path) -> None:
    cluster = FakeCluster({"one": 1.0, "two": 2.0})
    (tmp_path / "group").mkdir()
    run(cluster, tmp_path, PRODUCE, CONSUME)
    assert [broker.events for broker in cluster.brokers] == [["start", "stop"]] * 2
    assert not list(tmp_path.iterdir())


def test_what_needs_ownership_is_left_out_for_a_cluster_of_somebody_else(tmp_path: Path) -> None:
    said: list[str] = []
    group = Group("g", "G", (Workload("start", "start", "start"),), 1)
    results = rounds.run([group], [Side("theirs", bootstrap_servers="h:1")], tmp_path, said.append)
    assert results.entries["start"].skipped == {"theirs": "needs a broker that was started here"}
    assert not results.entries["start"].rounds
    assert "not started here" in said[0]
