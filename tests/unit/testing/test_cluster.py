"""A cluster for tests: its nodes die and come back. More of it is in `tests/cluster/test_local_cluster.py`."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog.testing
from oncelog.cli.cluster_up import _owned
from oncelog.client import Producer, TopicPartition
from oncelog.client.admin import OffsetSpec
from oncelog.testing import Cluster
from oncelog.testing.cluster_plan import ClusterFolderError, ClusterPlan
from oncelog.testing.local_cluster import START_TIMEOUT_S, _plan
from oncelog.testing.zookeeper import find_jars, free_ports


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which ports the system gives")
def test_ports_are_not_those_that_the_system_gives_to_anybody() -> None:
    """A node that is away would find its port taken, by a connection or by another test's broker."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first_given < 32_000:
        pytest.skip(f"this machine gives ports from {first_given} on")
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < first_given


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with oncelog.testing.cluster() as started:
        yield started


def write(cluster: Cluster, topic: str, *values: str) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        for value in values:
            producer.send(topic, value).result(60)


def length(cluster: Cluster, topic: str) -> int:
    place = TopicPartition(topic, 0)
    with cluster.admin() as admin:
        return admin.list_offsets({place: OffsetSpec.LATEST})[place].offset


def test_the_leader_is_killed_and_another_leads_with_all_records(cluster: Cluster) -> None:
    topic = cluster.create_topic()
    write(cluster, topic, "1", "2")
    leader = cluster.wait.leader(topic)
    cluster.brokers[leader].kill()
    assert cluster.wait.leader(topic, other_than=leader) in cluster.brokers.keys() - {leader}
    write(cluster, topic, "3")
    assert length(cluster, topic) == 3
    cluster.brokers[leader].start(timeout_s=START_TIMEOUT_S)
    cluster.wait.in_sync(topic, 1, 2, 3)


def test_the_controller_is_killed_and_goes_on(cluster: Cluster) -> None:
    [node] = cluster.controllers
    assert cluster.wait.active_controller() == node
    topic = cluster.create_topic()
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        producer.send(topic, "it has its producer id").result(60)
        cluster.controllers[node].kill()
        producer.send(topic, "brokers serve without a controller").result(60)
    cluster.controllers[node].start(timeout_s=START_TIMEOUT_S)
    assert cluster.wait.active_controller() == node
    assert cluster.create_topic() != topic


def test_a_wait_says_what_was_there_instead(cluster: Cluster) -> None:
    with pytest.raises(oncelog.testing.TimedOut, match=r"brokers \[7\] did not come .* \{[123, ]+\}"):
        cluster.wait.registered(7, timeout_s=3)


def test_a_node_that_cannot_start_is_named_with_its_own_words(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"controller-101: (.*\n)*.*did you mean num\.partitions"),
        oncelog.testing.cluster(settings={"num.partition": 3}, data_dir=tmp_path / "data"),
    ):
        pass


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = ClusterPlan.new(3, 3, first_port=9092)
    plan.save(tmp_path)
    assert ClusterPlan.load(tmp_path) == plan
    assert plan.ports == {
        "broker 1": 9092, "broker 2": 9093, "broker 3": 9094,
        "controller 101": 9192, "controller 102": 9193, "controller 103": 9194, "ZooKeeper": 9292,
    }  # fmt: skip


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    assert ClusterPlan.load(tmp_path / "new") is None
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ClusterFolderError, match="neither empty nor the folder of a cluster"):
        ClusterPlan.load(tmp_path)
    (tmp_path / "meta.properties").touch()
    with pytest.raises(ClusterFolderError, match="data folder of one node"):
        ClusterPlan.load(tmp_path)
    without_brokers = '{"cluster_id": "a", "brokers": {}, "controllers": {"101": 9192}}'
    wrong_port = without_brokers.replace("{}", '{"1": 99999}')
    for content in ('{"brokers": 3}', "[]", without_brokers, wrong_port):
        (tmp_path / "cluster.json").write_text(content)
        with pytest.raises(ClusterFolderError, match="cannot be read as the plan of a cluster"):
            ClusterPlan.load(tmp_path)


def test_the_folder_of_a_cluster_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It has settings, and what a ZooKeeper keeps of users."""
    _plan(tmp_path / "tested", 1, 1, {})
    with _owned(tmp_path / "up"):
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("tested", "up")]
    assert modes == [0o700, 0o700]


def test_brokers_can_be_added_to_a_plan_and_not_left_out() -> None:
    plan = ClusterPlan.new(2, 1, first_port=9092)
    assert plan.with_brokers(4).brokers == {1: 9092, 2: 9093, 3: 9094, 4: 9095}
    with pytest.raises(ClusterFolderError, match="there are 2 brokers in the folder"):
        plan.with_brokers(1)


@pytest.mark.parametrize("place", [".", "lib"])
def test_a_zookeeper_is_that_of_its_home_or_that_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def jars(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "zookeeper-3.9.5.jar").touch()
        return folder

    of_spark = jars(tmp_path / "site" / "pyspark" / "jars")
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.delenv("ZOOKEEPER_HOME", raising=False)
    assert find_jars() == of_spark
    home = tmp_path / "home"
    monkeypatch.setenv("ZOOKEEPER_HOME", str(home))
    assert find_jars() == of_spark, "nothing is there"
    of_home = jars(home / place)
    assert find_jars() == of_home


def test_a_zookeeper_has_a_folder_that_it_finds_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ClusterPlan.new(1, 2, first_port=9092)
    zookeeper = Cluster(Path("data"), plan).zookeeper
    assert zookeeper is not None
    assert zookeeper.folder == tmp_path / "data" / "zookeeper"
