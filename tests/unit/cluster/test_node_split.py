"""A node of its own becomes a controller and a broker: what it knew is what the controller begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.main import cli
from oncelog.cluster.cluster_config import check_folder
from oncelog.cluster.image_security import acls_of, scram_users
from oncelog.cluster.kraft_metadata import load_image
from oncelog.cluster.node_split import split_node
from oncelog.cluster.stopped_node import open_folder
from oncelog.controller.image import ConfigResource, Image
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config_resources import ResourceType
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ScramCredential, ScramMechanism, ScramUser
from oncelog.storage.log_dir import LogDirError
from oncelog.storage.meta_properties import read_meta_properties
from tests.unit.server.harness import BrokerInProcess

EVE = ScramUser("eve", ScramMechanism.SHA_256)
CREDENTIAL = ScramCredential(b"s", b"k", b"v", 4096)
ACL = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:eve", "*", Operation.READ, Permission.ALLOW)
CONTROLLER = 100


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    """Stopped, after it had been started twice."""
    node = BrokerInProcess(tmp_path / "data")
    node.create("t", 2, retention_ms="5")
    node.restart()
    node.produce("t", [b"one"], partition=1)
    node.stop()
    with open_folder(node.folder) as broker:
        broker.change("broker", "1", {"num.partitions": "4"})
        broker.change_users({EVE: CREDENTIAL})
        broker.change_acls([ACL])
    return node


def split(node: BrokerInProcess) -> Image:
    target = node.folder.with_name("controller")
    split_node(node.folder, target, CONTROLLER)
    loaded = load_image(target)
    assert loaded.is_complete
    return loaded.image


def test_the_controller_knows_what_the_node_knew(node: BrokerInProcess) -> None:
    ids = {topic.name: topic.topic_id for topic in node.broker.metadata.topics.values()}
    epoch = node.broker.metadata.partition_state(node.broker.metadata.topics["t"], 1).leader_epoch
    image = split(node)
    assert dict(image.topic_ids) == ids
    assert image.topic_settings("t") == {"retention.ms": "5"}
    assert image.settings[ConfigResource(ResourceType.BROKER, "1")] == {"num.partitions": "4"}
    assert (scram_users(image), list(acls_of(image))) == ({EVE: CREDENTIAL}, [ACL])
    partitions = image.topics[ids["t"]].partitions
    assert [partitions[index].replicas for index in range(2)] == [(1,), (1,)]
    assert all(partition.leader_epoch >= epoch for partition in partitions.values())
    assert not image.controllers


def test_the_folders_have_an_owner_each(node: BrokerInProcess) -> None:
    before = read_meta_properties(node.folder)
    split(node)
    assert before is not None
    assert read_meta_properties(node.folder) == before
    check_folder(node.folder, BROKER_CONFIG.parse({}))
    assert not (node.folder / "__cluster_metadata-0").exists()
    assert (node.folder / "t-1").is_dir()
    of_controller = read_meta_properties(node.folder.with_name("controller"))
    assert of_controller is not None
    assert (of_controller.cluster_id, of_controller.node_id) == (before.cluster_id, CONTROLLER)
    assert of_controller.directory_id not in (None, before.directory_id)


def test_the_command_says_which_settings_the_two_need(node: BrokerInProcess) -> None:
    target = node.folder.with_name("controller")
    arguments = ["cluster", "split", "--data-dir", str(node.folder), "--controller-dir", str(target)]
    done = CliRunner().invoke(cli, arguments)
    assert done.stdout.splitlines() == [
        f"{target}: process.roles=controller, node.id=100",
        f"{node.folder}: process.roles=broker, node.id=1",
        f"both: cluster.id={node.broker.cluster_id}",
    ]
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 1
    assert "is not the data folder of a node of its own" in again.output


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_cannot_be_split_stays_as_it_was(node: BrokerInProcess, tmp_path: Path) -> None:
    before = contents(node.folder)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(LogDirError, match="is not empty"):
        split_node(node.folder, tmp_path / "used", CONTROLLER)
    with pytest.raises(LogDirError, match="is the broker"):
        split_node(node.folder, tmp_path / "new", 1)
    with pytest.raises(LogDirError, match="not the data folder of a node of its own"):
        split_node(tmp_path / "used", tmp_path / "new", CONTROLLER)
    (node.folder / ".kafka_cleanshutdown").unlink()
    with pytest.raises(LogDirError, match="was not stopped in order"):
        split_node(node.folder, tmp_path / "new", CONTROLLER)
    assert not (tmp_path / "new").exists()
    del before[node.folder / ".kafka_cleanshutdown"]
    assert contents(node.folder) == before


def test_a_node_that_runs_is_not_split(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data")
    with pytest.raises(LogDirError, match=r"in use|used by"):
        split_node(node.folder, tmp_path / "new", CONTROLLER)
    node.stop()


def test_a_metadata_log_that_lost_its_end_is_left_to_the_next_start(node: BrokerInProcess, tmp_path: Path) -> None:
    segment = max((node.folder / "__cluster_metadata-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(LogDirError, match="has lost its end"):
        split_node(node.folder, tmp_path / "new", CONTROLLER)
    assert not (tmp_path / "new").exists()


def test_one_node_again_goes_on_above_the_epochs_that_clients_know(node: BrokerInProcess) -> None:
    """Also where the log has nothing of them, as that of a partition without records."""
    for _ in range(3):
        node.broker = node._new()
        node.restart()
        node.stop()
    image = split(node)
    (node.folder.with_name("controller") / "__cluster_metadata-0").rename(node.folder / "__cluster_metadata-0")
    known = [found.leader_epoch for found in image.topics[image.topic_ids["t"]].partitions.values()]
    node.broker = node._new()
    metadata = node.broker.metadata
    assert metadata.topics["t"].configs == {"retention.ms": "5"}
    assert metadata.partition_state(metadata.topics["t"], 0).leader_epoch > max(known)
    assert (dict(metadata.users), list(metadata.acls)) == ({EVE: CREDENTIAL}, [ACL])
    node.stop()
