"""One script of requests for any controller.

Fake brokers register, lead and fall silent; administrators change a little of everything.
"""

from __future__ import annotations

import uuid
from typing import Any

from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from oncelog.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
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
from oncelog.protocol.messages.broker_registration import Feature
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.cluster.controller_edges import play_edges
from tests.cluster.controller_player import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    Player,
    heartbeat_request,
    placed,
    topic,
)


def play(player: Player, *, has_elr: bool) -> None:
    if not has_elr:
        off = FeatureUpdateKey(feature="eligible.leader.replicas.version", max_version_level=0, upgrade_type=2)
        player.step("without ELR", UpdateFeaturesRequest(feature_updates=[off]))
    _brokers(player)
    _topics(player)
    _in_sync(player)
    _elections(player, has_elr=has_elr)
    _reassignments(player)
    _settings(player, has_elr=has_elr)
    _security(player)
    play_edges(player)
    _goodbye(player)


def _brokers(player: Player) -> None:
    player.register("a broker registers", 1)
    player.heartbeat("it has not read its registration", 1, offset=0)
    player.heartbeat("it has, and is not ready", 1, want_fence=True)
    player.heartbeat("it is unfenced", 1)
    player.heartbeat("it is unfenced already", 1)
    for broker_id in (2, 3):
        player.start(f"broker {broker_id} registers", broker_id)
    player.register("another cluster", 4, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    player.register("no directory", 4, log_dirs=[])
    player.register("a reserved directory", 4, log_dirs=[uuid.UUID(int=1)])
    twice = uuid.uuid5(uuid.NAMESPACE_OID, "twice")
    player.register("a directory twice", 4, log_dirs=[twice, twice])
    player.register("another's directory", 4, log_dirs=[uuid.uuid5(uuid.NAMESPACE_OID, "directory 1")])
    player.register("a migrating broker", 4, is_migrating_zk_broker=True)
    player.register("no features", 4, features=[])
    few = [Feature(name="metadata.version", min_supported_version=7, max_supported_version=29)]
    player.register("an old metadata.version", 4, features=few)
    player.register("a taken id", 1)
    player.heartbeat("a stale epoch", 1, epoch=player.epochs[1] - 1)
    player.heartbeat("an unknown broker", 9, epoch=1)


def _topics(player: Player) -> None:
    player.create(
        "topics", topic("a", [1, 2, 3], [2, 3, 1]), topic("b", [3, 1], retention_ms="1000", segment_bytes="2000000")
    )
    player.create("one with a minimum", topic("c", [1, 2, 3], min_insync_replicas="2"))
    player.create("only validated", topic("v", [1]), validate_only=True)
    player.create("one that exists", topic("a", [1]), topic("d", [1]))
    player.create("bad names", topic("x/y", [1]), topic("", [1]), topic(".", [1]), topic("n" * 250, [1]))
    player.create("a name that collides", topic("with.dot", [1]), topic("fine", [1]))
    player.create("the colliding one", topic("with_dot", [1]))
    player.create("an unknown broker", topic("e", [1, 9]))
    player.create("a broker twice", topic("e", [1, 1]))
    player.create("no replicas", topic("e", []))
    player.create("unequal factors", topic("e", [1], [1, 2]))
    player.create("a setting that is not one", topic("e", [1], no_such_key="1"))
    player.create("a setting with a bad value", topic("e", [1], retention_ms="soon"))
    player.create("zero and too many", placed("e", 0, 1), placed("f", 1, 0), placed("g", 1, 4), placed("h", -2, 1))
    player.create("the log of controllers", placed("__cluster_metadata", 1, 1))
    player.create("twice", placed("e", 1, 1), placed("e", 1, 1))
    wanted = [CreatePartitionsAssignment(broker_ids=[2, 1])]
    for name, grown, count, assignments in (
        ("grow", "b", 2, wanted),
        ("grow to the same", "b", 2, wanted),
        ("shrink", "b", 1, None),
        ("too few assignments", "b", 4, wanted),
        ("another factor", "b", 3, [CreatePartitionsAssignment(broker_ids=[1, 2, 3])]),
        ("grow what is not there", "nowhere", 3, None),
    ):
        grow = CreatePartitionsTopic(name=grown, count=count, assignments=assignments)
        player.step(name, CreatePartitionsRequest(topics=[grow], timeout_ms=5000))


def _in_sync(player: Player) -> None:
    player.alter("shrink", "a", [1, 2])
    player.alter("expand", "a", [1, 2, 3])
    player.alter("no change", "a", [1, 2, 3])
    player.alter("a newer leader epoch", "a", [1], leader_epoch=1)
    player.alter("an older leader epoch", "a", [1], leader_epoch=-1)
    player.alter("a newer partition epoch", "a", [1], partition_epoch=1)
    player.alter("an older partition epoch", "a", [1], partition_epoch=-1)
    player.alter("not by its leader", "a", [1, 2], leader=2)
    player.alter("without the leader", "a", [2, 3])
    player.alter("by nobody", "a", [])
    player.alter("a member twice", "a", [1, 1])
    player.alter("no replica", "a", [1, 4])
    player.alter("recovering", "a", [1], recovering=1)
    player.alter("an old epoch of a member", "a", [1, 2], epochs={1: -1, 2: 0})
    player.alter("a stale broker epoch", "a", [1], broker_epoch=1)
    player.alter("an unknown topic", "a", [1], topic_id=uuid.UUID(int=77))
    player.alter("an unknown partition", "a", [1], unknown_index=7)
    player.heartbeat("fenced as it wishes", 3, want_fence=True)
    player.alter("a fenced member", "a", [1, 2, 3])
    player.create("a topic on a fenced broker", topic("fenced", [3]), topic("half", [3, 1]))
    player.heartbeat("unfenced again", 3)
    player.alter("in sync again", "a", [1, 2, 3])


def _elections(player: Player, *, has_elr: bool) -> None:
    player.silence("broker 1 is silent", 1)
    player.elect("the preferred leader is away", 0, ("a", 0))
    player.heartbeat("its epoch is still good", 1)
    player.alter("in sync", "a", [2, 3, 1])
    player.elect("the preferred leader is back", 0, ("a", 0), ("a", 7), ("nowhere", 0))
    player.elect("nothing to elect", 0, ("a", 0))
    player.elect("an unclean election without need", 1, ("a", 0))
    player.elect("an election that there is not", 5, ("a", 0))
    player.alter(
        "c: 3 falls behind", "c", [player.partition("c").leader, 2 if player.partition("c").leader != 2 else 1]
    )
    player.silence("broker 2 is silent", 2)
    player.start("broker 2 after a crash", 2)
    player.heartbeat("broker 2 wishes to be fenced", 2, want_fence=True, want_shut_down=True)
    player.start("broker 2 after a clean stop", 2, clean=True)
    for broker_id in (3, 2, 1):
        player.silence(f"now {broker_id} is silent", broker_id)
    player.start("broker 3 is back first", 3)
    player.start("broker 1 is back after a crash", 1)
    player.start("broker 2 is back, clean", 2, clean=True)
    if has_elr:
        player.alter("the minimum is there again", "c", _all_alive(player, "c"))
    player.alter("recovered", "a", [player.partition("a").leader])
    player.alter("all in sync", "a", _all_alive(player, "a"))
    player.configure("unclean leaders are allowed", TOPIC, "b", ("unclean.leader.election.enable", SET, "true"))
    player.alter("b: one in sync", "b", [player.partition("b").leader])
    player.silence("the leader of b is silent", player.partition("b").leader)
    for broker_id in (1, 2, 3):
        player.heartbeat(f"broker {broker_id} is there", broker_id)
    player.alter("b has recovered", "b", [player.partition("b").leader])
    player.elect("all preferred leaders", 0)


def _all_alive(player: Player, name: str) -> list[int]:
    partition = player.partition(name)
    return [partition.leader, *(each for each in partition.replicas if each != partition.leader)]


def _reassignments(player: Player) -> None:
    player.create("two replicas", topic("moving", [1, 2]))
    player.reassign("to a broker that there is not", "moving", [1, 9])
    player.reassign("to nobody", "moving", [])
    player.reassign("cancel nothing", "moving", None)
    player.reassign("a topic that there is not", "nowhere", [1])
    player.reassign("another factor", "moving", [1], allow_replication_factor_change=False)
    player.reassign("begin", "moving", [2, 3])
    player.step("list", ListPartitionReassignmentsRequest())
    player.alter("end, with a new leader", "moving", [1, 2, 3])
    player.step("list when there is none", ListPartitionReassignmentsRequest())
    player.reassign("begin another", "moving", [1, 2])
    player.reassign("cancel it", "moving", None)
    player.reassign("fewer replicas", "moving", [2])
    player.reassign("more replicas", "moving", [2, 1])
    player.alter("all in sync", "moving", [2, 1])
    player.reassign("another order", "moving", [1, 2])
    player.create("two replicas, moved twice", topic("moved-twice", [1, 2]))
    player.reassign("away", "moved-twice", [3, 2])
    player.reassign("and back before it is done", "moved-twice", [1, 2])
    player.step("list what is still moved", ListPartitionReassignmentsRequest())
    player.reassign("away with one more", "moved-twice", [3, 2, 1])
    player.reassign("another one instead", "moved-twice", [2, 1])
    player.alter("all but the one that is not wanted any more", "moved-twice", [2, 1])
    player.step("list what is moved still", ListPartitionReassignmentsRequest())


def _settings(player: Player, *, has_elr: bool) -> None:
    player.configure("set and append", TOPIC, "a", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"))
    player.configure(
        "no change and subtract", TOPIC, "a", ("retention.ms", SET, "5"), ("cleanup.policy", SUBTRACT, "delete")
    )
    player.configure("delete", TOPIC, "a", ("retention.ms", DELETE, None))
    player.configure("a key that there is not", TOPIC, "a", ("no.such.key", SET, "1"))
    player.configure("a bad value", TOPIC, "a", ("retention.ms", SET, "soon"))
    player.configure("append to a number", TOPIC, "a", ("retention.ms", APPEND, "1"))
    player.configure("a topic that there is not", TOPIC, "nowhere", ("retention.ms", SET, "1"))
    player.configure("another minimum", TOPIC, "a", ("min.insync.replicas", SET, "2"))
    player.configure("of all brokers", BROKER, "", ("log.retention.ms", SET, "9"))
    player.configure("of all brokers, the same", BROKER, "", ("log.retention.ms", SET, "9"))
    player.configure("of one broker", BROKER, "1", ("log.cleaner.threads", SET, "1"))
    player.configure("of a broker without a number", BROKER, "x", ("log.cleaner.threads", SET, "1"))
    player.configure("the minimum of all brokers", BROKER, "", ("min.insync.replicas", SET, "1"))
    if has_elr:
        player.configure("the minimum of one broker", BROKER, "1", ("min.insync.replicas", SET, "1"))
        player.configure("no minimum", BROKER, "", ("min.insync.replicas", DELETE, None))
    replaced = AlterConfigsResource(
        resource_type=TOPIC, resource_name="b", configs=[AlterableConfig(name="retention.ms", value="7")]
    )
    player.step("all settings", AlterConfigsRequest(resources=[replaced]))
    player.step("all settings, twice", AlterConfigsRequest(resources=[replaced, replaced]))
    for name, feature, level, kind in (
        ("a feature goes down without a word", "transaction.version", 1, 1),
        ("a feature goes down", "transaction.version", 1, 2),
        ("up again", "transaction.version", 2, 1),
        ("down to a higher level", "transaction.version", 2, 2),
        ("an unknown level", "transaction.version", 9, 1),
        ("an unknown feature", "no.such.feature", 1, 1),
        ("an unknown kind of change", "transaction.version", 1, 9),
        ("metadata.version cannot go down", "metadata.version", 29, 2),
        ("a metadata.version that is not known", "metadata.version", 99, 1),
    ):
        update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
        player.step(name, UpdateFeaturesRequest(feature_updates=[update]))
    for broker_id in (1, 2):
        epoch = player.epochs[broker_id]
        player.step(f"ids for {broker_id}", AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch))
    player.step("ids for nobody", AllocateProducerIdsRequest(broker_id=1, broker_epoch=1))


def _security(player: Player) -> None:
    def quota(name: str, key: str, value: float | None, **entity: str | None) -> None:
        parts = [EntityData(entity_type=kind.replace("_", "-"), entity_name=each) for kind, each in entity.items()]
        entry = EntryData(entity=parts, ops=[OpData(key=key, value=value or 0, remove=value is None)])
        player.step(name, AlterClientQuotasRequest(entries=[entry]))

    quota("a quota", "producer_byte_rate", 100.0, user="alice")
    quota("the same quota", "producer_byte_rate", 100.0, user="alice")
    quota("of a client of a user", "consumer_byte_rate", 5.0, user="alice", client_id="c")
    quota("the default", "request_percentage", 50.0, user=None)
    quota("of an address", "connection_creation_rate", 5.0, ip="127.0.0.1")
    quota("a key that there is not", "speed", 1.0, user="alice")
    quota("of an address, another key", "producer_byte_rate", 1.0, ip="127.0.0.1")
    quota("nothing", "producer_byte_rate", 0.0, user="alice")
    quota("an unknown type", "producer_byte_rate", 1.0, planet="earth")
    quota("removed", "producer_byte_rate", None, user="alice")
    quota("removed again", "producer_byte_rate", None, user="alice")

    def users(name: str, *changes: ScramCredentialDeletion | ScramCredentialUpsertion) -> None:
        deletions = [each for each in changes if isinstance(each, ScramCredentialDeletion)]
        upsertions = [each for each in changes if isinstance(each, ScramCredentialUpsertion)]
        player.step(name, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions))

    def user(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
        return ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
        )

    users("users", user("alice"), user("bob", 2))
    users("too few iterations", user("carol", 1, 5))
    users("an unknown mechanism", user("carol", 9))
    users("without a name", user(""))
    users("deleted", ScramCredentialDeletion(name="alice", mechanism=1))
    users("deleted again", ScramCredentialDeletion(name="alice", mechanism=1))
    users("twice", ScramCredentialDeletion(name="bob", mechanism=2), user("bob"))

    def acl(name: str, **fields: Any) -> AclCreation:
        values: dict[str, Any] = {
            "resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:alice",
            "host": "*", "operation": 3, "permission_type": 3,
        }  # fmt: skip
        return AclCreation(**(values | fields))

    player.step("acls", CreateAclsRequest(creations=[acl("a"), acl("a"), acl("b", operation=4)]))
    player.step("the same again", CreateAclsRequest(creations=[acl("a")]))
    player.step("a bad acl", CreateAclsRequest(creations=[acl("a", principal="alice")]))
    wanted = DeleteAclsFilter(
        resource_type_filter=2, resource_name_filter="a", pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    player.step("delete acls", DeleteAclsRequest(filters=[wanted]))
    player.step("delete them again", DeleteAclsRequest(filters=[wanted]))


def _goodbye(player: Player) -> None:
    gone = DeleteTopicState(topic_id=player.image.topic_ids["d"])
    named = [DeleteTopicState(name="fine"), DeleteTopicState(name="nowhere"), gone]
    player.step("delete topics", DeleteTopicsRequest(topics=named, timeout_ms=5000))
    player.step("delete one again", DeleteTopicsRequest(topics=[gone], timeout_ms=5000))
    two = [uuid.uuid5(uuid.NAMESPACE_OID, f"directory {number} of 4") for number in (1, 2)]
    player.register("a broker with two directories", 4, log_dirs=two)
    player.heartbeat("is unfenced", 4)
    player.create("its directory is not known yet", topic("unassigned", [4, 1]))
    for name, directory in (("it is in the second", two[1]), ("it is in the first", two[0])):
        partitions = [AssignedPartition(partition_index=0), AssignedPartition(partition_index=9)]
        there = AssignedTopic(topic_id=player.image.topic_ids["unassigned"], partitions=partitions)
        here = AssignedTopic(topic_id=player.image.topic_ids["a"], partitions=partitions)
        wanted = AssignedDirectory(id_=directory, topics=[there, here])
        player.step(
            name,
            AssignReplicasToDirsRequest(broker_id=4, broker_epoch=player.epochs[4], directories=[wanted]),
        )
    failed = heartbeat_request(4, player.epochs[4], offline_log_dirs=[two[0]])
    player.step("a directory has failed", failed)
    player.step("as it was", failed)
    player.step("none takes new replicas", heartbeat_request(4, player.epochs[4], cordoned_log_dirs=[two[1]]))
    player.create("led by 2", topic("led-by-2", [2, 1, 3]))
    player.heartbeat("a controlled shutdown begins", 2, want_shut_down=True)
    # Kafka's controller has forgotten how far broker 4 was, since its registration changed.
    for broker_id in (1, 3, 4):
        player.heartbeat(f"broker {broker_id} has read of it", broker_id)
    player.heartbeat("and ends", 2, want_shut_down=True)
    player.heartbeat("the answer may have been lost", 2, want_shut_down=True)
    player.step("a broker is unregistered", UnregisterBrokerRequest(broker_id=2))
    player.step("one that there is not", UnregisterBrokerRequest(broker_id=2))
    player.heartbeat("without a registration", 2)
