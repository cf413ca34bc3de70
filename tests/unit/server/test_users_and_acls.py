"""Users and ACLs over the wire: made, shown, deleted, kept over restarts, and obeyed by the next request."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import pytest

from oncelog.cluster.adoption import _adopt_others
from oncelog.cluster.metadata_draft import MetadataDraft
from oncelog.cluster.node_facts import NodeFacts
from oncelog.controller.image import Image, ScramCredentialKey
from oncelog.core.broker_config import STANDARD_AUTHORIZER
from oncelog.core.config import ConfigError
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.cluster_metadata import AccessControlEntryRecord, UserScramCredentialRecord
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.security import acl
from oncelog.security import quotas as quota_rules
from oncelog.security.acl import AclAuthorizer
from oncelog.security.scram import ScramMechanism, ScramUser, make_credential
from oncelog.server import audit, authorization, quotas
from oncelog.server.context import Peer
from tests.unit.server.harness import BrokerInProcess

ADMIN = Peer("127.0.0.1", "127.0.0.1", principal="User:admin")
EVE = Peer("127.0.0.1", "127.0.0.1", principal="User:eve")
SETTINGS = {
    "log.cleaner.enable": "false",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}
TOPIC, LITERAL, PREFIXED, READ, WRITE, DESCRIBE, ALLOW, DENY, ANY, MATCH = 2, 3, 4, 3, 4, 8, 3, 2, 1, 2


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.peer = ADMIN
    node.create("tea")
    node.create("milk")
    yield node
    node.broker.stop(clean=False)


EVERYTHING: dict[str, Any] = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


def creation(name: str = "tea", operation: int = READ, permission: int = ALLOW, **fields: Any) -> AclCreation:
    given = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "principal": "User:eve",
        "host": "*",
        **fields,
    }
    return AclCreation(resource_name=name, operation=operation, permission_type=permission, **given)


def create(node: BrokerInProcess, *creations: AclCreation) -> list[int]:
    answer = node.call(CreateAclsRequest(creations=list(creations)), 3)
    return [result.error_code for result in answer.results]


def described(node: BrokerInProcess, **fields: Any) -> list[tuple[str, int, str, int, int]]:
    answer = node.call(DescribeAclsRequest(**{**EVERYTHING, **fields}), 3)
    assert answer.error_code == 0
    return [
        (resource.resource_name, resource.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for resource in answer.resources
        for acl in resource.acls
    ]


def seen_by(node: BrokerInProcess, peer: Peer) -> set[str]:
    node.peer, before = peer, node.peer
    answer = node.call(MetadataRequest(topics=None), 12)
    node.peer = before
    return {topic.name for topic in answer.topics}


def test_what_is_created_is_described_and_obeyed_at_once(node: BrokerInProcess) -> None:
    assert seen_by(node, EVE) == set()
    assert create(node, creation("te", DESCRIBE, resource_pattern_type=PREFIXED), creation("milk")) == [0, 0]
    assert described(node) == [("milk", LITERAL, "User:eve", READ, ALLOW), ("te", PREFIXED, "User:eve", 8, ALLOW)]
    assert seen_by(node, EVE) == {"tea", "milk"}
    assert create(node, creation("milk", DESCRIBE, DENY)) == [0]
    assert seen_by(node, EVE) == {"tea"}


def test_they_survive_restarts(node: BrokerInProcess) -> None:
    create(node, creation("tea"), creation("milk", DESCRIBE, DENY))
    for clean in (True, False):
        node.restart(clean=clean)
        assert len(described(node)) == 2
        assert seen_by(node, EVE) == {"tea"}
    assert (node.folder / "__cluster_metadata-0").stat().st_mode & 0o777 == 0o700


def test_creating_twice_is_no_error_and_makes_one(node: BrokerInProcess) -> None:
    assert create(node, creation(), creation()) == [0, 0]
    assert create(node, creation()) == [0]
    assert len(described(node)) == 1


def test_a_wrong_one_keeps_no_other_from_being_made(node: BrokerInProcess) -> None:
    wrong = [
        creation(resource_type=ANY),
        creation(operation=ANY),
        creation(permission=ANY),
        creation(resource_pattern_type=MATCH),
        creation(""),
        creation(principal="eve"),
        creation("other", resource_type=4),
    ]
    assert create(node, *wrong, creation()) == [42] * len(wrong) + [0]
    assert len(described(node)) == 1


def test_deleting_by_filter_tells_what_it_was(node: BrokerInProcess) -> None:
    create(node, creation("te", resource_pattern_type=PREFIXED), creation("*", WRITE), creation("milk"))
    about_tea = {"resource_type_filter": TOPIC, "resource_name_filter": "tea", "pattern_type_filter": MATCH}
    matching = DeleteAclsFilter(**{**EVERYTHING, **about_tea})
    broken = DeleteAclsFilter(**{**EVERYTHING, "resource_type_filter": 99})
    answer = node.call(DeleteAclsRequest(filters=[matching, broken]), 3)
    assert [result.error_code for result in answer.filter_results] == [0, 42]
    assert {acl.resource_name for acl in answer.filter_results[0].matching_acls} == {"te", "*"}
    assert [row[0] for row in described(node)] == ["milk"]
    node.restart()
    assert [row[0] for row in described(node)] == ["milk"]


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "oncelog.audit"]


def test_without_an_authorizer_there_are_none(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data")
    assert create(node, creation()) == [54]
    assert node.call(DescribeAclsRequest(**EVERYTHING), 3).error_code == 54
    deletion = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)])
    assert [result.error_code for result in node.call(deletion, 3).filter_results] == [54]
    node.broker.stop(clean=False)


def test_whoever_may_not_alter_the_cluster_changes_nothing(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    node.peer = EVE
    with caplog.at_level(logging.INFO):
        assert create(node, creation()) == [31]
        assert list(alter(node, upsertion("eve")).values()) == [31]
    refused = audited(caplog)
    assert [entry["api"] for entry in refused] == ["CreateAcls", "AlterUserScramCredentials"]
    assert refused[0] == {
        "event": "refused", "principal": "User:eve", "host": "127.0.0.1", "listener": "PLAINTEXT", "client_id": "test",
        "operation": "ALTER", "resource": "CLUSTER", "name": "kafka-cluster", "api": "CreateAcls",
    }  # fmt: skip
    node.peer = ADMIN
    assert described(node) == []
    assert not node.broker.metadata.users


@pytest.mark.parametrize("name", ["super.users", "allow.everyone.if.no.acl.found"])
def test_settings_of_the_authorizer_without_it_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        BrokerInProcess(tmp_path / "data", {name: "true"})


def test_a_super_user_without_a_type_is_refused(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root;admin"}
    with pytest.raises(ConfigError, match=r"super\.users: 'admin' has no type.*User:admin"):
        BrokerInProcess(tmp_path / "data", settings)


def test_authorized_operations_tell_what_the_acls_say(node: BrokerInProcess) -> None:
    create(node, creation("tea", READ))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="tea")], include_topic_authorized_operations=True)
    node.peer = EVE
    (topic,) = node.call(request, 12).topics
    assert topic.topic_authorized_operations == 1 << READ | 1 << DESCRIBE


# Users


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> ScramCredentialUpsertion:
    salted = ScramMechanism.SHA_256.salted_password("pw", salt, iterations)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def alter(node: BrokerInProcess, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[change for change in changes if isinstance(change, ScramCredentialDeletion)],
        upsertions=[change for change in changes if isinstance(change, ScramCredentialUpsertion)],
    )
    return {result.user: result.error_code for result in node.call(request, 0).results}


def users_of(node: BrokerInProcess, *names: str) -> dict[str, Any]:
    wanted = [UserName(name=name) for name in names] or None
    answer = node.call(DescribeUserScramCredentialsRequest(users=wanted), 0)
    assert answer.error_code == 0
    return {
        result.user: result.error_code or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }


def test_a_user_is_made_changed_shown_and_deleted(node: BrokerInProcess) -> None:
    assert alter(node, upsertion("eve"), upsertion("bob", 2, 8192)) == {"eve": 0, "bob": 0}
    stored = node.broker.metadata.users[ScramUser("eve", ScramMechanism.SHA_256)]
    assert stored == make_credential(ScramMechanism.SHA_256, "pw", b"salt", 4096)
    assert users_of(node) == {"eve": [(1, 4096)], "bob": [(2, 8192)]}
    assert alter(node, upsertion("eve", iterations=5000)) == {"eve": 0}
    assert users_of(node, "eve", "nobody", "bob", "bob") == {"eve": [(1, 5000)], "nobody": 91, "bob": 92}
    assert alter(node, ScramCredentialDeletion(name="eve", mechanism=1)) == {"eve": 0}
    node.restart()
    assert users_of(node) == {"bob": [(2, 8192)]}


def test_what_is_wrong_with_a_user_is_told_and_keeps_no_other_from_their_change(node: BrokerInProcess) -> None:
    assert alter(
        node,
        upsertion(""),
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16385),
        upsertion("strange", mechanism=3),
        upsertion("saltless", salt=b""),
        upsertion("twice"),
        ScramCredentialDeletion(name="twice", mechanism=1),
        ScramCredentialDeletion(name="nobody", mechanism=1),
        upsertion("good"),
    ) == {"": 93, "few": 93, "many": 93, "strange": 33, "saltless": 93, "twice": 92, "nobody": 91, "good": 0}
    assert users_of(node) == {"good": [(1, 4096)]}


def test_changes_are_told_in_the_log_without_keys(node: BrokerInProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        alter(node, upsertion("eve"))
        create(node, creation())
    told = [(entry["event"], entry["principal"], entry["name"], entry["detail"]) for entry in audited(caplog)]
    assert told[0] == ("changed", "User:admin", "eve", "set its SCRAM-SHA-256 credential")
    assert told[1][:3] == ("changed", "User:admin", "tea")
    assert told[1][3].startswith("added ALLOW READ to User:eve")
    assert "stored_key" not in caplog.text


def test_secrets_in_settings_are_shown_to_nobody(tmp_path: Path) -> None:
    secret = {
        "listener.name.in.plain.sasl.jaas.config": 'PlainLoginModule required user_eve="hidden";',
        "ssl.key.password": "hidden",
    }
    node = BrokerInProcess(tmp_path / "data", secret)
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)],
        include_synonyms=True,
    )
    (result,) = node.call(request, 4).results
    shown = {config.name: config for config in result.configs}
    assert "hidden" not in repr(result)
    assert all(shown[name].is_sensitive and shown[name].value is None for name in secret)
    node.broker.stop(clean=False)


def test_users_acls_and_quotas_of_apache_kafka_are_taken_over() -> None:
    user = UserScramCredentialRecord(
        name="eve", mechanism=1, salt=b"s", stored_key=b"a", server_key=b"b", iterations=4096
    )
    kept = AccessControlEntryRecord(
        resource_type=2, resource_name="tea", pattern_type=3, principal="User:eve", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    strange = AccessControlEntryRecord(resource_type=99, resource_name="x", principal="User:eve", host="*")
    image = Image(
        scram={ScramCredentialKey("eve", 1): user, ScramCredentialKey("new", 9): user},
        acls={UUID(int=1): kept, UUID(int=2): strange},
        quotas={(("client-id", None), ("user", "eve")): {"producer_byte_rate": 5.0}},
    )
    draft = MetadataDraft(None, NodeFacts())
    _adopt_others(draft, image)
    taken_over = draft.led_by(NodeId(1), uuid4(), {})
    assert list(taken_over.scram) == [ScramCredentialKey("eve", 1)]
    assert [record.resource_name for record in taken_over.acls.values()] == ["tea"]
    assert taken_over.quotas == {(("client-id", None), ("user", "eve")): {"producer_byte_rate": 5.0}}


def test_there_is_one_decision_for_each_name_however_many_partitions_are_asked_for(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []
    decide = AclAuthorizer._decide

    def counted(self: AclAuthorizer, principal: str, host: str, operation: Any, resource: Any, name: str) -> Any:
        decided.append(name)
        return decide(self, principal, host, operation, resource, name)

    monkeypatch.setattr(AclAuthorizer, "_decide", counted)
    node.create("wide", partitions=50)
    node.call(CreateAclsRequest(creations=[creation("wide"), creation("tea")]), 3)
    node.peer = EVE
    decided.clear()
    topics = [
        FetchTopic(
            topic=name, partitions=[FetchPartition(partition=place, partition_max_bytes=1) for place in range(50)]
        )
        for name in ("wide", "milk")
    ]
    for _ in range(3):
        answer = node.call(FetchRequest(max_wait_ms=0, max_bytes=1, topics=topics, session_epoch=-1), 12)
        codes = {topic.topic: {each.error_code for each in topic.partitions} for topic in answer.responses}
        assert codes == {"wide": {0}, "milk": {29}}
    assert sorted(decided) == ["milk", "wide"]
    node.peer = ADMIN
    node.call(CreateAclsRequest(creations=[creation("milk")]), 3)
    node.peer = EVE
    decided.clear()
    answer = node.call(FetchRequest(max_wait_ms=0, max_bytes=1, topics=topics[1:], session_epoch=-1), 12)
    assert answer.responses[0].partitions[0].error_code == 0, "a change counts at once"
    assert decided == ["milk"]


SECURITY_FILES = {Path(module.__file__ or "") for module in (acl, audit, authorization, quota_rules, quotas)}


def called(work: Callable[[], object]) -> set[str]:
    """Functions of ACLs, quotas and the audit log that the work calls."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename) in SECURITY_FILES:
            found.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def produce_and_fetch(node: BrokerInProcess) -> None:
    assert node.produce("wide", [b"x"]).error_code == 0
    partitions = [FetchPartition(partition=place, partition_max_bytes=1) for place in range(50)]
    topics = [FetchTopic(topic="wide", partitions=partitions)]
    answer = node.call(FetchRequest(max_wait_ms=0, max_bytes=1, topics=topics, session_epoch=-1), 12)
    assert {each.error_code for topic in answer.responses for each in topic.partitions} == {0}


def test_without_an_authorizer_and_quotas_nothing_of_them_is_called(tmp_path: Path, node: BrokerInProcess) -> None:
    without = BrokerInProcess(tmp_path / "open", {"log.cleaner.enable": "false"})
    for each in (without, node):
        each.create("wide", partitions=50)
        produce_and_fetch(each)
    assert called(lambda: produce_and_fetch(without)) == set()
    assert "AclAuthorizer.allows" in called(lambda: produce_and_fetch(node)), "with one it is seen"
    without.broker.stop(clean=False)
