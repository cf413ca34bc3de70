"""Requests at the edges of what a controller takes: given twice, empty, only validated, out of range, half wrong.

Brokers 1, 2 and 3 are in service, and the topics `a`, with three replicas, and `b`, with two, are there.
"""

from __future__ import annotations

import uuid
from typing import Any

from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from oncelog.protocol.messages.incremental_alter_configs import AlterableConfig as IncrementalConfig
from oncelog.protocol.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from oncelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.cluster.controller_player import APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, Player, placed, topic

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


_BY_BROKERS = "Kafka's brokers check it before they ask a controller, and ours leave it to theirs"
_NUMBERS = "a number that is unknown, or not for this request: see differences.md"
DEVIATIONS = {
    "two of one metric": "Kafka looks at the topics that are there, and not at the others of the request",
    "a partition twice": "it is elected once, and told once",
    "a key twice": _BY_BROKERS,
    "a key set and deleted": _BY_BROKERS,
    "a key with an unknown operation": "UNKNOWN_SERVER_ERROR says nothing",
    "a key set to nothing": _BY_BROKERS,
    "nothing appended": _BY_BROKERS,
    "nothing subtracted": _BY_BROKERS,
    "settings of an unknown kind": _BY_BROKERS,
    "settings of no kind": _BY_BROKERS,
    "all settings, one without a value": _BY_BROKERS,
    "two of one user": "nothing is done instead of a part of it: see differences.md",
    "a rate that is no number": "nobody can be held to it",
    "a rate without an end": "nobody can be held to it",
    "no salt": "SCRAM without a salt is worth little",
    "no password": "UNKNOWN_SERVER_ERROR says nothing",
    "an ACL of any resource": _NUMBERS,
    "an ACL of an unknown resource": _NUMBERS,
    "an ACL that matches": _NUMBERS,
    "an ACL of any pattern": _NUMBERS,
    "an ACL of no pattern": _NUMBERS,
    "an ACL of any operation": _NUMBERS,
    "an ACL of any permission": _NUMBERS,
    "an ACL without a host": "it would never count",
    "a filter of an unknown operation": _NUMBERS,
    "a filter of an unknown pattern": _NUMBERS,
}
"""Steps in which Oncelog's controller differs on purpose, and why."""


def play_edges(player: Player) -> None:
    _created(player)
    _grown(player)
    _elected(player)
    _moved(player)
    _configured(player)
    _replaced_configs(player)
    _features(player)
    _quotas(player)
    _users(player)
    _acls(player)
    _deleted(player)
    _of_brokers(player)


def _created(player: Player) -> None:
    def at(name: str, *places: tuple[int, list[int]], count: int = -1, factor: int = -1) -> CreatableTopic:
        assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in places]
        return CreatableTopic(name=name, num_partitions=count, replication_factor=factor, assignments=assignments)

    def configured(name: str, *configs: tuple[str, str | None]) -> CreatableTopic:
        wanted = at(name, (0, [1]))
        wanted.configs = [CreatableTopicConfig(name=key, value=value) for key, value in configs]
        return wanted

    player.create("a gap in the numbers", at("x", (0, [1]), (2, [1])))
    player.create("not from 0 on", at("x", (1, [1])))
    player.create("a number below 0", at("x", (-1, [1]), (0, [1])))
    player.create("a number twice", at("x", (0, [1]), (0, [2])))
    player.create("replicas and a count", at("x", (0, [1]), count=1))
    player.create("replicas and a factor", at("x", (0, [1]), factor=1))
    player.create("a broker below 0", at("x", (0, [-1])))
    player.create("in another order", at("in-another-order", (1, [2]), (0, [1])))
    player.create("the defaults, only validated", placed("x", -1, -1), validate_only=True)
    player.create("placed, only validated", placed("x", 3, 2), validate_only=True)
    player.create("validated and wrong", placed("x", 1, 9), at("y", (0, [9])), validate_only=True)
    player.create("a setting without a value", configured("x", ("retention.ms", None)))
    player.create("a setting twice", configured("x-twice", ("retention.ms", "1"), ("retention.ms", "2")))
    player.create("two that do not fit", configured("x", ("min.insync.replicas", "0")))
    player.create("a list", configured("x-list", ("cleanup.policy", "compact, delete")))
    player.create("a list with an unknown value", configured("x", ("cleanup.policy", "compact,shred")))
    player.create("an empty list", configured("x-empty", ("cleanup.policy", "")))
    player.create("two of one metric", at("one.metric", (0, [1])), at("one_metric", (0, [1])), validate_only=True)
    player.create("too many partitions", placed("x", 10_001, 1))
    player.create("no topic")


def _grown(player: Player) -> None:
    def grow(name: str, *wanted: tuple[str, int, list[list[int]] | None], **fields: Any) -> None:
        topics = [
            CreatePartitionsTopic(
                name=grown,
                count=count,
                assignments=None if given is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in given],
            )
            for grown, count, given in wanted
        ]
        player.step(name, CreatePartitionsRequest(topics=topics, timeout_ms=5000, **fields))

    grow("only validated", ("b", 3, [[1, 2]]), validate_only=True)
    grow("placed, only validated", ("b", 5, None), validate_only=True)
    grow("validated and wrong", ("b", 3, [[9, 2]]), validate_only=True)
    grow("to zero", ("b", 0, None))
    grow("to less than zero", ("b", -1, None))
    grow("on an unknown broker", ("b", 3, [[1, 9]]))
    grow("on a broker twice", ("b", 3, [[1, 1]]))
    grow("on nobody", ("b", 3, [[]]))
    grow("without a broker", ("b", 3, []))
    grow("too many assignments", ("b", 3, [[1, 2], [2, 1]]))
    grow("a topic twice", ("b", 3, [[1, 2]]), ("b", 4, [[1, 2]]))
    grow("one well and one badly", ("b", 3, [[1, 2]]), ("a", 1, None))
    grow("nothing")


def _elected(player: Player) -> None:
    def elect(name: str, kind: int, *wanted: tuple[str, list[int]]) -> None:
        topics = [TopicPartitions(topic=topic_, partitions=indexes) for topic_, indexes in wanted]
        player.step(name, ElectLeadersRequest(election_type=kind, topic_partitions=topics))

    elect("a partition twice", 0, ("a", [0, 0]))
    elect("a topic twice", 0, ("a", [0]), ("a", [1]))
    elect("no partition", 0, ("a", []))
    elect("no topic", 0)
    player.elect("all, unclean", 1)
    player.create("led by 3 alone", topic("alone", [3, 1]))
    player.alter("3 alone is in sync", "alone", [3])
    player.silence("3 falls silent", 3)
    player.elect("nobody in sync is there", 0, ("alone", 0))
    player.elect("an unclean leader", 1, ("alone", 0))
    player.elect("and no second time", 1, ("alone", 0))
    player.alter("it recovers", "alone", [player.partition("alone").leader])
    player.heartbeat("3 is back", 3)
    player.alter("3 is in sync", "alone", [player.partition("alone").leader, 3])
    player.alter("3 is in sync for a", "a", _members(player, "a"))
    player.alter("3 is in sync for the other a", "a", _members(player, "a", 1), index=1)
    player.alter("3 is in sync for c", "c", _members(player, "c"))
    player.elect("preferred leaders", 0)


def _members(player: Player, name: str, index: int = 0) -> list[int]:
    partition = player.partition(name, index)
    return [partition.leader, *(each for each in partition.replicas if each != partition.leader)]


def _moved(player: Player) -> None:
    def move(name: str, *wanted: tuple[str, int, list[int] | None]) -> None:
        topics = [
            ReassignableTopic(name=moved, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
            for moved, index, replicas in wanted
        ]
        player.step(name, AlterPartitionReassignmentsRequest(topics=topics))

    player.create("to be moved", topic("here", [1, 2], [2, 1]))
    move("a partition that there is not", ("here", 7, [1]))
    move("a broker twice", ("here", 0, [1, 1]))
    move("a broker below 0", ("here", 0, [-1]))
    move("to where it is", ("here", 0, [1, 2]))
    move("one well and one badly", ("here", 0, [1, 3]), ("nowhere", 0, [1]))
    player.step(
        "list some",
        ListPartitionReassignmentsRequest(
            topics=[
                ListPartitionReassignmentsTopics(name="here", partition_indexes=[0, 1, 7]),
                ListPartitionReassignmentsTopics(name="nowhere", partition_indexes=[0]),
            ]
        ),
    )
    player.step("list none", ListPartitionReassignmentsRequest(topics=[]))
    move("the same again", ("here", 0, [1, 3]))
    move("further", ("here", 0, [3, 1]))
    player.alter("the old leader and a new replica", "here", [1, 2, 3])
    move("no topic")
    player.heartbeat("3 is fenced", 3, want_fence=True)
    move("to a broker that is fenced", ("here", 1, [3, 1]))
    move("cancelled", ("here", 1, None))
    move("to fenced brokers alone", ("here", 1, [3]))
    move("cancelled as well", ("here", 1, None))
    player.heartbeat("3 is unfenced", 3)


def _configured(player: Player) -> None:
    def configure(name: str, *wanted: tuple[int, str, list[tuple[str, int, str | None]]], **fields: Any) -> None:
        resources = [
            IncrementalResource(
                resource_type=kind,
                resource_name=resource,
                configs=[IncrementalConfig(name=key, config_operation=op, value=value) for key, op, value in changes],
            )
            for kind, resource, changes in wanted
        ]
        player.step(name, IncrementalAlterConfigsRequest(resources=resources, **fields))

    kept = ("retention.ms", SET, "77")
    configure("only validated", (TOPIC, "b", [kept]), validate_only=True)
    configure("validated and wrong", (TOPIC, "b", [("retention.ms", SET, "x")]), validate_only=True)
    configure("a topic twice", (TOPIC, "b", [kept]), (TOPIC, "b", [kept]))
    other = "in-another-order"
    configure("a key twice", (TOPIC, other, [kept, ("retention.ms", SET, "78")]))
    configure("a key set and deleted", (TOPIC, other, [kept, ("retention.ms", DELETE, None)]))
    configure("a key with an unknown operation", (TOPIC, other, [("retention.ms", 9, "1")]))
    configure("a key set to nothing", (TOPIC, "b", [("retention.ms", SET, None)]))
    configure("nothing appended", (TOPIC, "b", [("cleanup.policy", APPEND, None)]))
    configure("nothing subtracted", (TOPIC, "b", [("cleanup.policy", SUBTRACT, None)]))
    configure("append what is there", (TOPIC, "b", [("cleanup.policy", APPEND, "delete")]))
    configure("append two", (TOPIC, "b", [("cleanup.policy", APPEND, "compact,delete")]))
    configure("subtract what is not there", (TOPIC, "b", [("leader.replication.throttled.replicas", SUBTRACT, "0:1")]))
    configure("append to a list", (TOPIC, "b", [("leader.replication.throttled.replicas", APPEND, "0:1")]))
    configure("append another", (TOPIC, "b", [("leader.replication.throttled.replicas", APPEND, "0:2,1:1")]))
    configure("subtract one", (TOPIC, "b", [("leader.replication.throttled.replicas", SUBTRACT, "0:1")]))
    configure("subtract all", (TOPIC, "b", [("cleanup.policy", SUBTRACT, "compact,delete")]))
    configure("delete what is not set", (TOPIC, "b", [("flush.ms", DELETE, None)]))
    configure("delete with a value", (TOPIC, "b", [("cleanup.policy", DELETE, "x")]))
    configure("no change", (TOPIC, "b", []))
    configure("a topic without a name", (TOPIC, "", [kept]))
    configure("a broker that there is not", (BROKER, "99", [("log.retention.ms", SET, "1")]))
    configure("a broker below 0", (BROKER, "-1", [("log.retention.ms", SET, "1")]))
    configure("settings of an unknown kind", (77, "b", [kept]))
    configure("settings of no kind", (0, "b", [kept]))
    configure("one well and one badly", (TOPIC, "b", [kept]), (TOPIC, "nowhere", [kept]))
    configure("nothing")


def _replaced_configs(player: Player) -> None:
    def replace(name: str, *wanted: tuple[int, str, list[tuple[str, str | None]]], **fields: Any) -> None:
        resources = [
            AlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[AlterableConfig(name=key, value=value) for key, value in configs],
            )
            for kind, resource, configs in wanted
        ]
        player.step(name, AlterConfigsRequest(resources=resources, **fields))

    replace("all settings, only validated", (TOPIC, "b", [("retention.ms", "8")]), validate_only=True)
    replace("all settings of a topic that there is not", (TOPIC, "nowhere", [("retention.ms", "8")]))
    replace("all settings, one bad", (TOPIC, "b", [("retention.ms", "8"), ("flush.ms", "x")]))
    replace("all settings, one twice", (TOPIC, "b", [("retention.ms", "8"), ("retention.ms", "9")]))
    replace("all settings, none", (TOPIC, "b", []))
    replace("all settings, none again", (TOPIC, "b", []))
    replace("all settings, one without a value", (TOPIC, "b", [("retention.ms", None)]))


def _features(player: Player) -> None:
    def update(name: str, *wanted: tuple[str, int, int], **fields: Any) -> None:
        updates = [
            FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
            for feature, level, kind in wanted
        ]
        player.step(name, UpdateFeaturesRequest(feature_updates=updates, **fields))

    transactions = "transaction.version"
    update("only validated", (transactions, 1, SAFE_DOWNGRADE), validate_only=True)
    update("validated and wrong", (transactions, 9, UPGRADE), validate_only=True)
    update("to the level it has", (transactions, 2, UPGRADE))
    update("below 0", (transactions, -1, SAFE_DOWNGRADE))
    update("unsafe, to nothing", (transactions, 0, UNSAFE_DOWNGRADE))
    update("to nothing again", (transactions, 0, SAFE_DOWNGRADE))
    update("back, and a bad one", (transactions, 2, UPGRADE), ("no.such.feature", 1, UPGRADE))
    update("back", (transactions, 2, UPGRADE))
    update("kraft.version as it is", ("kraft.version", 0, UPGRADE))
    update("metadata.version as it is", ("metadata.version", 30, UPGRADE))
    update("metadata.version to nothing", ("metadata.version", 0, UNSAFE_DOWNGRADE))
    update("no feature")


def _quotas(player: Player) -> None:
    def entry(*ops: tuple[str, float | None], **entity: str | None) -> EntryData:
        parts = [EntityData(entity_type=kind.replace("_", "-"), entity_name=each) for kind, each in entity.items()]
        return EntryData(
            entity=parts, ops=[OpData(key=key, value=value or 0, remove=value is None) for key, value in ops]
        )

    def alter(name: str, *entries: EntryData, **fields: Any) -> None:
        player.step(name, AlterClientQuotasRequest(entries=list(entries), **fields))

    rate, percentage = "producer_byte_rate", "request_percentage"
    alter("a quota, only validated", entry((rate, 9.0), user="carol"), validate_only=True)
    alter("a bad quota, only validated", entry(("speed", 9.0), user="carol"), validate_only=True)
    alter("two of one user", entry((rate, 9.0), user="twice"), entry((rate, 8.0), user="twice"))
    alter("one key twice", entry((rate, 9.0), (rate, 8.0), user="carol"))
    alter("set and removed", entry((rate, 7.0), (rate, None), user="carol"))
    alter("one well and one badly", entry((percentage, 9.0), user="carol"), entry((rate, -1.0), user="dave"))
    alter("half of one badly", entry((rate, 5.0), ("speed", 1.0), user="dave"))
    alter("of nobody", entry((rate, 9.0)))
    alter("of a user and an address", entry((rate, 9.0), user="carol", ip="127.0.0.1"))
    alter("of a user without a name", entry((rate, 9.0), user=""))
    alter("of all clients of all users", entry((rate, 9.0), user=None, client_id=None))
    alter("of an address that is none", entry(("connection_creation_rate", 9.0), ip="not an address"))
    alter("of all addresses", entry(("connection_creation_rate", 9.0), ip=None))
    alter("connections of a user", entry(("connection_creation_rate", 9.0), user="carol"))
    alter("half a byte", entry((rate, 9.5), user="carol"))
    alter("half a connection", entry(("connection_creation_rate", 9.5), ip="127.0.0.1"))
    alter("more than a long", entry((rate, 1e30), user="carol"))
    alter("half a per cent", entry((percentage, 0.5), user="carol"))
    alter("a rate that is no number", entry((rate, float("nan")), user="nan"))
    alter("a rate without an end", entry((percentage, float("inf")), user="inf"))
    alter("mutations", entry(("controller_mutation_rate", 1.5), user="carol"))
    alter("nothing to do", entry(user="carol"))
    alter("an unknown key removed", entry(("speed", None), user="carol"))
    alter("mutations no more", entry(("controller_mutation_rate", None), user="carol"))
    alter("no entry")


def _users(player: Player) -> None:
    def alter(name: str, *changes: ScramCredentialDeletion | ScramCredentialUpsertion) -> None:
        deletions = [each for each in changes if isinstance(each, ScramCredentialDeletion)]
        upsertions = [each for each in changes if isinstance(each, ScramCredentialUpsertion)]
        player.step(name, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions))

    def user(name: str, mechanism: int = 1, iterations: int = 4096, **fields: bytes) -> ScramCredentialUpsertion:
        values = {"salt": b"salt", "salted_password": b"salted"} | fields
        return ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **values)  # type: ignore[arg-type]  # salts

    alter("the most iterations", user("erin", 1, 16384))
    alter("too many iterations", user("erin", 1, 16385))
    alter("too few for the longer one", user("erin", 2, 4095))
    alter("no salt", user("saltless", salt=b""))
    alter("no password", user("erin", salted_password=b""))
    alter("one user twice", user("erin"), user("erin"))
    alter("two mechanisms of one user", user("erin", 1), user("erin", 2))
    alter("one well and one badly", user("erin", 1, 5000), user("frank", 1, 1))
    alter("nobody is deleted", ScramCredentialDeletion(name="nobody", mechanism=1))
    alter("deleted without a mechanism", ScramCredentialDeletion(name="erin", mechanism=0))
    alter("deleted without a name", ScramCredentialDeletion(name="", mechanism=1))
    gone = ScramCredentialDeletion(name="erin", mechanism=1)
    alter("deleted twice at once", gone, gone)
    alter("one deleted and one made", gone, user("frank", 2))
    alter("nothing")


def _acls(player: Player) -> None:
    def acl(name: str, **fields: Any) -> AclCreation:
        values: dict[str, Any] = {
            "resource_type": 2, "resource_name": name, "resource_pattern_type": LITERAL, "principal": "User:erin",
            "host": "*", "operation": 3, "permission_type": 3,
        }  # fmt: skip
        return AclCreation(**(values | fields))

    def create(name: str, *creations: AclCreation) -> None:
        player.step(name, CreateAclsRequest(creations=list(creations)))

    def delete(name: str, **fields: Any) -> None:
        values: dict[str, Any] = {
            "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
            "principal_filter": "User:erin", "host_filter": None, "operation": ANY, "permission_type": ANY,
        }  # fmt: skip
        player.step(name, DeleteAclsRequest(filters=[DeleteAclsFilter(**(values | fields))]))

    create("one well and one badly", acl("one"), acl("two", principal=":"))
    create("no resource", acl(""))
    create("an ACL of any resource", acl("x", resource_type=ANY))
    create("an ACL of an unknown resource", acl("x", resource_type=0))
    create("a resource that there is not", acl("x", resource_type=77))
    create("an ACL that matches", acl("x", resource_pattern_type=MATCH))
    create("an ACL of any pattern", acl("x", resource_pattern_type=ANY))
    create("an ACL of no pattern", acl("x", resource_pattern_type=0))
    create("an ACL of any operation", acl("x", operation=ANY))
    create("an unknown operation", acl("x", operation=77))
    create("an ACL of any permission", acl("x", permission_type=ANY))
    create("no principal", acl("x", principal=""))
    create("an operation that topics do not have", acl("x", operation=12))
    create("another cluster", acl("not-kafka-cluster", resource_type=4))
    create("the cluster", acl("kafka-cluster", resource_type=4))
    create("a prefix", acl("on", resource_pattern_type=PREFIXED))
    create("everything", acl("*"))
    create("no ACL")
    create("an ACL without a host", acl("x", host="", principal="User:hostless"))
    delete("all that match one", resource_type_filter=2, resource_name_filter="one", pattern_type_filter=MATCH)
    delete("a filter of an unknown operation", operation=0)
    delete("a filter of an unknown pattern", pattern_type_filter=0)
    delete("all of a user")
    delete("all of a user again")
    player.step("no filter", DeleteAclsRequest(filters=[]))


def _deleted(player: Player) -> None:
    def delete(name: str, *topics: DeleteTopicState) -> None:
        player.step(name, DeleteTopicsRequest(topics=list(topics), timeout_ms=5000))

    named = DeleteTopicState(name="x-list")
    by_id = DeleteTopicState(topic_id=player.image.topic_ids["x-list"])
    delete("a name twice", named, named)
    delete("an id twice", by_id, by_id)
    delete("a name and an id", DeleteTopicState(name="x-list", topic_id=player.image.topic_ids["x-list"]))
    delete("neither", DeleteTopicState())
    delete("without a name", DeleteTopicState(name=""))
    delete("an id that there is not", DeleteTopicState(topic_id=uuid.UUID(int=78)))
    delete("by its name and by its id", named, by_id)
    delete("no topic")


def _of_brokers(player: Player) -> None:
    incarnation = uuid.uuid5(uuid.NAMESPACE_OID, "an incarnation of 5")
    player.register("a broker with an incarnation", 5, incarnation_id=incarnation)
    moved = [Listener(name="PLAINTEXT", host="127.0.0.1", port=9555)]
    player.register("the same incarnation, on another port", 5, incarnation_id=incarnation, listeners=moved)
    player.heartbeat("it is unfenced", 5)
    player.register("the same, while it is unfenced", 5, incarnation_id=incarnation, listeners=moved, rack="r7")
    player.heartbeat("it is unfenced still", 5)
    player.create("it leads and follows", topic("of-five", [5, 1], [1, 5]), topic("five-alone", [5]))
    player.step("ids for a broker that there is not", AllocateProducerIdsRequest(broker_id=9, broker_epoch=1))
    directory = uuid.uuid5(uuid.NAMESPACE_OID, "directory 5")
    of_five = AssignedTopic(
        topic_id=player.image.topic_ids["of-five"], partitions=[AssignedPartition(partition_index=0)]
    )
    for name, id_, epoch, topics in (
        ("a stale epoch", directory, 1, [of_five]),
        ("an unknown directory", uuid.UUID(int=79), player.epochs[5], [of_five]),
        ("a lost directory", uuid.UUID(int=2), player.epochs[5], [of_five]),
        ("no directory", uuid.UUID(int=1), player.epochs[5], [of_five]),
        ("as it is", directory, player.epochs[5], [of_five]),
        ("an unknown topic", directory, player.epochs[5], [AssignedTopic(topic_id=uuid.UUID(int=80))]),
    ):
        assigned = [AssignedDirectory(id_=id_, topics=topics)]
        player.step(
            f"replicas in {name}", AssignReplicasToDirsRequest(broker_id=5, broker_epoch=epoch, directories=assigned)
        )
    player.step("unregistered while it leads", UnregisterBrokerRequest(broker_id=5))
    player.heartbeat("nobody knows it", 5)
    player.register("it registers again", 5, incarnation_id=incarnation)
    player.heartbeat("and leads what nobody else can", 5)
    player.heartbeat("it stops", 5, want_shut_down=True)
    for broker_id in (1, 2, 3):
        player.heartbeat(f"broker {broker_id} has read it", broker_id)
    player.heartbeat("it has stopped", 5, want_shut_down=True)
    player.step("unregistered for good", UnregisterBrokerRequest(broker_id=5))
