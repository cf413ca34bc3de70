"""Settings, users and ACLs of a stopped node that keeps its metadata as Kafka does."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from oncelog.cluster.stopped_node import open_folder
from oncelog.controller.acl_changes import acl_record
from oncelog.core.config import ConfigError
from oncelog.core.config_resources import ConfigSource
from oncelog.core.errors import KafkaError
from oncelog.inspection.verification import Severity, verify_path
from oncelog.protocol.batch import iter_headers
from oncelog.security.acl import Acl, Operation, Pattern, Permission, Resource
from oncelog.security.scram import ScramCredential, ScramMechanism, ScramUser
from oncelog.storage.log_dir import LogDirError
from tests.unit.server.harness import BrokerInProcess

EVE = ScramUser("eve", ScramMechanism.SHA_256)
CREDENTIAL = ScramCredential(b"s", b"k", b"v", 4096)
ACL = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:eve", "*", Operation.READ, Permission.ALLOW)
OTHER = ACL._replace(name="other")


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    node = BrokerInProcess(tmp_path / "data")
    node.create("t", 2)
    node.stop()
    return node


def test_what_is_changed_is_there_at_the_next_start_which_is_a_clean_one(node: BrokerInProcess) -> None:
    with open_folder(node.folder) as broker:
        broker.change("topic", "t", {"retention.ms": "5", "segment.ms": "7"})
        broker.change("broker", "1", {"num.partitions": "4"})
        broker.change_users({EVE: CREDENTIAL})
        broker.change_acls([ACL, OTHER, ACL])
    with open_folder(node.folder) as broker:
        broker.remove("topic", "t", ("segment.ms",))
        broker.change_acls([], [OTHER])
        assert broker.settings("topic", "t") == {ConfigSource.TOPIC: {"retention.ms": "5"}}
        assert broker.settings("broker", "1")[ConfigSource.DYNAMIC_BROKER] == {"num.partitions": "4"}
        assert (dict(broker.users), list(broker.acls)) == ({EVE: CREDENTIAL}, [ACL])
    node.broker = node._new()
    metadata = node.broker.metadata
    assert node.broker.log_dir.was_clean
    assert metadata.topics["t"].configs == {"retention.ms": "5"}
    assert node.broker.settings.integer("num.partitions") == 4
    assert (metadata.users, list(metadata.acls)) == ({EVE: CREDENTIAL}, [ACL])
    node.stop()
    with open_folder(node.folder) as broker:
        broker.change_users({}, [EVE])
        assert not broker.users


def test_an_acl_is_removed_beside_one_of_a_newer_kafka(node: BrokerInProcess) -> None:
    unknown = acl_record(OTHER, uuid.uuid4())
    unknown.operation = 99
    with open_folder(node.folder) as broker:
        broker.change_acls([ACL])
        broker._append([unknown])
    with open_folder(node.folder) as broker:
        broker.change_acls([], [ACL])
    with open_folder(node.folder) as broker:
        assert list(broker.image.acls) == [unknown.id]


def test_what_cannot_be_is_refused_and_nothing_is_written(node: BrokerInProcess) -> None:
    before = {path: path.read_bytes() for path in (node.folder / "__cluster_metadata-0").iterdir()}
    with open_folder(node.folder) as broker:
        for kind, name, settings in (
            ("topic", "t", {"retention.ms": "x"}),
            ("broker", "1", {"node.id": "2"}),
            ("topic", "nowhere", {"retention.ms": "1"}),
            ("broker", "2", {"num.partitions": "1"}),
        ):
            with pytest.raises((ConfigError, KafkaError)):
                broker.change(kind, name, settings)
    assert {path: path.read_bytes() for path in (node.folder / "__cluster_metadata-0").iterdir()} == before


@pytest.mark.parametrize("keep", [lambda size: size - 3, lambda size: size // 2])
def test_metadata_that_lost_its_end_is_left_to_the_next_start(node: BrokerInProcess, keep: object) -> None:
    log = max((node.folder / "__cluster_metadata-0").glob("*.log"))
    content = log.read_bytes()
    log.write_bytes(content[: keep(len(content))])  # type: ignore[operator]
    with pytest.raises(LogDirError, match="has lost its end"), open_folder(node.folder):
        pass
    assert log.stat().st_size == keep(len(content))  # type: ignore[operator]


def test_verify_finds_metadata_that_lost_its_end_and_nothing_in_what_a_node_leaves(node: BrokerInProcess) -> None:
    def found() -> list[str]:
        return [each.check for each in verify_path(node.folder).findings if each.severity is not Severity.NOTE]

    assert found() == []
    log = max((node.folder / "__cluster_metadata-0").glob("*.log"))
    content = log.read_bytes()
    positions = [position for position, _ in iter_headers(content)]
    log.write_bytes(content[: positions[-1]])
    assert "metadata.cut" in found()
