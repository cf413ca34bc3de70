"""The demo on a cluster: leader, coordinator and active controller are killed in the middle of batches."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

import oncelog.testing
from oncelog.cli import demo
from oncelog.cli.demo_cluster import ClusterNodes
from oncelog.client.admin import NewTopic
from oncelog.spark.demo.pipeline import Topics
from oncelog.testing.cluster_plan import ClusterPlan
from oncelog.testing.zookeeper import zookeeper_missing
from tests.spark.conftest import unzipped_home

__all__ = ["unzipped_home"]


def test_who_leads_is_killed_and_comes_back_when_another_leads() -> None:
    with oncelog.testing.cluster() as cluster:
        topic = Topics().enriched("exactly-once")
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(topic, 4)])
        cluster.wait.in_sync(topic)
        nodes = ClusterNodes(cluster, Topics())
        assert nodes.lanes == ["broker 1", "broker 2", "broker 3", "controller 101"]
        leader = cluster.wait.leader(topic)
        assert nodes.kill("coordinator") is None, "there was no transaction yet"
        assert nodes.kill("leader") == f"broker {leader}"
        assert not cluster.brokers[leader].running
        nodes.revive(f"broker {leader}")
        assert cluster.wait.leader(topic) != leader
        assert cluster.wait.registered() == {1, 2, 3}
        assert nodes.kill("controller") == "controller 101"
        nodes.revive("controller 101")
        assert cluster.controllers[101].running


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_demo_proves_itself_while_leader_coordinator_and_controller_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unzipped_home: Path
) -> None:
    reason = zookeeper_missing()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(unzipped_home))
    kills = "leader,coordinator,controller"
    arguments = ["--brokers", "3", "--records", "6000", "--kills", kills, "--master", "local[2,4]"]
    done = CliRunner().invoke(demo.demo_command, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("proven") == 6
    for victim in (r"leader \(broker \d\)", r"coordinator \(broker \d\)", r"controller \(controller 10\d\)"):
        assert re.search(f"kill -9 {victim}", done.output), done.output
    picture = "".join(ET.parse(tmp_path / "demo-results" / "timeline.svg").getroot().itertext())
    assert "controller 103" in picture
    assert "cluster up --data-dir demo-results/cluster --console" in done.output
    plan = ClusterPlan.load(tmp_path / "demo-results" / "cluster")
    assert plan is not None
    assert len(plan.brokers) == len(plan.controllers) == 3
