"""Topics, partitions, settings, metadata and coordinators on the wire, with what is wrong with some requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.conformance.scenario import Batch, Name, Ref, Scenario, Step
from tests.conformance.steps import produce

ANY_TV: Final = (2,)
TOPIC: Final = 2
BROKER: Final = 4
LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
DYNAMIC_BROKER: Final = 2
DEFAULT: Final = 5


def create(
    name: Any,
    version: int = 7,
    *,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Sequence[tuple[int, list[int]]] = (),
    validate_only: bool = False,
    note: str = "",
) -> Step:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    fields: dict[str, Any] = {"topics": [topic], "timeout": 10_000}
    if version >= 1:
        fields["validate_only"] = validate_only
    return Step("create_topics", version, fields, note=note)


def delete(name: Any, version: int = 5, note: str = "") -> Step:
    named = {"topics": [{"name": name}]} if version >= 6 else {"topic_names": [name]}
    return Step("delete_topics", version, {**named, "timeout": 10_000}, note=note)


def add(name: Any, count: int, version: int = 3, *, validate_only: bool = False, note: str = "") -> Step:
    topics = [{"name": name, "count": count, "assignments": None}]
    fields = {"topics": topics, "timeout": 10_000, "validate_only": validate_only}
    return Step("create_partitions", version, fields, note=note)


def metadata(topics: Sequence[Any] | None, version: int = 12, *, create: bool = False, note: str = "") -> Step:
    fields: dict[str, Any] = {"topics": None if topics is None else [{"name": name} for name in topics]}
    if version >= 4:
        fields["allow_auto_topic_creation"] = create
    return Step("metadata", version, fields, note=note)


def configs(name: Any, keys: Sequence[str], kind: int = TOPIC, version: int = 4, note: str = "") -> Step:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
    fields: dict[str, Any] = {"resources": [resource], "include_synonyms": False}
    return Step("describe_configs", version, fields, note=note)


def alter(
    name: Any,
    changes: Sequence[tuple[str, int, str | None]],
    kind: int = TOPIC,
    *,
    validate_only: bool = False,
    note: str = "",
) -> Step:
    """IncrementalAlterConfigs: 0 set, 1 delete, 2 append, 3 subtract."""
    settings = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": settings}
    fields = {"resources": [resource], "validate_only": validate_only}
    return Step("incremental_alter_configs", 1, fields, note=note)


def topics_created() -> Scenario:
    steps = [create(Name(f"v{version}"), version, partitions=2) for version in range(2, 8)]
    steps += [
        create(Name("v7"), note="exists"),
        create(Name("defaults"), partitions=-1, replicas=-1),
        create(Name("validated"), 6, validate_only=True),
        create(Name("validated"), note="was only validated"),
        create(Name("none"), partitions=0, note="no partitions"),
        create(Name("none"), partitions=-2, note="negative partitions"),
        create(Name("none"), replicas=2, note="two replicas on one broker"),
        create(Name("none"), replicas=0, note="no replicas"),
        create(Name("none"), configs={"cleanup.policy": "nonsense"}, note="bad value"),
        create(Name("none"), configs={"retention.ms": "many"}, note="not a number"),
        create(Name("none"), configs={"retention.ms": "-2"}, note="out of range"),
        create(Name("none"), configs={"segment.bytes": "1"}, note="segment too small"),
        create(Name("none"), configs={"no.such.key": "1"}, note="unknown key"),
        create(Name("null"), configs={"retention.ms": None}, note="null value"),
        create(Name("assigned"), partitions=-1, replicas=-1, assignments=[(0, [1]), (1, [1])]),
        create(Name("none"), partitions=2, assignments=[(0, [1])], note="partitions and assignments"),
        create(Name("none"), partitions=-1, replicas=-1, assignments=[(1, [1])], note="assignments with a gap"),
        create(Name("none"), partitions=-1, replicas=-1, assignments=[(0, [77])], note="assigned to nobody"),
        *(create(name, note=f"name {note}") for note, name in BAD_NAMES.items()),
        Step("create_topics", 7, {"topics": [], "timeout": 1000}, note="none"),
        metadata([Name("defaults"), Name("assigned"), Name("validated"), Name("none")]),
    ]
    return Scenario("topics-created", steps, topics={}, transaction_versions=ANY_TV)


BAD_NAMES: Final = {
    "empty": "",
    "dot": ".",
    "two dots": "..",
    "slash": "a/b",
    "space": "a b",
    "umlaut": "ä",
    "long": "n" * 250,
}


def colliding_names() -> Scenario:
    """Names that differ only in dots and underscores share a metric name: Kafka refuses the second."""
    steps = [create(Name("a.b")), create(Name("a_b"), note="collides"), create(Name("a-b"))]
    return Scenario("colliding-names", steps, topics={}, transaction_versions=ANY_TV)


def reserved_names() -> Scenario:
    name = "__cluster_metadata"
    topics = [{"name": name, "partition_data": [{"index": 0, "records": Batch(1, {})}]}]
    steps = [
        create(name),
        create(name, validate_only=True),
        metadata([name], create=True),
        Step("produce", 9, {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": topics}),
        delete(name),
        add(name, 2),
    ]
    return Scenario("reserved-names", steps, topics={}, transaction_versions=ANY_TV)


def created_twice_in_one_request() -> Scenario:
    topic = {"name": Name("twice"), "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    fields = {"topics": [topic, topic], "timeout": 10_000}
    return Scenario("created-twice", [Step("create_topics", 7, fields)], topics={}, transaction_versions=ANY_TV)


def topics_deleted() -> Scenario:
    steps = [create(Name(f"v{version}")) for version in range(1, 7)]
    steps += [delete(Name(f"v{version}"), version) for version in range(1, 7)]
    steps += [
        delete(Name("v1"), note="gone"),
        delete(Name("v1"), 6, note="gone"),
        Step(
            "delete_topics",
            6,
            {"topics": [{"name": None, "topic_id": "00000000-0000-4000-8000-000000000001"}], "timeout": 1000},
            note="unknown id",
        ),
        delete("", note="empty name"),
        create(Name("v1"), note="again"),
        metadata([Name("v1"), Name("v2")]),
    ]
    return Scenario("topics-deleted", steps, topics={}, transaction_versions=ANY_TV)


def partitions_added() -> Scenario:
    steps = [
        *(add(Name("t"), 2 + version, version) for version in (0, 1, 2, 3)),
        add(Name("t"), 5, note="as many"),
        add(Name("t"), 4, note="fewer"),
        add(Name("t"), -1, note="negative"),
        add(Name("missing"), 4, note="unknown topic"),
        add(Name("t"), 9, validate_only=True),
        metadata([Name("t")], 12),
    ]
    return Scenario("partitions-added", steps, topics={"t": 1}, transaction_versions=ANY_TV)


DESCRIBED: Final = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "preallocate",
    "retention.bytes",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
)


def settings() -> Scenario:
    """Topic settings: described, altered step by step, refused."""
    steps = [
        *(configs(Name("t"), ["max.message.bytes", "cleanup.policy"], version=version) for version in (1, 2, 3, 4)),
        configs(Name("t"), DESCRIBED, note="everything that does not depend on the broker's settings"),
        configs(Name("t"), ["no.such.key"], note="unknown key"),
        configs(Name("missing"), ["retention.ms"], note="unknown topic"),
        configs("", ["retention.ms"], note="empty name"),
        configs("a/b", ["retention.ms"], note="bad name"),
        configs("1", ["transaction.max.timeout.ms", "offsets.topic.num.partitions"], BROKER),
        configs("77", ["node.id"], BROKER, note="another broker"),
        configs("nonsense", ["node.id"], BROKER, note="not a number"),
        configs(Name("t"), [], 1, note="unknown kind of resource"),
        alter(Name("t"), [("retention.ms", 0, "1000"), ("cleanup.policy", 0, "compact")]),
        configs(Name("t"), ["retention.ms", "cleanup.policy"]),
        alter(Name("t"), [("cleanup.policy", 2, "delete")], note="append"),
        configs(Name("t"), ["cleanup.policy"]),
        alter(Name("t"), [("cleanup.policy", 3, "compact")], note="subtract"),
        configs(Name("t"), ["cleanup.policy"]),
        alter(Name("t"), [("retention.ms", 1, None)], note="delete"),
        alter(Name("t"), [("retention.ms", 1, None)], note="delete again"),
        alter(Name("t"), [("retention.ms", 2, "5")], note="append to a number"),
        alter(Name("t"), [("retention.ms", 0, None)], note="set to null"),
        alter(Name("t"), [("retention.ms", 0, "many")], note="not a number"),
        alter(Name("t"), [("retention.ms", 0, "5"), ("retention.ms", 0, "6")], note="twice"),
        alter(Name("t"), [("no.such.key", 0, "5")], note="unknown key"),
        alter(Name("t"), [("segment.bytes", 0, "1")], note="out of range"),
        alter(Name("missing"), [("retention.ms", 0, "5")], note="unknown topic"),
        alter(Name("t"), [("retention.ms", 0, "777")], validate_only=True, note="only validated"),
        configs(Name("t"), ["retention.ms", "cleanup.policy", "segment.bytes"]),
        alter("1", [("no.such.key", 0, "5")], BROKER, validate_only=True, note="unknown key of a broker"),
    ]
    return Scenario("settings", steps, topics={"t": 1}, transaction_versions=ANY_TV)


def lists_of_brokers() -> Scenario:
    """What is appended to a list of a broker that is not set, and subtracted from it, changes its default."""
    key = "log.cleanup.policy"

    def change(operation: int, value: str | None) -> list[Step]:
        wanted = {"results.0.configs.0.config_source": DEFAULT if value is None else DYNAMIC_BROKER}
        shown = configs("1", [key], BROKER)
        return [alter("1", [(key, operation, value)], BROKER), dataclasses.replace(shown, until=wanted)]

    steps = [*change(2, "compact"), *change(1, None), *change(3, "compact"), *change(1, None)]
    return Scenario("lists-of-brokers", steps, topics={}, transaction_versions=ANY_TV)


def settings_replaced() -> Scenario:
    """AlterConfigs replaces all settings of a topic."""

    def replace(values: Mapping[str, str | None], version: int = 2, topic: str = "t", note: str = "") -> Step:
        entries = [{"name": key, "value": value} for key, value in values.items()]
        resource = {"resource_type": TOPIC, "resource_name": Name(topic), "configs": entries}
        return Step("alter_configs", version, {"resources": [resource], "validate_only": False}, note=note)

    steps = [
        *(replace({"retention.ms": str(version)}, version) for version in (0, 1, 2)),
        replace({"cleanup.policy": "compact"}),
        configs(Name("t"), ["retention.ms", "cleanup.policy"]),
        replace({"no.such.key": "1"}, note="unknown key"),
        replace({"retention.ms": "x"}, note="not a number"),
        replace({"retention.ms": None}, note="null"),
        replace({"retention.ms": "1"}, topic="missing", note="unknown topic"),
        configs(Name("t"), ["retention.ms", "cleanup.policy"]),
    ]
    return Scenario("settings-replaced", steps, topics={"t": 1}, transaction_versions=ANY_TV)


def described_by_metadata() -> Scenario:
    steps = [metadata([Name("t")], version) for version in range(1, 14)]
    steps += [
        metadata([Name("missing")], version, note="unknown topic, not to be created") for version in (4, 7, 9, 12)
    ]
    steps += [metadata(["a/b"], version, note="bad name") for version in (4, 12)]
    steps += [
        Step("metadata", 12, {"topics": [{"name": None, "topic_id": Ref("t.id")}]}, note="by id"),
        Step(
            "metadata",
            12,
            {"topics": [{"name": None, "topic_id": "00000000-0000-4000-8000-000000000001"}]},
            note="by unknown id",
        ),
        metadata([], 12, note="no topics"),
        Step("metadata", 12, {"topics": [{"name": "__consumer_offsets"}]}, note="internal"),
    ]
    return Scenario("metadata", steps, topics={"t": 2}, transaction_versions=ANY_TV)


def topic_partitions() -> Scenario:
    """DescribeTopicPartitions in pages."""

    def ask(limit: int, cursor: Any = None, name: str = "t", note: str = "") -> Step:
        fields = {"topics": [{"name": Name(name)}], "response_partition_limit": limit, "cursor": cursor}
        return Step("describe_topic_partitions", 0, fields, note=note)

    steps = [
        ask(100),
        ask(2),
        ask(2, {"topic_name": Name("t"), "partition_index": 2}),
        ask(100, name="missing", note="unknown topic"),
    ]
    return Scenario("topic-partitions", steps, topics={"t": 3}, transaction_versions=ANY_TV)


def coordinators() -> Scenario:
    steps = [
        Step("find_coordinator", v, {"key": Name("g"), "key_type": 0} if v else {"key": Name("g")}) for v in range(4)
    ]
    steps += [Step("find_coordinator", v, {"key": Name("x"), "key_type": 1}) for v in range(1, 4)]
    steps += [
        Step("find_coordinator", v, {"key_type": kind, "coordinator_keys": [Name("a"), Name("b")]})
        for v in (4, 5, 6)
        for kind in (0, 1)
    ]
    steps += [
        Step("find_coordinator", 3, {"key": Name("x"), "key_type": 9}, note="unknown kind"),
        Step("find_coordinator", 4, {"key_type": 9, "coordinator_keys": [Name("x")]}, note="unknown kind"),
        Step("find_coordinator", 3, {"key": "", "key_type": 1}, note="empty id"),
        Step("find_coordinator", 3, {"key": "", "key_type": 0}, note="empty group"),
        Step("find_coordinator", 4, {"key_type": 0, "coordinator_keys": []}, note="none"),
    ]
    return Scenario("coordinators", steps, topics={}, transaction_versions=ANY_TV)


def cluster() -> Scenario:
    steps = [Step("describe_cluster", version, {}) for version in (0, 1, 2)]
    return Scenario("cluster", steps, topics={}, transaction_versions=ANY_TV)


def resources() -> Scenario:
    """What has settings. Topics are those of other scenarios, too, and are not asked for."""
    steps = [Step("list_config_resources", 0, {})]
    kinds = ([BROKER], [LOGGER], [CLIENT_METRICS, BROKER], [GROUP], [0], [1], [BROKER, 99], [BROKER, BROKER])
    steps += [Step("list_config_resources", 1, {"resource_types": one}, note=str(one)) for one in kinds]
    return Scenario("resources", steps, topics={}, transaction_versions=ANY_TV)


def auto_created() -> Scenario:
    """A metadata request that allows it creates the topic; so does not a produce request."""
    wanted = {"topics.0.error_code": 0}
    fields = {"topics": [{"name": Name("auto")}], "allow_auto_topic_creation": True}
    steps = [
        Step("metadata", 12, fields, until=wanted, note="until it is there"),
        Step("metadata", 12, {"topics": [{"name": "not/valid"}], "allow_auto_topic_creation": True}, note="bad name"),
        configs(Name("auto"), ["cleanup.policy"]),
    ]
    return Scenario("auto-created", steps, topics={}, transaction_versions=ANY_TV)


def too_large() -> Scenario:
    """max.message.bytes of the topic."""
    steps = [
        produce(None, None, batch={"values": [b"x" * 900]}),
        produce(None, None, batch={"values": [b"x" * 1100]}, note="over the limit"),
    ]
    return Scenario("too-large", steps, topics={"t": (1, {"max.message.bytes": "1000"})}, transaction_versions=ANY_TV)


def placement() -> Scenario:
    """Folders, leaders and brokers of partitions, on a cluster that has one of each."""

    def elect(topics: list[tuple[Any, list[int]]] | None, version: int = 2, kind: int = 0, note: str = "") -> Step:
        wanted = None if topics is None else [{"topic": name, "partitions": indexes} for name, indexes in topics]
        fields: dict[str, Any] = {"topic_partitions": wanted, "timeout": 10_000}
        return Step("elect_leaders", version, fields | ({"election_type": kind} if version else {}), note=note)

    def reassign(replicas: list[int] | None, index: int = 0, name: str = "t", note: str = "") -> Step:
        topics = [{"name": Name(name), "partitions": [{"partition_index": index, "replicas": replicas}]}]
        return Step("alter_partition_reassignments", 1, {"topics": topics, "timeout": 10_000}, note=note)

    def listed(topics: list[dict[str, Any]] | None) -> Step:
        return Step("list_partition_reassignments", 0, {"topics": topics, "timeout": 10_000})

    moved = {"path": "/nowhere", "topics": [{"name": Name("t"), "partitions": [0]}]}
    steps = [
        *(elect([(Name("t"), [0, 1])], version) for version in (0, 1, 2)),
        elect([(Name("t"), [1]), (Name("missing"), [0])], kind=1, note="unclean"),
        elect([(Name("t"), [0])], kind=2, note="a kind that there is not"),
        reassign([1]),
        reassign([1], 5, note="a partition that there is not"),
        reassign([1], name="missing", note="a topic that there is not"),
        reassign(None, note="nothing to cancel"),
        reassign([], note="no replica"),
        reassign([1, 77], note="a broker that there is not"),
        reassign([1, 1], note="twice"),
        listed(None),
        listed([{"name": Name("t"), "partition_indexes": [0]}, {"name": Name("missing"), "partition_indexes": [0]}]),
        *(Step("alter_replica_log_dirs", version, {"dirs": [moved]}, note="another folder") for version in (1, 2)),
        Step("alter_replica_log_dirs", 2, {"dirs": []}),
    ]
    return Scenario("placement", steps, topics={"t": 1}, transaction_versions=ANY_TV)


def tokens() -> list[Step]:
    """Requests for delegation tokens, of which there are none."""
    owner = {"owner_principal_type": "User", "owner_principal_name": "somebody"}
    asked = {"renewers": [], "max_lifetime": -1}
    return [
        *(Step("create_delegation_token", version, asked) for version in (1, 2)),
        Step("create_delegation_token", 3, {**asked, "owner_principal_type": None, "owner_principal_name": None}),
        *(Step("renew_delegation_token", version, {"hmac": b"x", "renew_period": 1}) for version in (1, 2)),
        *(Step("expire_delegation_token", version, {"hmac": b"x", "expiry_time_period": 1}) for version in (1, 2)),
        *(Step("describe_delegation_token", version, {"owners": None}) for version in (1, 2, 3)),
        Step("describe_delegation_token", 3, {"owners": [{"principal_type": "User", "principal_name": "x"}]}),
        Step("create_delegation_token", 3, {**asked, **owner}, note="for somebody else"),
    ]


def tokens_of_nobody() -> Scenario:
    return Scenario("tokens-of-nobody", tokens(), topics={}, transaction_versions=ANY_TV)


SCENARIOS: Final = (
    topics_created(),
    colliding_names(),
    reserved_names(),
    created_twice_in_one_request(),
    topics_deleted(),
    partitions_added(),
    settings(),
    lists_of_brokers(),
    settings_replaced(),
    described_by_metadata(),
    topic_partitions(),
    coordinators(),
    cluster(),
    resources(),
    auto_created(),
    too_large(),
    placement(),
    tokens_of_nobody(),
)
