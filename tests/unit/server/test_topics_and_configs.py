from __future__ import annotations

import errno
import uuid
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages import incremental_alter_configs as incremental
from oncelog.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from oncelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.server.harness import BrokerInProcess

TOPIC, BROKER = 2, 4


def create(node: BrokerInProcess, name: str, partitions: int = 1, factor: int = 1, **extra: Any) -> Any:
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in extra.pop("configs", {}).items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=configs, **extra)
    return node.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics[0]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("orders", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("under_score", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("new", {"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("new", {"factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"configs": {"retention.msec": "1"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"cleanup.policy": "burn"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"configs": {"segment.bytes": "10"}}, ErrorCode.INVALID_CONFIG),
        ("new", {"assignments": [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]},
         ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_a_topic_that_cannot_be_made_says_why(
    node: BrokerInProcess, name: str, options: dict[str, Any], code: ErrorCode
) -> None:
    create(node, "orders")
    create(node, "under.score")
    answer = create(node, name, **options)
    assert ErrorCode(answer.error_code) is code
    assert answer.error_message
    assert set(node.broker.metadata.topics) == {"orders", "under.score"}


def test_defaults_manual_assignments_and_the_described_settings(node: BrokerInProcess) -> None:
    answer = create(node, "defaults", -1, -1, configs={"retention.ms": "1000"})
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 1, 1)
    configs = {config.name: (config.value, config.config_source) for config in answer.configs}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["segment.bytes"] == ("1073741824", 5)
    assert "internal.segment.bytes" not in configs
    assigned = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in range(3)]
    assert create(node, "manual", -1, -1, assignments=assigned).num_partitions == 3
    wrong = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])]
    assert create(node, "wrong", -1, -1, assignments=wrong).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_validate_only_makes_nothing(node: BrokerInProcess) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="maybe", num_partitions=1, replication_factor=1)], validate_only=True
    )
    assert node.call(request, 7).topics[0].error_code == 0
    assert "maybe" not in node.broker.metadata.topics


def test_a_topic_named_twice_in_one_request_is_refused(node: BrokerInProcess) -> None:
    topics = [CreatableTopic(name="twin", num_partitions=1, replication_factor=1) for _ in range(2)]
    codes = [topic.error_code for topic in node.call(CreateTopicsRequest(topics=topics), 7).topics]
    assert codes == [ErrorCode.INVALID_REQUEST]


def test_a_topic_to_be_deleted_twice_in_one_request_stays(node: BrokerInProcess) -> None:
    create(node, "orders")
    by_name = node.call(DeleteTopicsRequest(topic_names=["orders", "orders"]), 5).responses
    assert [(topic.name, topic.error_code) for topic in by_name] == [("orders", ErrorCode.INVALID_REQUEST)]
    twice = [DeleteTopicState(name=None, topic_id=node.topic_id("orders")) for _ in range(2)]
    by_id = node.call(DeleteTopicsRequest(topics=twice), 6).responses
    assert [(topic.name, topic.error_code) for topic in by_id] == [(None, ErrorCode.INVALID_REQUEST)]
    assert "orders" in node.broker.metadata.topics


def test_a_topic_made_again_has_a_new_id_and_no_old_records(node: BrokerInProcess) -> None:
    first = create(node, "orders").topic_id
    node.produce("orders", [b"old"])
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]), 6)
    second = create(node, "orders").topic_id
    assert first != second
    assert node.produce("orders", [b"new"]).base_offset == 0
    by_id = node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=first)]), 6).responses[0]
    assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    gone = node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=second)]), 6).responses[0]
    assert (gone.error_code, gone.name) == (0, "orders")
    assert node.call(DeleteTopicsRequest(topic_names=["orders"]), 5).responses[0].error_code == 3


def test_deleted_topics_stay_deleted_and_their_folders_go(node: BrokerInProcess) -> None:
    create(node, "orders", 2)
    node.produce("orders", [b"a"], partition=1)
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]), 6)
    node.clock.advance_ms(120_000)
    assert not [path.name for path in node.folder.iterdir() if path.name.startswith("orders")]
    node.restart(clean=False)
    assert "orders" not in node.broker.metadata.topics


def test_metadata_creates_only_when_allowed_and_answers_by_id(node: BrokerInProcess) -> None:
    def ask(version: int, allow: bool = True, **topic: Any) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(**topic)], allow_auto_topic_creation=allow)
        return node.call(request, version).topics[0]

    assert ask(12, allow=False, name="auto").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(12, name="bad name").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    made = ask(12, name="auto")
    assert (made.error_code, len(made.partitions)) == (0, 1)
    assert ask(12, name=None, topic_id=made.topic_id).name == "auto"
    assert ask(12, name=None, topic_id=uuid.UUID(int=5)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    everything = node.call(MetadataRequest(topics=None), 12)
    assert [topic.name for topic in everything.topics] == ["auto"]
    assert [topic.name for topic in node.call(MetadataRequest(topics=[]), 0).topics] == ["auto"]
    assert node.call(MetadataRequest(topics=[]), 12).topics == []
    often = MetadataRequest(topics=[MetadataRequestTopic(name="auto") for _ in range(3)])
    assert len(node.call(often, 12).topics) == 1
    assert everything.brokers[0].port == 9092


@pytest.mark.parametrize("topic", [{"name": "a", "topic_id": uuid.UUID(int=5)}, {"name": None}])
@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_before_its_version(
    node: BrokerInProcess, version: int, topic: dict[str, Any]
) -> None:
    asked = [MetadataRequestTopic(**topic), MetadataRequestTopic(name="b")]
    answer = node.call(MetadataRequest(topics=asked), version)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert not node.broker.metadata.topics


def test_partitions_can_be_added_but_not_removed(node: BrokerInProcess) -> None:
    create(node, "orders", 2)

    def grow(count: int, name: str = "orders") -> int:
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)])
        return node.call(request, 3).results[0].error_code

    assert [grow(2), grow(1), grow(4)] == [ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_PARTITIONS, 0]
    assert grow(5, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.restart(clean=False)
    assert node.produce("orders", [b"a"], partition=3).base_offset == 0


def test_describing_topic_partitions_in_pages(node: BrokerInProcess) -> None:
    for name in ("b", "a", "c"):
        create(node, name, 2)
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(6):
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=cursor)
        response = node.call(request, 0)
        for topic in response.topics:
            seen += [(topic.name, partition.partition_index) for partition in topic.partitions]
            assert all(partition.eligible_leader_replicas == [] for partition in topic.partitions)
        cursor = response.next_cursor
        if cursor is None:
            break
    assert seen == [(name, index) for name in "abc" for index in range(2)]
    unknown = node.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="zzz")]), 0).topics[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe(node: BrokerInProcess, kind: int, name: str, keys: list[str] | None = None) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return node.call(
        DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True), 4
    ).results[0]


def change(node: BrokerInProcess, kind: int, name: str, *operations: tuple[str, int, str | None]) -> Any:
    resource = incremental.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    return node.call(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]


def value_and_source(node: BrokerInProcess, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (config,) = describe(node, kind, name, [key]).configs
    return config.value, config.config_source


def test_whoever_names_no_key_is_told_all(node: BrokerInProcess) -> None:
    create(node, "orders")
    for kind, name in ((TOPIC, "orders"), (BROKER, "1")):
        every = describe(node, kind, name)
        assert describe(node, kind, name, []) == every
        assert len(describe(node, kind, name, [every.configs[0].name]).configs) == 1


def test_settings_come_from_the_topic_then_the_broker_then_the_default(node: BrokerInProcess) -> None:
    create(node, "orders")
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("604800000", 5)
    assert change(node, BROKER, "", ("log.retention.ms", 0, "7000")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("7000", 3)
    assert change(node, BROKER, "1", ("log.retention.ms", 0, "6000")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("6000", 2)
    assert change(node, TOPIC, "orders", ("retention.ms", 0, "5000")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("5000", 1)
    (config,) = describe(node, TOPIC, "orders", ["retention.ms"]).configs
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("retention.ms", "5000", 1),
        ("log.retention.ms", "6000", 2),
        ("log.retention.ms", "7000", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    node.restart(clean=False)
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("5000", 1)
    assert change(node, TOPIC, "orders", ("retention.ms", 1, None)).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("6000", 2)


def test_list_settings_are_appended_to_and_subtracted_from(node: BrokerInProcess) -> None:
    create(node, "orders")
    assert change(node, TOPIC, "orders", ("cleanup.policy", 2, "compact")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "delete,compact"
    assert change(node, TOPIC, "orders", ("cleanup.policy", 3, "delete")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "compact"
    assert change(node, TOPIC, "orders", ("retention.ms", 2, "5")).error_code == ErrorCode.INVALID_CONFIG
    assert change(node, TOPIC, "orders", ("cleanup.policy", 0, "compact, delete")).error_code == 0
    assert change(node, TOPIC, "orders", ("cleanup.policy", 3, "delete")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "compact"


@pytest.mark.parametrize("name", ["", "1"], ids=["all brokers", "one broker"])
def test_what_a_broker_has_by_default_is_appended_to_and_subtracted_from(node: BrokerInProcess, name: str) -> None:
    create(node, "orders")
    assert change(node, BROKER, name, ("log.cleanup.policy", 2, "compact")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "delete,compact"
    assert change(node, BROKER, name, ("log.cleanup.policy", 3, "compact")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "delete"
    assert change(node, BROKER, name, ("log.cleanup.policy", 1, None)).error_code == 0
    assert change(node, BROKER, name, ("log.cleanup.policy", 3, "compact")).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "cleanup.policy")[0] == "delete"


@pytest.mark.parametrize(
    ("kind", "name", "operations", "code"),
    [
        (TOPIC, "orders", [("retentionms", 0, "5")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", 0, "soon")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", 0, "soon"), ("cleanup.policy", 2, "compact")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", [("retention.ms", 0, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "orders", [("retention.ms", 0, "5"), ("retention.ms", 1, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "nowhere", [("retention.ms", 0, "5")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "9", [("log.retention.ms", 0, "5")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("node.id", 0, "5")], ErrorCode.INVALID_REQUEST),
        (77, "orders", [("retention.ms", 0, "5")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_bad_change_is_refused_with_a_reason_and_changes_nothing(
    node: BrokerInProcess, kind: int, name: str, operations: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    create(node, "orders")
    answer = change(node, kind, name, *operations)
    assert ErrorCode(answer.error_code) is code
    assert answer.error_message
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("604800000", 5)


def test_topics_and_brokers_are_listed_as_what_has_settings(node: BrokerInProcess) -> None:
    node.create("orders", 1)
    node.create("invoices", 1)

    def listed(*kinds: int, version: int = 1) -> set[tuple[int, str]]:
        answer = node.call(ListConfigResourcesRequest(resource_types=list(kinds)), version)
        assert answer.error_code == 0
        return {(found.resource_type, found.resource_name) for found in answer.config_resources}

    topics, brokers = {(TOPIC, "orders"), (TOPIC, "invoices")}, {(BROKER, str(node.broker.node_id))}
    assert listed(TOPIC) == topics
    assert listed(TOPIC, BROKER) == listed() == topics | brokers
    assert listed(version=0) == set()


def test_a_topic_setting_without_effect_is_named_in_the_log_and_when_it_is_described(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    create(node, "orders")
    assert change(node, TOPIC, "orders", ("min.insync.replicas", 0, "2"), ("retention.ms", 0, "5")).error_code == 0
    warned = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert warned == [
        "topic orders: min.insync.replicas has no effect in Oncelog: one node has one replica of everything"
    ]
    (config,) = describe(node, TOPIC, "orders", ["min.insync.replicas"]).configs
    assert config.documentation.endswith("It has no effect in Oncelog: one node has one replica of everything.")


def test_another_spelling_of_a_broker_setting_is_not_changed_while_the_broker_runs(node: BrokerInProcess) -> None:
    hours = AlterableConfig(name="log.retention.hours", value="2")
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[hours])
    answers = [
        node.call(AlterConfigsRequest(resources=[resource]), 2).responses[0],
        change(node, BROKER, "1", ("log.retention.hours", 0, "2")),
    ]
    for answer in answers:
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "did you mean log.retention.ms?" in answer.error_message


RELOGIN = "sasl.kerberos.min.time.before.relogin"


def test_a_key_of_kafka_that_means_nothing_here_is_taken_and_shown_as_without_effect(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    assert describe(node, BROKER, "1", [RELOGIN]).configs == []
    assert change(node, BROKER, "1", (RELOGIN, 0, "58000"), ("num.io.threads", 0, "9")).error_code == 0
    assert f"{RELOGIN} has no effect in Oncelog" in caplog.text
    assert value_and_source(node, BROKER, "1", RELOGIN) == ("58000", 2)
    node.restart(clean=False)
    (config,) = describe(node, BROKER, "1", [RELOGIN]).configs
    assert (config.value, config.read_only) == ("58000", False)
    assert "no effect in Oncelog" in config.documentation
    assert change(node, BROKER, "1", (RELOGIN, 1, None)).error_code == 0
    assert [config.name for config in describe(node, BROKER, "1", [RELOGIN, "num.io.threads"]).configs] == [
        "num.io.threads"
    ]
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name="1",
        configs=[AlterableConfig(name=RELOGIN, value="57000")],
    )
    answer = node.call(AlterConfigsRequest(resources=[resource]), 2).responses[0]
    assert (answer.error_code, value_and_source(node, BROKER, "1", RELOGIN)) == (0, ("57000", 2))


@pytest.mark.parametrize("key", ["controller.quorum.voters", "replica.fetch.max.bytes", "metadata.log.dir"])
def test_a_key_without_effect_that_kafka_does_not_change_while_it_runs_is_refused(
    node: BrokerInProcess, key: str
) -> None:
    answer = change(node, BROKER, "1", (key, 0, "1"))
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUEST
    assert f"Cannot update these configs dynamically: {key}" in answer.error_message


def test_settings_of_tiered_storage_are_taken_as_long_as_they_do_not_ask_for_it(node: BrokerInProcess) -> None:
    create(node, "orders")
    harmless = [("remote.storage.enable", 0, "false"), ("local.retention.ms", 0, "1000")]
    harmless += [("local.retention.bytes", 0, "-2"), ("remote.log.copy.disable", 0, "true")]
    assert change(node, TOPIC, "orders", *harmless).error_code == 0
    assert value_and_source(node, TOPIC, "orders", "local.retention.ms") == ("1000", 1)
    answer = change(node, TOPIC, "orders", ("remote.storage.enable", 0, "true"))
    assert (ErrorCode(answer.error_code), "no tiered storage" in answer.error_message) == (
        ErrorCode.INVALID_CONFIG,
        True,
    )


def test_an_unknown_key_is_answered_with_the_nearest_known_one(node: BrokerInProcess) -> None:
    create(node, "orders")
    assert "did you mean retention.ms?" in change(node, TOPIC, "orders", ("retentionms", 0, "5")).error_message


def test_alter_configs_replaces_everything(node: BrokerInProcess) -> None:
    create(node, "orders", configs={"retention.ms": "1", "segment.ms": "2"})
    resource = AlterConfigsResource(
        resource_type=TOPIC, resource_name="orders", configs=[AlterableConfig(name="retention.ms", value="3")]
    )
    assert node.call(AlterConfigsRequest(resources=[resource]), 2).responses[0].error_code == 0
    assert value_and_source(node, TOPIC, "orders", "retention.ms") == ("3", 1)
    assert value_and_source(node, TOPIC, "orders", "segment.ms")[1] == 5


def test_changed_settings_reach_the_open_log(node: BrokerInProcess) -> None:
    create(node, "orders")
    node.produce("orders", [b"x" * 500])
    change(node, TOPIC, "orders", ("max.message.bytes", 0, "100"))
    assert node.produce("orders", [b"x" * 500]).error_code == ErrorCode.MESSAGE_TOO_LARGE


def delete_records(node: BrokerInProcess, offset: int, topic: str = "orders") -> tuple[int, int]:
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])]
    )
    answer = node.call(request, 2).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def test_delete_records_is_answered_when_the_disk_is_broken(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("orders", internal_segment_bytes="200")
    for number in range(5):
        node.produce("orders", [b"%d" % number * 100])

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        assert delete_records(node, 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert delete_records(node, 4) == (0, 4)


def test_delete_records_frees_a_full_disk_and_is_answered_when_its_new_start_can_be_written(
    node: BrokerInProcess,
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "injected")

    node.create("orders", internal_segment_bytes="200")
    for number in range(5):
        node.produce("orders", [b"%d" % number * 100])
    log = node.broker.partitions.get("orders", 0).log
    failpoints.arm("checkpoint.before_fsync", fail)
    try:
        assert delete_records(node, 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert (log.log_start_offset, log.segments[0].base_offset) == (3, 3)
    finally:
        failpoints.disarm_all()
    assert delete_records(node, 3) == (0, 3)


def test_deleted_records_are_not_back_after_a_kill(node: BrokerInProcess) -> None:
    node.create("orders")
    node.create("others")
    node.produce("orders", [b"1", b"2", b"3"])
    node.produce("others", [b"1"])
    assert delete_records(node, 2) == (0, 2)
    node.restart(clean=False)
    assert node.broker.partitions.get("orders", 0).log.log_start_offset == 2
    assert delete_records(node, -1) == (0, 3)
    node.restart(clean=False)
    log = node.broker.partitions.get("orders", 0).log
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert node.broker.partitions.get("others", 0).log.log_end_offset == 1


def test_delete_records_of_one_partition_does_not_flush_the_others(node: BrokerInProcess) -> None:
    node.create("orders")
    node.create("others")
    node.produce("orders", [b"1", b"2", b"3"])
    node.produce("others", [b"1"])
    assert delete_records(node, 2) == (0, 2)
    assert node.broker.partitions.get("orders", 0).log.recovery_point == 3
    assert node.broker.partitions.get("others", 0).log.recovery_point == 0


def test_delete_records_moves_the_log_start(node: BrokerInProcess) -> None:
    create(node, "orders")
    for _ in range(5):
        node.produce("orders", [b"x"])
    assert delete_records(node, 3) == (0, 3)
    assert delete_records(node, 2) == (0, 3)
    assert delete_records(node, 9)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    node.restart()
    assert node.broker.partitions.get("orders", 0).log.log_start_offset == 3
    assert delete_records(node, -1) == (0, 5)
    create(node, "table", configs={"cleanup.policy": "compact"})
    assert delete_records(node, -1, "table")[0] == ErrorCode.POLICY_VIOLATION


def test_the_name_of_kafkas_metadata_log_is_no_topic(node: BrokerInProcess) -> None:
    """The node's own metadata is in the folder of that name."""
    name = "__cluster_metadata"
    creation = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)])
    (created,) = node.call(creation, 7).topics
    assert created.error_code == ErrorCode.INVALID_REQUEST
    assert created.error_message == f"Creation of internal topic {name} is prohibited."
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    (described,) = node.call(asked, 12).topics
    assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    before = [path.read_bytes() for path in (node.folder / f"{name}-0").glob("*.log")]
    assert node.produce(name, [b"x"]).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [path.read_bytes() for path in (node.folder / f"{name}-0").glob("*.log")] == before


def test_connections_cannot_be_forbidden_by_a_client(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    node = BrokerInProcess(folder)
    for value, code in (("0", ErrorCode.INVALID_CONFIG), ("9", ErrorCode.INVALID_CONFIG), ("10", ErrorCode.NONE)):
        setting = incremental.AlterableConfig(name="max.connections", config_operation=0, value=value)
        resource = incremental.AlterConfigsResource(resource_type=4, resource_name="1", configs=[setting])
        answer = node.call(incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == code
    node.configure(ResourceType.BROKER, "1", {"max.connections": "0"})
    node.restart()
    assert node.broker.settings.integer("max.connections") == 10, "of a folder from before there was a minimum"
    node.broker.stop(clean=False)
