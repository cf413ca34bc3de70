"""Every handler asks before it looks: what it asks, and what a client is told that may do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NULL_UUID
from oncelog.protocol.api import messages
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Field, Message
from oncelog.server.authorization import Operation, Resource
from tests.unit.server.harness import BrokerInProcess, batch_of

TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, ID_REFUSED, TOKENS_REFUSED = 29, 30, 31, 53, 64
CLUSTER = "kafka-cluster"
NOTHING_ASKED = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
TRANSACTIONAL = {"producer_id": 7, "producer_epoch": 0, "transactional": True}


class Recorder:
    """Allows what it was told to allow, and remembers what it was asked."""

    restricts_clients = True

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Operation, Resource, str]] = []

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        assert (principal, host) == ("User:ANONYMOUS", "127.0.0.1")
        self.asked.append((operation, resource, name))
        return (operation, resource) in self.allowed

    def allows_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return (operation, resource) in self.allowed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    node = BrokerInProcess(tmp_path / "data", {"log.cleaner.enable": "false"})
    node.create("t")
    yield node
    node.broker.stop(clean=False)


def build(cls: type[Message], values: dict[str, Any]) -> Any:
    return cls(**{name: convert(cls.FIELDS[name], value) for name, value in values.items()})


def convert(field: Field, value: Any) -> Any:
    if isinstance(value, list):
        element = field.element
        if element is not None and element.struct is not None:
            return [build(element.struct, each) for each in value]
        return value
    return build(field.struct, value) if field.struct is not None and isinstance(value, dict) else value


def codes_in(message: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(message, list):
        return {code for each in message for code in codes_in(each)}
    if not isinstance(message, Message):
        return set()
    found = {getattr(message, name) for name in message.FIELDS if name in ("error_code", "partition_error_code")}
    return found.union(*(codes_in(getattr(message, name)) for name in message.FIELDS))


PARTITION = [{"name": "t", "partitions": [{"partition_index": 0}]}]
REFUSED = {
    # key: version, request, what is asked when everything is refused, and the codes of the answer
    ApiKey.PRODUCE: (
        9,
        {
            "acks": -1,
            "topic_data": [
                {"name": "t", "partition_data": [{"index": 0, "records": batch_of([b"a"], timestamp_ms=0)}]}
            ],
        },
        [(Operation.WRITE, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.FETCH: (
        12,
        {"max_bytes": 100, "topics": [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 100}]}]},
        [(Operation.READ, Resource.TOPIC, "t")],
        {0, TOPIC_REFUSED},
    ),
    ApiKey.LIST_OFFSETS: (7, {"topics": PARTITION}, [(Operation.DESCRIBE, Resource.TOPIC, "t")], {TOPIC_REFUSED}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        4,
        {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]},
        [(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER), (Operation.DESCRIBE, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.METADATA: (12, {"topics": [{"name": "t"}]}, [(Operation.DESCRIBE, Resource.TOPIC, "t")], {0, TOPIC_REFUSED}),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        0,
        {"topics": [{"name": "t"}], "response_partition_limit": 9},
        None,
        {TOPIC_REFUSED},
    ),
    ApiKey.FIND_COORDINATOR: (
        4,
        {"key_type": 0, "coordinator_keys": ["g"]},
        [(Operation.DESCRIBE, Resource.GROUP, "g")],
        {0, GROUP_REFUSED},
    ),
    ApiKey.JOIN_GROUP: (5, {"group_id": "g"}, [(Operation.READ, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.SYNC_GROUP: (3, {"group_id": "g"}, [(Operation.READ, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.HEARTBEAT: (3, {"group_id": "g"}, [(Operation.READ, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.LEAVE_GROUP: (3, {"group_id": "g"}, [(Operation.READ, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, {"group_id": "g"}, [(Operation.READ, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.OFFSET_COMMIT: (
        8,
        {"group_id": "g", "topics": PARTITION},
        [(Operation.READ, Resource.GROUP, "g")],
        {GROUP_REFUSED},
    ),
    ApiKey.OFFSET_FETCH: (
        8,
        {"groups": [{"group_id": "g", "topics": None}]},
        [(Operation.DESCRIBE, Resource.GROUP, "g")],
        {0, GROUP_REFUSED},
    ),
    ApiKey.OFFSET_DELETE: (
        0,
        {"group_id": "g", "topics": PARTITION},
        [(Operation.DELETE, Resource.GROUP, "g")],
        {GROUP_REFUSED},
    ),
    ApiKey.DESCRIBE_GROUPS: (5, {"groups": ["g"]}, [(Operation.DESCRIBE, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.LIST_GROUPS: (4, {}, [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)], {0}),
    ApiKey.DELETE_GROUPS: (2, {"groups_names": ["g"]}, [(Operation.DELETE, Resource.GROUP, "g")], {GROUP_REFUSED}),
    ApiKey.INIT_PRODUCER_ID: (
        4,
        {"transactional_id": "x", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
        [(Operation.WRITE, Resource.TRANSACTIONAL_ID, "x")],
        {ID_REFUSED},
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        3,
        {"v3_and_below_transactional_id": "x", "v3_and_below_topics": [{"name": "t", "partitions": [0]}]},
        [(Operation.WRITE, Resource.TRANSACTIONAL_ID, "x")],
        {0, ID_REFUSED},
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        3,
        {"transactional_id": "x", "group_id": "g"},
        [(Operation.WRITE, Resource.TRANSACTIONAL_ID, "x")],
        {ID_REFUSED},
    ),
    ApiKey.END_TXN: (3, {"transactional_id": "x"}, [(Operation.WRITE, Resource.TRANSACTIONAL_ID, "x")], {ID_REFUSED}),
    ApiKey.TXN_OFFSET_COMMIT: (
        3,
        {"transactional_id": "x", "group_id": "g", "topics": PARTITION},
        [(Operation.WRITE, Resource.TRANSACTIONAL_ID, "x")],
        {ID_REFUSED},
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        1,
        {"markers": [{"producer_id": 1, "topics": [{"name": "t", "partition_indexes": [0]}]}]},
        [(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        0,
        {"transactional_ids": ["x"]},
        [(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "x")],
        {ID_REFUSED},
    ),
    ApiKey.LIST_TRANSACTIONS: (0, {}, [], {0}),
    ApiKey.DESCRIBE_LOG_DIRS: (
        4,
        {"topics": None},
        [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        2,
        {"dirs": [{"path": "/d", "topics": [{"name": "t", "partitions": [0]}]}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (3, {}, [], {TOKENS_REFUSED}),
    ApiKey.RENEW_DELEGATION_TOKEN: (2, {}, [], {TOKENS_REFUSED}),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (2, {}, [], {TOKENS_REFUSED}),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (3, {}, [], {TOKENS_REFUSED}),
    ApiKey.ELECT_LEADERS: (
        2,
        {"topic_partitions": [{"topic": "t", "partitions": [0]}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        1,
        {"topics": PARTITION},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        0,
        {"topics": [{"name": "t", "partition_indexes": [0]}]},
        [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        1,
        {"group_ids": ["g"]},
        [(Operation.DESCRIBE, Resource.GROUP, "g")],
        {GROUP_REFUSED},
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        0,
        {"topics": [{"name": "t", "partition_indexes": [0]}]},
        [(Operation.READ, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (1, {}, [(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER)], {CLUSTER_REFUSED}),
    ApiKey.CREATE_TOPICS: (
        5,
        {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        [(Operation.CREATE, Resource.CLUSTER, CLUSTER), (Operation.CREATE, Resource.TOPIC, "new")],
        {TOPIC_REFUSED},
    ),
    ApiKey.DELETE_TOPICS: (
        5,
        {"topic_names": ["t"]},
        [(Operation.DELETE, Resource.CLUSTER, CLUSTER), (Operation.DELETE, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.CREATE_PARTITIONS: (
        2,
        {"topics": [{"name": "t", "count": 2}]},
        [(Operation.ALTER, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.DELETE_RECORDS: (2, {"topics": PARTITION}, [(Operation.DELETE, Resource.TOPIC, "t")], {TOPIC_REFUSED}),
    ApiKey.DESCRIBE_CONFIGS: (
        4,
        {"resources": [{"resource_type": 2, "resource_name": "t"}, {"resource_type": 4, "resource_name": "1"}]},
        [(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "t"), (Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER)],
        {TOPIC_REFUSED, CLUSTER_REFUSED},
    ),
    ApiKey.ALTER_CONFIGS: (
        2,
        {"resources": [{"resource_type": 2, "resource_name": "t"}]},
        [(Operation.ALTER_CONFIGS, Resource.TOPIC, "t")],
        {TOPIC_REFUSED},
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        1,
        {"resources": [{"resource_type": 4, "resource_name": "1"}]},
        [(Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.DESCRIBE_QUORUM: (
        2,
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.UPDATE_FEATURES: (
        1,
        {"feature_updates": [{"feature": "transaction.version", "max_version_level": 1}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.UNREGISTER_BROKER: (0, {"broker_id": 1}, [(Operation.ALTER, Resource.CLUSTER, CLUSTER)], {CLUSTER_REFUSED}),
    ApiKey.ADD_RAFT_VOTER: (0, {"voter_id": 1}, [(Operation.ALTER, Resource.CLUSTER, CLUSTER)], {CLUSTER_REFUSED}),
    ApiKey.REMOVE_RAFT_VOTER: (0, {"voter_id": 1}, [(Operation.ALTER, Resource.CLUSTER, CLUSTER)], {CLUSTER_REFUSED}),
    ApiKey.DESCRIBE_ACLS: (3, {}, [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)], {CLUSTER_REFUSED}),
    ApiKey.CREATE_ACLS: (
        3,
        {"creations": [{"resource_name": "t"}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.DELETE_ACLS: (
        3,
        {"filters": [{"resource_name_filter": "t"}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        1,
        {},
        [(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        1,
        {"entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}]}]},
        [(Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        0,
        {"users": None},
        [(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        0,
        {"deletions": [{"name": "eve", "mechanism": 1}]},
        [(Operation.ALTER, Resource.CLUSTER, CLUSTER)],
        {CLUSTER_REFUSED},
    ),
}


def test_there_is_a_case_for_every_handler(node: BrokerInProcess) -> None:
    assert set(node.broker.dispatcher.versions) == REFUSED.keys() | NOTHING_ASKED


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_a_client_that_may_do_nothing_is_told_so(node: BrokerInProcess, key: ApiKey) -> None:
    version, values, asked, codes = REFUSED[key]
    node.broker.authorizer = authorizer = Recorder()
    before = dict(node.broker.metadata.topics)
    answer = node.call(build(messages(key).request, values), version)
    assert codes_in(answer) == codes
    if asked is not None:
        assert authorizer.asked == asked
    assert node.broker.metadata.topics == before


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_a_refusal_does_not_tell_what_exists(node: BrokerInProcess, key: ApiKey) -> None:
    version, values, _, _ = REFUSED[key]
    node.broker.authorizer = Recorder()
    request = build(messages(key).request, values)
    with_topic = node.call(request, version)
    node.delete("t")
    assert node.call(build(messages(key).request, values), version) == with_topic


def call(node: BrokerInProcess, key: ApiKey, version: int, *allowed: tuple[Operation, Resource], **values: Any) -> Any:
    node.broker.authorizer = Recorder(*allowed)
    return node.call(build(messages(key).request, values), version)


def test_topics_that_may_not_be_described_are_left_out_of_a_list(node: BrokerInProcess) -> None:
    assert call(node, ApiKey.METADATA, 12, topics=None).topics == []
    assert call(node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, response_partition_limit=9).topics == []
    assert len(call(node, ApiKey.METADATA, 12, (Operation.DESCRIBE, Resource.TOPIC), topics=None).topics) == 1


def test_metadata_by_id_of_a_topic_that_may_not_be_described_has_no_name(node: BrokerInProcess) -> None:
    (topic,) = call(node, ApiKey.METADATA, 12, topics=[{"topic_id": node.topic_id("t"), "name": None}]).topics
    assert (topic.error_code, topic.name) == (TOPIC_REFUSED, None)


@pytest.mark.parametrize("allowed", [(Operation.CREATE, Resource.TOPIC), (Operation.CREATE, Resource.CLUSTER), None])
def test_a_topic_is_made_for_a_client_that_may_create_it(
    node: BrokerInProcess, allowed: tuple[Operation, Resource] | None
) -> None:
    rights = [(Operation.DESCRIBE, Resource.TOPIC)] + ([allowed] if allowed else [])
    topics = [{"name": "new"}]
    (topic,) = call(node, ApiKey.METADATA, 12, *rights, topics=topics, allow_auto_topic_creation=True).topics
    assert topic.error_code == (ErrorCode.NONE if allowed else TOPIC_REFUSED)
    assert ("new" in node.broker.metadata.topics) == bool(allowed)


def test_a_transactional_batch_needs_its_id_first(node: BrokerInProcess) -> None:
    node.broker.authorizer = Recorder((Operation.WRITE, Resource.TOPIC))
    refused = node.produce("t", [b"a"], transactional_id="x", version=11, **TRANSACTIONAL)
    assert refused.error_code == ID_REFUSED


@pytest.mark.parametrize(
    "allowed", [(Operation.WRITE, Resource.TOPIC), (Operation.IDEMPOTENT_WRITE, Resource.CLUSTER), None]
)
def test_an_idempotent_producer_needs_one_topic_or_the_cluster(
    node: BrokerInProcess, allowed: tuple[Operation, Resource] | None
) -> None:
    rights = [allowed] if allowed else []
    fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    answer = call(node, ApiKey.INIT_PRODUCER_ID, 4, *rights, **fields)
    assert answer.error_code == (ErrorCode.NONE if allowed else CLUSTER_REFUSED)


def test_one_forbidden_partition_keeps_the_others_out_of_a_transaction(node: BrokerInProcess) -> None:
    topics = [{"name": "t", "partitions": [0]}, {"name": "other", "partitions": [0]}]
    answer = call(
        node,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        (Operation.WRITE, Resource.TRANSACTIONAL_ID),
        v3_and_below_transactional_id="x",
        v3_and_below_topics=topics,
    )
    assert codes_in(answer) == {0, TOPIC_REFUSED}
    broker = {"transactional_id": "x", "topics": topics}
    assert call(node, ApiKey.ADD_PARTITIONS_TO_TXN, 4, transactions=[broker]).error_code == CLUSTER_REFUSED


def test_groups_and_transactions_that_may_not_be_described_are_left_out_of_lists(node: BrokerInProcess) -> None:
    node.call(build(messages(ApiKey.OFFSET_COMMIT).request, {"group_id": "g", "generation_id_or_member_epoch": -1,
                                                             "topics": PARTITION}), 8)  # fmt: skip
    init = {"transactional_id": "x", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    node.call(build(messages(ApiKey.INIT_PRODUCER_ID).request, init), 4)
    assert call(node, ApiKey.LIST_GROUPS, 4).groups == []
    assert len(call(node, ApiKey.LIST_GROUPS, 4, (Operation.DESCRIBE, Resource.CLUSTER)).groups) == 1
    assert len(call(node, ApiKey.LIST_GROUPS, 4, (Operation.DESCRIBE, Resource.GROUP)).groups) == 1
    assert call(node, ApiKey.LIST_TRANSACTIONS, 0).transaction_states == []
    assert (
        len(call(node, ApiKey.LIST_TRANSACTIONS, 0, (Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)).transaction_states)
        == 1
    )


def test_offsets_of_topics_that_may_not_be_described_are_not_shown(node: BrokerInProcess) -> None:
    node.call(build(messages(ApiKey.OFFSET_COMMIT).request, {"group_id": "g", "generation_id_or_member_epoch": -1,
                                                             "topics": PARTITION}), 8)  # fmt: skip
    rights = (Operation.DESCRIBE, Resource.GROUP)
    everything = call(node, ApiKey.OFFSET_FETCH, 8, rights, groups=[{"group_id": "g", "topics": None}])
    assert everything.groups[0].topics == []
    named = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]
    assert codes_in(call(node, ApiKey.OFFSET_FETCH, 8, rights, groups=named)) == {0, TOPIC_REFUSED}


def test_a_new_topic_is_described_to_those_who_may_see_its_settings(node: BrokerInProcess) -> None:
    wanted = [{"name": "new", "num_partitions": 2, "replication_factor": 1}]
    (made,) = call(node, ApiKey.CREATE_TOPICS, 5, (Operation.CREATE, Resource.TOPIC), topics=wanted).topics
    assert (made.error_code, made.num_partitions, made.configs) == (ErrorCode.NONE, -1, None)
    assert made.topic_config_error_code == TOPIC_REFUSED


def test_authorized_operations_are_those_that_are_allowed(node: BrokerInProcess) -> None:
    rights = [
        (Operation.DESCRIBE, Resource.TOPIC),
        (Operation.READ, Resource.TOPIC),
        (Operation.ALTER, Resource.CLUSTER),
    ]
    answer = call(
        node, ApiKey.METADATA, 9, *rights, topics=[{"name": "t"}],
        include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
    )  # fmt: skip
    assert answer.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE | 1 << Operation.READ
    assert answer.cluster_authorized_operations == 0, "it may not describe the cluster"
    assert answer.topics[0].topic_id == NULL_UUID, "version 9 has no ids"
    rights.append((Operation.DESCRIBE, Resource.CLUSTER))
    answer = call(node, ApiKey.METADATA, 9, *rights, topics=[], include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE


@pytest.mark.parametrize(
    ("key", "operation"),
    [
        (ApiKey.DESCRIBE_CONFIGS, Operation.DESCRIBE_CONFIGS),
        (ApiKey.ALTER_CONFIGS, Operation.ALTER_CONFIGS),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, Operation.ALTER_CONFIGS),
    ],
)
def test_settings_of_groups_are_a_matter_of_the_group(node: BrokerInProcess, key: ApiKey, operation: Operation) -> None:
    group = {"resources": [{"resource_type": 32, "resource_name": "g"}]}
    assert codes_in(call(node, key, 1, (operation, Resource.CLUSTER), **group)) == {GROUP_REFUSED}
    assert codes_in(call(node, key, 1, (operation, Resource.GROUP), **group)) == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(("version", "field"), [(12, "replica_id"), (15, "replica_state")])
def test_who_fetches_as_a_replica_needs_cluster_action(node: BrokerInProcess, version: int, field: str) -> None:
    node.produce("t", [b"a"])
    partitions = [{"partition": 0, "partition_max_bytes": 100}]
    request = {
        "max_bytes": 100,
        "topics": [{"topic": "t", "topic_id": node.topic_id("t"), "partitions": partitions}],
        field: 7 if field == "replica_id" else {"replica_id": 7},
    }
    read, action = (Operation.READ, Resource.TOPIC), (Operation.CLUSTER_ACTION, Resource.CLUSTER)
    assert codes_in(call(node, ApiKey.FETCH, version, read, **request)) == {0, TOPIC_REFUSED}
    assert codes_in(call(node, ApiKey.FETCH, version, action, **request)) == {0, ErrorCode.NOT_LEADER_OR_FOLLOWER}
