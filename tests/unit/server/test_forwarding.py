"""What controllers decide: settings of brokers are checked before, the audit log is told of changes after, and quotas
bound how much is changed."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.errors import ErrorCode
from oncelog.core.steps import at_once
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.core.worker import InlineWorker
from oncelog.protocol.api import encode_request
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame
from oncelog.protocol.messages.add_raft_voter import AddRaftVoterRequest
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_configs import AlterableConfig as WholeConfig
from oncelog.protocol.messages.alter_configs import AlterConfigsRequest
from oncelog.protocol.messages.alter_configs import AlterConfigsResource as WholeResource
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from oncelog.server import turns
from oncelog.server.change_report import report
from oncelog.server.config_resources import warn_of_no_effect
from oncelog.server.context import RequestContext
from oncelog.server.dispatch import DECODED_HERE_BYTES_MAX
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import HeldWorker
from tests.unit.server.test_connection import connect, receive

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
def node(tmp_path: Path) -> BrokerInProcess:
    return BrokerInProcess(tmp_path / "data", ACLS)


def alter(node: BrokerInProcess, *resources: AlterConfigsResource, validate_only: bool = False) -> dict[Any, Any]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    answer = node.call(request, 1)
    return {
        (each.resource_type, each.resource_name): (each.error_code, each.error_message) for each in answer.responses
    }


def resource(kind: int, name: str, **configs: str | None) -> AlterConfigsResource:
    entries = [
        AlterableConfig(name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value)
        for key, value in configs.items()
    ]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    entries = [json.loads(each.getMessage()) for each in caplog.records if each.name == "oncelog.audit"]
    caplog.clear()
    return [(entry["resource"], entry["name"], entry.get("detail", entry["event"])) for entry in entries]


@pytest.mark.parametrize(
    ("name", "configs", "code"),
    [
        ("9", {"log_retention_ms": "1000"}, ErrorCode.INVALID_REQUEST),
        ("", {"node_id": "7"}, ErrorCode.INVALID_REQUEST),
        ("1", {"log_retention_ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ("1", {"max_connections": "0"}, ErrorCode.INVALID_CONFIG),
        ("1", {"no_such_key": "1"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_that_the_broker_cannot_take_reach_no_controller(
    node: BrokerInProcess, name: str, configs: dict[str, str], code: ErrorCode
) -> None:
    node.create("t")
    results = alter(node, resource(BROKER, name, **configs), resource(TOPIC, "t", retention_ms="5"))
    assert results[BROKER, name][0] == code
    assert results[TOPIC, "t"][0] == ErrorCode.NONE, "what is right of the request is done"
    assert node.broker.metadata.topics["t"].configs == {"retention.ms": "5"}
    assert not node.broker.metadata.broker_configs
    assert alter(node, resource(BROKER, name, **configs))[BROKER, name][0] == code, "nothing else is in the request"


def test_what_is_passed_on_counts_for_the_quota_of_requests_here(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(rate: float) -> None:
        change = OpData(key="request_percentage", value=rate, remove=False)
        entity = [EntityData(entity_type="user", entity_name="ANONYMOUS")]
        node.call(AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=[change])]), 1)

    def create(name: str) -> int:
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = node.call(CreateTopicsRequest(topics=[wanted]), 7)
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [(name, ErrorCode.NONE)]
        return int(answer.throttle_time_ms)

    assert create("a") == 0
    limit(1e6)
    seconds = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    assert create("b") == 0
    limit(0.5)
    assert create("c") == 1000
    refused = alter(node, resource(BROKER, "9", log_retention_ms="5"))
    assert refused[BROKER, "9"][0] == ErrorCode.INVALID_REQUEST


def test_a_broker_named_twice_is_refused_whatever_is_said_of_it(node: BrokerInProcess) -> None:
    given = [resource(BROKER, "1", log_retention_ms="1000"), resource(BROKER, "1", node_id="7")]
    assert alter(node, *given)[BROKER, "1"][0] == ErrorCode.INVALID_REQUEST
    assert alter(node, given[0], given[0])[BROKER, "1"][0] == ErrorCode.INVALID_REQUEST
    assert not node.broker.metadata.broker_configs


def test_settings_of_the_broker_are_changed_and_replaced(node: BrokerInProcess) -> None:
    assert alter(node, resource(BROKER, "1", log_retention_ms="1000"), validate_only=True)[BROKER, "1"][0] == 0
    assert not node.broker.metadata.broker_configs
    assert alter(node, resource(BROKER, "1", log_retention_ms="1000"))[BROKER, "1"] == (ErrorCode.NONE, None)
    assert node.broker.settings.integer("log.retention.ms") == 1000
    whole = WholeResource(
        resource_type=BROKER, resource_name="1", configs=[WholeConfig(name="log.retention.bytes", value="9")]
    )
    answer = node.call(AlterConfigsRequest(resources=[whole]), 2).responses[0]
    assert answer.error_code == ErrorCode.NONE
    assert node.broker.metadata.broker_configs["1"] == {"log.retention.bytes": "9"}
    whole.configs = [WholeConfig(name="broker.rack", value="a")]
    assert node.call(AlterConfigsRequest(resources=[whole]), 2).responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_the_audit_log_is_told_of_topics_and_settings(node: BrokerInProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        node.create("t", 2, retention_ms="7")
        assert told(caplog) == [("TOPIC", "t", "created with 2 partition(s)")]
        wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7)
        wanted.name = "dry"
        node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=True), 7)
        assert told(caplog) == [], "nothing has changed"
        node.call(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=1000
            ),
            3,
        )
        alter(node, resource(TOPIC, "t", retention_ms=None, segment_ms="1000"), resource(BROKER, "9", x="1"))
        node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
        assert told(caplog) == [
            ("TOPIC", "t", "has 3 partition(s) now"),
            ("TOPIC", "t", "settings changed: retention.ms removed, segment.ms=1000"),
            ("TOPIC", "t", "deleted"),
        ]


def test_the_audit_log_is_told_of_users_acls_and_quotas_without_keys(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    new = ScramCredentialUpsertion(name="eve", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32)
    acl = {"resource_type": TOPIC, "resource_name": "tea", "principal": "User:eve", "host": "*", "operation": 3}
    same = DeleteAclsFilter(
        resource_type_filter=TOPIC, resource_name_filter="tea", principal_filter=None, host_filter=None, operation=1,
        permission_type=1,
    )  # fmt: skip
    quota = EntryData(
        entity=[EntityData(entity_type="user", entity_name="eve")], ops=[OpData(key="request_percentage", value=5.0)]
    )
    with caplog.at_level(logging.INFO):
        node.call(AlterUserScramCredentialsRequest(upsertions=[new]), 0)
        gone = [ScramCredentialDeletion(name="eve", mechanism=1), ScramCredentialDeletion(name="nobody", mechanism=1)]
        node.call(AlterUserScramCredentialsRequest(deletions=gone), 0)
        node.call(CreateAclsRequest(creations=[AclCreation(**acl, permission_type=3)]), 3)
        node.call(DeleteAclsRequest(filters=[same]), 3)
        node.call(AlterClientQuotasRequest(entries=[quota]), 1)
        lines = told(caplog)
    assert [line[:2] for line in lines] == [("USER", "eve")] * 2 + [("TOPIC", "tea")] * 2 + [("QUOTA", "user eve")]
    details = [line[2] for line in lines]
    assert details[:2] == ["set its SCRAM-SHA-256 credential", "deleted its SCRAM-SHA-256 credential"]
    assert details[2].startswith("added ALLOW READ to User:eve")
    assert details[3].startswith("deleted ALLOW READ to User:eve")
    assert details[4] == "request_percentage is 5"


def test_the_audit_log_is_told_of_elections(node: BrokerInProcess, caplog: pytest.LogCaptureFixture) -> None:
    """One node has no other leader to elect: the answer is that of another controller."""
    context = RequestContext(2, "test", node.peer, node.broker.authorizer, ApiKey.ELECT_LEADERS)
    results = [PartitionResult(partition_id=0), PartitionResult(partition_id=1, error_code=84)]
    answer = ElectLeadersResponse(replica_election_results=[ReplicaElectionResult(topic="t", partition_result=results)])
    with caplog.at_level(logging.INFO):
        for kind in (1, 0):
            at_once(report(node.broker, context, ElectLeadersRequest(election_type=kind), answer))
        assert told(caplog) == [
            ("TOPIC", "t", "partition 0 got an unclean leader"),
            ("TOPIC", "t", "partition 0 got the preferred leader"),
        ]


def test_the_audit_log_is_told_of_what_only_a_newer_controller_knows(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    acl = {"resource_name": "tea", "pattern_type": 3, "principal": "User:eve", "host": "*", "permission_type": 3}
    new = DeleteAclsMatchingAcl(resource_type=99, operation=98, **acl)
    usual = DeleteAclsMatchingAcl(resource_type=TOPIC, operation=3, **acl)
    deleted = DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(matching_acls=[new, usual])])
    creation = AclCreation(resource_type=99, resource_name="tea", principal="User:eve", host="*", operation=3)
    added = CreateAclsResponse(results=[AclCreationResult()])
    user = AlterUserScramCredentialsResponse(results=[AlterUserScramCredentialsResult(user="eve")])
    with caplog.at_level(logging.INFO):
        for key, request, answer in (
            (ApiKey.DELETE_ACLS, DeleteAclsRequest(), deleted),
            (ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[creation]), added),
            (
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="eve", mechanism=9)]),
                user,
            ),
        ):
            context = RequestContext(0, "test", node.peer, node.broker.authorizer, key)
            at_once(report(node.broker, context, request, answer))
    found = told(caplog)
    assert [place for *place, _ in found] == [["99", "tea"], ["TOPIC", "tea"], ["99", "tea"], ["USER", "eve"]]
    assert "operation=98" in found[0][2]
    assert found[1][2] == "deleted ALLOW READ to User:eve from * on TOPIC LITERAL 'tea'"
    assert found[3][2] == "deleted its 9 credential"


def test_settings_without_effect_are_warned_of(node: BrokerInProcess, caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        caplog.clear()
        return found

    node.create("t", remote_storage_enable="false")
    assert any(text.startswith("topic t: remote.storage.enable") for text in warnings())
    alter(node, resource(TOPIC, "t", remote_storage_enable="false"))
    assert any(text.startswith("topic t: remote.storage.enable") for text in warnings())
    alter(node, resource(BROKER, "1", background_threads="9"))
    assert any(text.startswith("broker 1: background.threads") for text in warnings())


@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
def test_settings_of_replicas_have_their_effect_in_a_cluster(caplog: pytest.LogCaptureFixture, roles: str) -> None:
    given = TOPIC_CONFIG.parse({"min.insync.replicas": "1"})
    warn_of_no_effect("topic t", given, BROKER_CONFIG.parse({"process.roles": roles}))
    warned = [each.getMessage() for each in caplog.records if "min.insync.replicas has no effect" in each.getMessage()]
    assert len(warned) == (0 if roles == "broker" else 1)


def test_a_quota_of_changes_holds_for_what_a_controller_decides(node: BrokerInProcess) -> None:
    limit = OpData(key="controller_mutation_rate", value=1.0)
    entity = EntityData(entity_type="client-id", entity_name="test")
    node.call(AlterClientQuotasRequest(entries=[EntryData(entity=[entity], ops=[limit])]), 1)

    def made(name: str, version: int = 7, **others: Any) -> Any:
        wanted = CreatableTopic(name=name, num_partitions=30, replication_factor=1)
        return node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000, **others), version)

    assert made("dry", validate_only=True).throttle_time_ms == 0
    first = made("a")
    assert first.topics[0].error_code == ErrorCode.NONE
    assert first.throttle_time_ms > 0
    assert node.peer.throttle_ms == first.throttle_time_ms, "nothing is read from the connection for so long"
    assert made("b").topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "b" not in node.broker.metadata.topics
    assert made("c", 5).topics[0].error_code == ErrorCode.NONE, "a client that does not know the code is slowed down"
    growth = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=31, assignments=None)], timeout_ms=1000
    )
    assert node.call(growth, 3).results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1000)
    assert node.call(deletion, 6).responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    node.clock.advance_ms(120_000)
    assert node.call(deletion, 6).responses[0].error_code == ErrorCode.NONE


def test_a_setting_without_a_value_is_answered(node: BrokerInProcess) -> None:
    entries = [CreatableTopicConfig(name="retention.ms", value=None)]
    wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=entries)
    assert node.call(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 7).topics[0].name == "t"


def test_many_settings_of_brokers_are_checked_in_parts(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    resources = [resource(BROKER, str(number)) for number in range(2, 12)]
    waiting = node.send(IncrementalAlterConfigsRequest(resources=resources), 1)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert [each.error_code for each in waiting.value.responses] == [ErrorCode.INVALID_REQUEST] * 10


class _CountingWorker(InlineWorker):
    count = 0

    def run(self, job: Any) -> Any:
        self.count += 1
        return super().run(job)


def test_large_requests_are_decoded_by_a_worker(node: BrokerInProcess) -> None:
    worker = _CountingWorker()
    node.broker.decoding._worker = worker
    node.create("t")
    assert worker.count == 0
    resources = [resource(BROKER, f"{number:050}") for number in range(2_000)]
    results = alter(node, *resources, resource(TOPIC, "t", retention_ms="5"))
    assert (len(results), results[TOPIC, "t"][0]) == (2_001, ErrorCode.NONE)
    assert worker.count == 2, "the request and its answer"
    body = encode_request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=resources))
    frame = b"".join(encode_request_frame(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, 1, "test", body))[4:-1000]
    broken: Any = node.broker.dispatcher.serve(memoryview(frame), node.peer)
    assert broken.value == [], "its connection is closed"


def test_what_waits_for_a_controller_counts_from_a_small_size_on(node: BrokerInProcess) -> None:
    """It is decoded twice, and thousands of connections may wait at a time."""
    running, worker = connect(node), HeldWorker()
    node.broker.decoding._worker = worker
    topics = [CreatableTopic(name=f"!{number}", num_partitions=1, replication_factor=1) for number in range(500)]
    body = encode_request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    frame = b"".join(encode_request_frame(ApiKey.CREATE_TOPICS, 7, 1, "test", body))
    assert len(frame) < DECODED_HERE_BYTES_MAX
    receive(running, frame)
    assert len(worker.jobs) == 1
    worker.finish_one()
    assert node.broker.budget.held_bytes > 500 * 200
    worker.finish(node.clock)
    assert running.take()
    assert node.broker.budget.held_bytes == 0


@pytest.mark.parametrize(("request_type", "version"), [(AddRaftVoterRequest, 1), (RemoveRaftVoterRequest, 0)])
def test_changes_of_the_voters_are_passed_on_and_refused_by_a_controller_whose_voters_are_fixed(
    node: BrokerInProcess, request_type: Any, version: int
) -> None:
    answer = node.call(request_type(voter_id=7), version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "controller.quorum.voters" in answer.error_message
