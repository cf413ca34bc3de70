"""Settings, features, producer ids, quotas, SCRAM credentials and ACLs."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.controller.image import ScramCredentialKey
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.cluster_metadata import (
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from oncelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.security.acl import Operation, Resource
from tests.unit.controller.rig import Asker, Rig

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.start(1, 2)
    made.create("orders", [1, 2])
    return made


def alter(rig: Rig, kind: int, name: str, *changes: tuple[str, int, str | None], who: Asker | None = None) -> int:
    configs = [IncrementalConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = IncrementalResource(resource_type=kind, resource_name=name, configs=configs)
    code: int = rig.ask(IncrementalAlterConfigsRequest(resources=[resource]), who).responses[0].error_code
    return code


def config(kind: int, name: str, key: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def test_settings_of_a_topic_change_one_by_one(rig: Rig) -> None:
    assert alter(rig, TOPIC, "orders", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")) == 0
    assert rig.last == [
        config(TOPIC, "orders", "retention.ms", "5"),
        config(TOPIC, "orders", "cleanup.policy", "delete,compact"),
    ]
    assert alter(rig, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", SET, "5")) == 0
    assert rig.last == [config(TOPIC, "orders", "cleanup.policy", "compact")]
    assert alter(rig, TOPIC, "orders", ("retention.ms", DELETE, None)) == 0
    assert rig.image.topic_settings("orders") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "orders", ("no.such.key", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "nowhere", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "1", ("min.insync.replicas", SET, "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "", ("min.insync.replicas", DELETE, None), ErrorCode.INVALID_CONFIG),
        (99, "x", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_settings_that_are_refused(
    rig: Rig, kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    assert alter(rig, kind, name, change) == code
    assert rig.last == []


def test_settings_of_brokers_are_written_even_if_they_do_not_change(rig: Rig) -> None:
    for _ in range(2):
        assert alter(rig, BROKER, "", ("log.retention.ms", SET, "9")) == 0
        assert rig.last == [config(BROKER, "", "log.retention.ms", "9")]


def test_the_elr_is_forgotten_with_another_minimum(rig: Rig) -> None:
    alter(rig, TOPIC, "orders", ("min.insync.replicas", SET, "2"))
    assert rig.last == [config(TOPIC, "orders", "min.insync.replicas", "2"), ClearElrRecord(topic_name="orders")]
    alter(rig, BROKER, "", ("min.insync.replicas", SET, "2"))
    assert rig.last == [config(BROKER, "", "min.insync.replicas", "2"), ClearElrRecord()]


def test_all_settings_are_replaced_and_what_is_not_named_goes(rig: Rig) -> None:
    alter(rig, TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.bytes", SET, "2000000"))
    wanted = AlterConfigsResource(
        resource_type=TOPIC, resource_name="orders", configs=[AlterableConfig(name="retention.ms", value="6")]
    )
    assert rig.ask(AlterConfigsRequest(resources=[wanted])).responses[0].error_code == 0
    assert rig.last == [config(TOPIC, "orders", "retention.ms", "6"), config(TOPIC, "orders", "segment.bytes", None)]
    answers = rig.ask(AlterConfigsRequest(resources=[wanted, wanted])).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST]
    rig.ask(AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=TOPIC, resource_name="orders")],
                                validate_only=True))  # fmt: skip
    assert rig.last == []


def test_who_may_alter_settings(rig: Rig) -> None:
    who = Asker(allowed=frozenset({(Operation.ALTER_CONFIGS, Resource.TOPIC, "orders")}))
    assert alter(rig, TOPIC, "orders", ("retention.ms", SET, "5"), who=who) == 0
    assert alter(rig, TOPIC, "other", ("retention.ms", SET, "5"), who=who) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert alter(rig, BROKER, "", ("log.retention.ms", SET, "5"), who=who) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert alter(rig, GROUP, "g", ("consumer.x", SET, "5"), who=who) == ErrorCode.GROUP_AUTHORIZATION_FAILED


def update(rig: Rig, feature: str, level: int, upgrade_type: int = 1) -> int:
    key = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
    code: int = rig.ask(UpdateFeaturesRequest(feature_updates=[key])).error_code
    return code


def test_features_go_up_and_down_as_far_as_all_nodes_support_them(rig: Rig) -> None:
    refused = ErrorCode.INVALID_UPDATE_VERSION
    assert update(rig, "transaction.version", 1) == refused
    assert update(rig, "transaction.version", 1, 2) == 0
    assert rig.last == [FeatureLevelRecord(name="transaction.version", feature_level=1)]
    assert update(rig, "transaction.version", 2, 2) == refused
    assert update(rig, "transaction.version", 3) == refused
    assert update(rig, "transaction.version", 0, 7) == refused
    assert update(rig, "metadata.version", 29, 2) == refused
    assert update(rig, "metadata.version", 31) == refused
    assert update(rig, "group.version", 1) == refused
    assert update(rig, "kraft.version", 0, 2) == refused
    assert update(rig, "kraft.version", 1) == 0


def test_elr_comes_with_one_minimum_for_all_brokers() -> None:
    """KAFKA-16540: brokers that know different minimums would not agree on what is committed."""
    rig = Rig(elr=False, min_insync_replicas="2")
    rig.start(1)
    alter(rig, BROKER, "1", ("min.insync.replicas", SET, "1"))
    assert update(rig, "eligible.leader.replicas.version", 1) == 0
    assert rig.last == [
        config(BROKER, "", "min.insync.replicas", "2"),
        config(BROKER, "1", "min.insync.replicas", None),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1),
    ]


def test_blocks_of_producer_ids_do_not_overlap(rig: Rig) -> None:
    answers = [
        rig.ask(AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=rig.epochs[broker_id]))
        for broker_id in (1, 2, 1)
    ]
    assert [(each.producer_id_start, each.producer_id_len) for each in answers] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert rig.last == [ProducerIdsRecord(broker_id=1, broker_epoch=rig.epochs[1], next_producer_id=3000)]
    with pytest.raises(KafkaError):
        rig.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=rig.epochs[1] + 1))


def quota(rig: Rig, user: str | None, key: str, value: float | None, kind: str = "user", **fields: Any) -> int:
    entity = [EntityData(entity_type=kind, entity_name=user)]
    entry = EntryData(entity=entity, ops=[OpData(key=key, value=value or 0, remove=value is None)])
    code: int = rig.ask(AlterClientQuotasRequest(entries=[entry], **fields)).entries[0].error_code
    return code


def test_quotas(rig: Rig) -> None:
    assert quota(rig, "alice", "producer_byte_rate", 100.0) == 0
    (record,) = rig.last
    assert isinstance(record, ClientQuotaRecord) and (record.value, record.remove) == (100.0, False)
    assert quota(rig, "alice", "producer_byte_rate", 100.0) == 0
    assert rig.last == []
    assert rig.image.quotas == {(("user", "alice"),): {"producer_byte_rate": 100.0}}
    assert quota(rig, "alice", "producer_byte_rate", -1.0) == ErrorCode.INVALID_REQUEST
    assert quota(rig, "alice", "nonsense", 1.0) == ErrorCode.INVALID_REQUEST
    assert quota(rig, "alice", "producer_byte_rate", 1.0, kind="planet") == ErrorCode.INVALID_REQUEST
    assert quota(rig, "alice", "producer_byte_rate", None, validate_only=True) == 0
    assert rig.last == []
    assert quota(rig, "alice", "producer_byte_rate", None) == 0
    assert rig.image.quotas == {}
    assert quota(rig, "alice", "nonsense", None) == 0
    assert rig.last == []


def test_a_quota_is_changed_once_in_a_request(rig: Rig) -> None:
    ops = [OpData(key="producer_byte_rate", value=1.0), OpData(key="producer_byte_rate", value=0.0, remove=True)]
    entry = EntryData(entity=[EntityData(entity_type="user", entity_name="alice")], ops=ops)
    answer = rig.ask(AlterClientQuotasRequest(entries=[entry]))
    assert answer.entries[0].error_code == ErrorCode.INVALID_REQUEST
    assert rig.last == []


def test_scram_credentials(rig: Rig) -> None:
    good = ScramCredentialUpsertion(name="alice", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
    weak = ScramCredentialUpsertion(name="bob", mechanism=1, iterations=1, salt=b"s", salted_password=b"p")
    absent = ScramCredentialDeletion(name="carol", mechanism=2)
    answer = rig.ask(AlterUserScramCredentialsRequest(deletions=[absent], upsertions=[good, weak]))
    assert {each.user: each.error_code for each in answer.results} == {
        "carol": ErrorCode.RESOURCE_NOT_FOUND, "alice": 0, "bob": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }  # fmt: skip
    stored = rig.image.scram[ScramCredentialKey("alice", 1)]
    assert stored.iterations == 4096 and stored.stored_key != b"p"
    both = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="alice", mechanism=1)], upsertions=[good]
    )
    assert rig.ask(both).results[0].error_code == ErrorCode.DUPLICATE_RESOURCE
    rig.ask(AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="alice", mechanism=1)]))
    assert rig.image.scram == {}


def test_acls(rig: Rig) -> None:
    def acl(name: str, **fields: Any) -> AclCreation:
        values = {"resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:alice",
                  "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
        return AclCreation(**(values | fields))

    creations = [acl("a"), acl("a"), acl("b"), acl("c", principal="alice"), acl("d", operation=99)]
    answer = rig.ask(CreateAclsRequest(creations=creations))
    bad = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in answer.results] == [0, 0, 0, bad, bad]
    assert len(rig.last) == len(rig.image.acls) == 2
    rig.ask(CreateAclsRequest(creations=[acl("a")]))
    assert rig.last == []
    wanted = DeleteAclsFilter(resource_type_filter=2, resource_name_filter="a", pattern_type_filter=3,
                              principal_filter=None, host_filter=None, operation=1, permission_type=1)  # fmt: skip
    answer = rig.ask(DeleteAclsRequest(filters=[wanted, wanted]))
    assert [len(each.matching_acls) for each in answer.filter_results] == [1, 1]
    assert [record.resource_name for record in rig.image.acls.values()] == ["b"]
