"""Clusters of `oncelog.testing` and of `oncelog cluster up`: what dies, comes back, goes on, and is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import oncelog.testing
from oncelog.client import Admin, Producer
from oncelog.testing import Cluster
from oncelog.testing.local_cluster import START_TIMEOUT_S
from oncelog.testing.zookeeper import ZooKeeperEnsemble, zookeeper_missing
from tests.unit.cli.test_cluster_up import cluster_up, pids
from tests.unit.testing.test_cluster import cluster, length, write
from tests.unit.testing.test_janitor import runs
from tests.waiting import wait_until

__all__ = ["cluster"]

SHORT_SESSIONS = [
    *("--set", "broker.session.timeout.ms=3000"),
    *("--set", "broker.heartbeat.interval.ms=500"),
]
ACTIVE = r"^controller \d+ is active"


def test_a_broker_that_stands_still_is_fenced_and_comes_back(cluster: Cluster) -> None:
    cluster.brokers[2].pause()
    assert 2 not in cluster.wait.fenced(2)
    cluster.brokers[2].resume()
    assert 2 in cluster.wait.registered(2)


def test_a_copied_folder_is_refused_and_no_controller_is_blamed(cluster: Cluster, tmp_path: Path) -> None:
    copy = shutil.copytree(cluster.brokers[2].data_dir, tmp_path / "copy")
    meta = copy / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=2", "node.id=9"))
    properties = tmp_path / "broker-9.properties"
    kept = cluster.settings_file("broker", 2).read_text().replace("node.id=2", "node.id=9")
    properties.write_text(f"{kept}log.dirs={copy}\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    command = [sys.executable, "-m", "oncelog", "serve", "--config", str(properties)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert ended.returncode == 1
    assert "most likely was copied from another broker" in ended.stderr
    assert "gives no answer" not in ended.stderr


def test_it_goes_on_from_a_folder_that_was_given(tmp_path: Path) -> None:
    with oncelog.testing.cluster(1, data_dir=tmp_path / "data") as first:
        topic = first.create_topic()
        write(first, topic, "kept")
    with oncelog.testing.cluster(data_dir=tmp_path / "data") as second:
        assert list(second.brokers) == [1]
        assert length(second, topic) == 1


_VICTIM = """
import json, time, oncelog.testing
with oncelog.testing.cluster(2) as cluster:
    cluster.brokers[2].pause()
    print(json.dumps([str(cluster.folder), *(node.pid for node in cluster.nodes.values())]), flush=True)
    time.sleep(600)
"""


def test_a_test_process_that_is_killed_leaves_no_node_and_no_folder() -> None:
    with subprocess.Popen([sys.executable, "-c", _VICTIM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder, *pids = json.loads(process.stdout.readline())
        assert len(pids) == 3
        assert all(map(runs, pids))
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(runs, pids)) and not Path(folder).exists())


def test_cluster_up_says_who_is_lost_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with cluster_up(folder, "--brokers", "2", "--controllers", "1", "--port", "0", *SHORT_SESSIONS) as up:
        servers = up.servers
        with Admin({"bootstrap.servers": servers}) as admin:
            admin.create_topics(["orders"])
        os.kill(pids(folder)["broker-2"], signal.SIGKILL)
        up.line_with("broker 2 does not serve in the cluster any more")
        assert up.stop() == 0
    with cluster_up(folder) as again:
        assert again.servers == servers
        with Admin({"bootstrap.servers": servers}) as admin:
            assert list(admin.list_topics()) == ["orders"]
        nodes = pids(folder)
        again.process.send_signal(signal.SIGKILL)
        again.process.wait(30)
        wait_until(lambda: not any(map(runs, nodes.values())))


@pytest.mark.skipif(zookeeper_missing() is not None, reason="there is no ZooKeeper here")
@pytest.mark.parametrize("is_given", [False, True])
def test_another_controller_becomes_active(tmp_path: Path, is_given: bool) -> None:
    folder = tmp_path / "cluster"
    with ZooKeeperEnsemble(tmp_path / "given") as ensemble:
        options = ("--zookeeper", ensemble.connect) if is_given else ()
        size = ("--brokers", "1", "--controllers", "2", "--port", "0")
        with cluster_up(folder, *size, *options) as up:
            active = up.line_with(ACTIVE).removesuffix(" is active")
            os.kill(pids(folder)[active.replace(" ", "-")], signal.SIGKILL)
            up.line_with(f"{active} was ended by SIGKILL")
            assert up.line_with(ACTIVE) != f"{active} is active"
            assert up.stop() == 0
    assert (folder / "zookeeper").exists() != is_given


def test_a_broker_whose_disk_refuses_everything_gives_its_leaderships_up(cluster: Cluster) -> None:
    topic = cluster.create_topic()
    write(cluster, topic, "1")
    leader = cluster.wait.leader(topic)
    broken = cluster.brokers[leader]
    broken.fail_appends(1 << 30)
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        producer.send(topic, "2").result(90)
    assert cluster.wait.leader(topic) != leader
    assert broken.wait_for_exit(60) != 0
    assert "has given its leaderships up" in broken.log_path.read_text()
    assert not (broken.data_dir / ".kafka_cleanshutdown").exists()
    broken.start(timeout_s=START_TIMEOUT_S)
    cluster.wait.in_sync(topic, 1, 2, 3)
    assert length(cluster, topic) == 2
