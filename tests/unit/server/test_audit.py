"""The audit log: a line for each change and each refusal, valid JSON whatever clients send, limited per principal."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.security.acl import Operation, Resource
from oncelog.server import audit
from oncelog.server.context import Peer, RequestContext
from oncelog.server.operator_log import KIND_LINES_MAX, JsonFormatter, OperatorLog, TextFormatter
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.virtual_cluster import VirtualCluster


class Nothing:
    """An authorizer that refuses."""

    restricts_clients = True

    def allows(self, *_: object) -> bool:
        return False

    def allows_any(self, *_: object) -> bool:
        return False


@pytest.fixture
def settings() -> dict[str, str]:
    return FEW_PARTITIONS


@pytest.fixture
def entries(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Collect()
    with caplog.at_level(logging.INFO, "oncelog.audit"):
        audit.log.addHandler(handler)
        yield found
        audit.log.removeHandler(handler)


@contextmanager
def written(path: Path, style: logging.Formatter) -> Iterator[None]:
    with path.open("wb") as file:
        handler = OperatorLog(file.fileno())
        handler.setFormatter(style)
        level = audit.log.level
        audit.log.addHandler(handler)
        audit.log.setLevel(logging.INFO)
        yield
        audit.log.setLevel(level)
        audit.log.removeHandler(handler)
        handler.close()


def changes(node: BrokerInProcess) -> list[tuple[Any, int]]:
    topic = AlterConfigsResource(
        resource_type=2, resource_name="tea", configs=[AlterableConfig(name="retention.ms", value="5")]
    )
    committed = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="tea", partitions=[OffsetCommitRequestPartition(committed_offset=0)])],
    )
    offsets = [OffsetDeleteRequestTopic(name="tea", partitions=[OffsetDeleteRequestPartition()])]
    return [
        (CreateTopicsRequest(topics=[CreatableTopic(name="tea", num_partitions=2, replication_factor=1)]), 7),
        (IncrementalAlterConfigsRequest(resources=[topic]), 1),
        (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="tea", count=3, assignments=None)]), 3),
        (
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="tea", partitions=[DeleteRecordsPartition(offset=0)])]
            ),
            2,
        ),
        (committed, 8),
        (OffsetDeleteRequest(group_id="g", topics=offsets), 0),
        (committed, 8),
        (DeleteGroupsRequest(groups_names=["g"]), 2),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="tea")]), 6),
    ]


def test_every_change_has_a_line_once_it_is_made(node: BrokerInProcess, entries: list[dict[str, Any]]) -> None:
    for request, version in changes(node):
        node.call(request, version)
    assert [(entry["event"], entry["api"], entry["resource"], entry["name"], entry["detail"]) for entry in entries] == [
        ("changed", "CreateTopics", "TOPIC", "tea", "created with 2 partition(s)"),
        ("changed", "IncrementalAlterConfigs", "TOPIC", "tea", "settings changed: retention.ms=5"),
        ("changed", "CreatePartitions", "TOPIC", "tea", "has 3 partition(s) now"),
        ("changed", "DeleteRecords", "TOPIC", "tea", "records of partition 0 deleted below 0"),
        ("changed", "OffsetDelete", "GROUP", "g", "offsets deleted of tea"),
        ("changed", "DeleteGroups", "GROUP", "g", "deleted"),
        ("changed", "DeleteTopics", "TOPIC", "tea", "deleted"),
    ]
    assert {(entry["principal"], entry["host"], entry["client_id"]) for entry in entries} == {
        ("User:ANONYMOUS", "127.0.0.1", "test")
    }


def test_what_was_not_done_is_not_told_as_a_change(node: BrokerInProcess, entries: list[dict[str, Any]]) -> None:
    wanted = CreateTopicsRequest(topics=[CreatableTopic(name="tea", num_partitions=2, replication_factor=1)])
    wanted.validate_only = True
    node.call(wanted, 7)
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="nothing")]), 6)
    node.call(CreateTopicsRequest(topics=[CreatableTopic(name="a b", num_partitions=1, replication_factor=1)]), 7)
    assert entries == []


def test_every_refusal_has_a_line(node: BrokerInProcess, entries: list[dict[str, Any]]) -> None:
    node.broker.authorizer = Nothing()
    asked = [
        *changes(node),
        (HeartbeatRequest(group_id="g"), 3),
        (MetadataRequest(topics=[MetadataRequestTopic(name="tea")]), 9),
    ]
    for request, version in asked:
        before = len(entries)
        node.call(request, version)
        assert {entry["event"] for entry in entries[before:]} == {"refused"}, request
    operations = [(entry["api"], entry["operation"], entry["resource"]) for entry in entries]
    assert ("DeleteTopics", "DELETE", "TOPIC") in operations
    assert ("Heartbeat", "READ", "GROUP") in operations


def test_a_refusal_is_told_once_for_all_partitions_of_a_request(
    node: BrokerInProcess, entries: list[dict[str, Any]]
) -> None:
    node.create("tea", 50)
    node.create("milk", 50)
    entries.clear()
    node.broker.authorizer = Nothing()
    partitions = [FetchPartition(partition=number, partition_max_bytes=1) for number in range(50)]
    topics = [FetchTopic(topic=name, partitions=partitions) for name in ("tea", "milk")]
    node.call(FetchRequest(max_bytes=1, topics=topics), 12)
    assert [entry["name"] for entry in entries] == ["tea", "milk"]


def test_probes_are_not_told(node: BrokerInProcess, entries: list[dict[str, Any]]) -> None:
    node.create("tea")
    entries.clear()
    node.broker.authorizer = Nothing()
    node.call(MetadataRequest(topics=None, include_cluster_authorized_operations=True), 9)
    assert entries == []


@pytest.mark.parametrize("style", [TextFormatter, JsonFormatter])
def test_a_line_is_valid_json_whatever_a_client_sends(tmp_path: Path, style: type[logging.Formatter]) -> None:
    nasty = ['"\\\n' * 400, "\x1b[2J" * 300, "{" * 5000, "\udcff", "%s %d"]
    with written(tmp_path / "log", style()):
        for text in nasty:
            peer = Peer("10.0.0.1", "127.0.0.1", principal=f"User:{text}")
            RequestContext(1, text, peer, Nothing(), 12).permits(Operation.READ, Resource.GROUP, text)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == len(nasty)
    for line in lines:
        entry = json.loads(line if style is JsonFormatter else line.partition("oncelog.audit: ")[2])
        assert (entry["event"], entry["host"], entry["api"]) == ("refused", "10.0.0.1", "Heartbeat")


def test_one_principal_does_not_hide_what_others_do(tmp_path: Path) -> None:
    with written(tmp_path / "log", TextFormatter()):
        for user, count in (("noisy", KIND_LINES_MAX * 3), ("quiet", 1)):
            peer = Peer("10.0.0.1", "127.0.0.1", principal=f"User:{user}")
            for _ in range(count):
                RequestContext(1, "c", peer, Nothing(), 12).permits(Operation.READ, Resource.GROUP, "g")
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum("User:noisy" in line for line in lines) == KIND_LINES_MAX + 1, "and one for those that were left out"
    assert sum("User:quiet" in line for line in lines) == 1


def test_a_fetch_as_a_replica_that_is_refused_has_a_line(tmp_path: Path, entries: list[dict[str, Any]]) -> None:
    cluster = VirtualCluster(tmp_path, 2).start()
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(cluster.is_known_to_all)
    cluster.nodes[2].kill()
    cluster.nodes[1].running.authorizer = Nothing()
    topic = FetchTopic(topic_id=cluster.controller.image.topic_ids["orders"], partitions=[FetchPartition()])
    posing = FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=1), topics=[topic])
    answer = cluster.result(cluster.nodes[1].send(posing))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    # What broker 2 had sent before it was killed may arrive meanwhile.
    told = {(entry["event"], entry["api"], entry["operation"], entry["resource"]) for entry in entries}
    assert told == {("refused", "Fetch", "CLUSTER_ACTION", "CLUSTER")}
