"""What each metadata record does to the image."""

from __future__ import annotations

import uuid

import pytest

from oncelog.controller import delta, replay
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, ConfigResource, ScramCredentialKey
from oncelog.controller.replay import Replay
from oncelog.core.ids import NULL_UUID, NodeId
from oncelog.core.steps import at_once
from oncelog.protocol.messages.cluster_metadata import (
    RECORD_TYPES,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from oncelog.protocol.schema import Message
from tests.unit.controller.metadata import DIRECTORIES, OTHER_TOPIC, TOPIC, broker, image_of, partition, topic


def change(index: int = 0, **fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=TOPIC, **fields)  # type: ignore[arg-type]


def test_every_type_of_record_is_replayed() -> None:
    transactions = {BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord}
    assert replay._REPLAY.keys() | transactions == set(RECORD_TYPES.values())


def test_a_topic_is_known_by_id_and_name_until_it_is_removed() -> None:
    made = image_of(topic(), partition(0), partition(1))
    assert made.topic_ids == {"orders": TOPIC}
    assert made.topics[TOPIC].partitions.keys() == {0, 1}
    gone = image_of(RemoveTopicRecord(topic_id=TOPIC), topic(topic_id=OTHER_TOPIC), before=made)
    assert gone.topic_ids == {"orders": OTHER_TOPIC}
    assert gone.topics[OTHER_TOPIC].partitions == {}


def test_a_removed_topic_takes_its_settings_with_it() -> None:
    settings = [ConfigRecord(resource_type=kind, resource_name="orders", name="x", value="1") for kind in (2, 4)]
    image = image_of(topic(), *settings, RemoveTopicRecord(topic_id=TOPIC))
    assert image.settings == {ConfigResource(4, "orders"): {"x": "1"}}


def test_an_image_that_was_given_away_does_not_change() -> None:
    running = Replay()
    running.apply(topic())
    running.apply(partition())
    first = running.image()
    running.apply(change(isr=[1]))
    running.apply(broker())
    second = running.image()
    assert first == image_of(topic(), partition())
    assert second.topics[TOPIC].partitions[0].isr == (1,)
    assert first.features is second.features
    assert second.brokers.keys() == {1}


@pytest.mark.parametrize(
    ("fields", "leader", "leader_epoch"),
    [({"isr": [1]}, 1, 5), ({"leader": 2}, 2, 6), ({"leader": 1}, 1, 6), ({"leader": -1}, -1, 6)],
)
def test_a_leader_epoch_grows_with_every_named_leader(
    fields: dict[str, object], leader: int, leader_epoch: int
) -> None:
    image = image_of(topic(), partition(leader_epoch=5, partition_epoch=9), change(**fields))
    found = image.topics[TOPIC].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (leader, leader_epoch, 10)


def test_a_change_replaces_the_fields_it_has() -> None:
    changed = change(
        isr=[2],
        replicas=[2, 3, 4],
        removing_replicas=[1],
        adding_replicas=[4],
        leader_recovery_state=1,
        directories=DIRECTORIES[::-1],
        eligible_leader_replicas=[3],
        last_known_elr=[1],
    )
    found = image_of(topic(), partition(), changed, change()).topics[TOPIC].partitions[0]
    assert (found.isr, found.replicas) == ((2,), (2, 3, 4))
    assert (found.removing_replicas, found.adding_replicas) == ((1,), (4,))
    assert (found.elr, found.last_known_elr, found.is_recovering) == ((3,), (1,), True)
    assert found.directories == tuple(DIRECTORIES[::-1])
    assert (found.leader_epoch, found.partition_epoch) == (0, 2)


def test_replicas_of_old_records_have_no_known_directory() -> None:
    image = image_of(topic(), partition(directories=[]), change(replicas=[1, 2, 3, 4]))
    assert image.topics[TOPIC].partitions[0].directories == (NULL_UUID,) * 4


def test_clearing_the_elr_changes_only_partitions_that_have_one() -> None:
    elr = {"eligible_leader_replicas": [2]}
    known = {"last_known_elr": [3]}
    before = image_of(
        topic(), partition(0, **elr), partition(1), topic("b", OTHER_TOPIC), partition(0, OTHER_TOPIC, **known)
    )
    one = image_of(ClearElrRecord(topic_name="orders"), before=before)
    assert [found.partition_epoch for found in one.topics[TOPIC].partitions.values()] == [1, 0]
    assert one.topics[OTHER_TOPIC] is before.topics[OTHER_TOPIC]
    every = image_of(ClearElrRecord(topic_name=""), before=before)
    partitions = [found for image in every.topics.values() for found in image.partitions.values()]
    assert [(found.elr, found.last_known_elr, found.partition_epoch) for found in partitions] == [
        ((), (), 1),
        ((), (), 0),
        ((), (), 1),
    ]


def test_a_broker_is_fenced_unfenced_and_shut_down_in_its_epoch() -> None:
    def state(*records: Message) -> tuple[bool, bool]:
        found = image_of(broker(), *records).brokers[NodeId(1)]
        return found.is_fenced, found.in_controlled_shutdown

    def changed(**fields: object) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, **fields)  # type: ignore[arg-type]

    assert state() == (True, False)
    assert state(changed(fenced=-1)) == (False, False)
    assert state(changed(fenced=-1), changed(in_controlled_shutdown=1)) == (False, True)
    assert state(changed(fenced=-1), changed(in_controlled_shutdown=1), changed(fenced=1)) == (True, True)
    assert state(UnfenceBrokerRecord(id=1, epoch=10)) == (False, False)
    assert state(UnfenceBrokerRecord(id=1, epoch=10), FenceBrokerRecord(id=1, epoch=10)) == (True, False)
    assert state(changed(fenced=-1), broker()) == (True, False)
    assert image_of(broker(), UnregisterBrokerRecord(broker_id=1, broker_epoch=10)).brokers == {}


def test_directories_of_a_broker_change_only_when_given() -> None:
    fields = {"broker_id": 1, "broker_epoch": 10}
    first = image_of(broker(log_dirs=DIRECTORIES), BrokerRegistrationChangeRecord(**fields, fenced=-1))
    assert first.brokers[NodeId(1)].directories == tuple(DIRECTORIES)
    assert first.brokers[NodeId(1)].cordoned_directories is None
    told = BrokerRegistrationChangeRecord(**fields, log_dirs=DIRECTORIES[:1], cordoned_log_dirs=[])
    second = image_of(told, BrokerRegistrationChangeRecord(**fields), before=first).brokers[NodeId(1)]
    assert (second.directories, second.cordoned_directories) == ((DIRECTORIES[0],), ())


def test_levels_settings_quotas_and_producer_ids() -> None:
    entity = [QuotaEntity(entity_type="user", entity_name="ann"), QuotaEntity(entity_type="client-id")]
    entity[1].entity_name = None
    records: list[Message] = [
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="group.version", feature_level=1),
        FeatureLevelRecord(name="group.version", feature_level=0),
        FeatureLevelRecord(name="kraft.version", feature_level=1),
        ConfigRecord(resource_type=4, resource_name="", name="a", value="1"),
        ConfigRecord(resource_type=4, resource_name="", name="b", value="2"),
        ConfigRecord(resource_type=4, resource_name="", name="a", value=None),
        ConfigRecord(resource_type=2, resource_name="t", name="a", value="1"),
        ConfigRecord(resource_type=2, resource_name="t", name="a", value=None),
        ClientQuotaRecord(entity=entity, key="producer_byte_rate", value=10.5),
        ClientQuotaRecord(entity=entity[::-1], key="consumer_byte_rate", value=3.0),
        ClientQuotaRecord(entity=entity, key="producer_byte_rate", remove=True),
        ProducerIdsRecord(broker_id=1, broker_epoch=10, next_producer_id=1000),
        ProducerIdsRecord(broker_id=1, broker_epoch=10, next_producer_id=2000),
    ]
    image = image_of(*records)
    assert image.features == {"metadata.version": 30}
    assert image.settings == {ConfigResource(4, ""): {"b": "2"}}
    assert image.quotas == {(("client-id", None), ("user", "ann")): {"consumer_byte_rate": 3.0}}
    assert image.next_producer_id == 2000
    assert image_of(ClientQuotaRecord(entity=entity, key="consumer_byte_rate", remove=True), before=image).quotas == {}


def test_credentials_acls_tokens_and_controllers() -> None:
    acl = AccessControlEntryRecord(id=uuid.UUID(int=7), resource_name="orders", principal="User:ann")
    scram = UserScramCredentialRecord(name="ann", mechanism=1, salt=b"s", iterations=4096)
    token = DelegationTokenRecord(owner="User:ann", token_id="t1")
    controller = RegisterControllerRecord(controller_id=3, incarnation_id=uuid.UUID(int=8))
    image = image_of(acl, scram, token, controller)
    assert image.acls == {acl.id: acl}
    assert image.scram == {ScramCredentialKey("ann", 1): scram}
    assert image.delegation_tokens == {"t1": token}
    assert image.controllers == {3: controller}
    emptied = image_of(
        RemoveAccessControlEntryRecord(id=acl.id),
        RemoveUserScramCredentialRecord(name="ann", mechanism=1),
        RemoveDelegationTokenRecord(token_id="t1"),
        before=image,
    )
    assert (emptied.acls, emptied.scram, emptied.delegation_tokens) == ({}, {}, {})


def test_records_that_say_nothing_change_nothing() -> None:
    assert image_of(NoOpRecord(), ZkMigrationStateRecord(zk_migration_state=3)) == EMPTY_IMAGE


def test_a_transaction_is_seen_as_a_whole_or_not_at_all() -> None:
    running = Replay()
    for record in [broker(), BeginTransactionRecord(name="bootstrap"), topic(), partition()]:
        running.apply(record)
    assert running.image() == image_of(broker())
    running.apply(EndTransactionRecord())
    assert running.image() == image_of(broker(), topic(), partition())
    for record in [BeginTransactionRecord(), RemoveTopicRecord(topic_id=TOPIC), AbortTransactionRecord(), NoOpRecord()]:
        running.apply(record)
    assert running.image() == image_of(broker(), topic(), partition())


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([EndTransactionRecord()], "without a transaction"),
        ([AbortTransactionRecord()], "without a transaction"),
        ([BeginTransactionRecord(), BeginTransactionRecord(name="second")], "'second' begins inside another"),
        ([partition()], "topic with id .* is not there"),
        ([RemoveTopicRecord(topic_id=TOPIC)], "topic with id .* is not there"),
        ([topic(), change()], "partition 0 of topic orders is changed"),
        ([topic(), topic("other")], "topic other .* name or id is taken"),
        ([topic(), topic(topic_id=OTHER_TOPIC)], "topic orders .* name or id is taken"),
        ([ClearElrRecord(topic_name="orders")], "ELR of topic orders"),
        ([topic(), partition(leader_epoch=3), partition(leader_epoch=2)], "goes back from leader epoch 3"),
        ([topic(), partition(partition_epoch=3), partition(partition_epoch=2)], "goes back .* partition epoch 3"),
        ([topic(), partition(directories=DIRECTORIES[:2])], "3 replicas have 2 directories"),
        ([topic(), partition(), change(replicas=[1, 2])], "2 replicas have 3 directories"),
        ([topic(), partition(), change(leader_recovery_state=2)], "recovery state 2"),
        ([BrokerRegistrationChangeRecord(broker_id=1, fenced=1)], "broker 1 is changed, but is not registered"),
        ([broker(), FenceBrokerRecord(id=1, epoch=9)], "in epoch 9, but has epoch 10"),
        ([broker(), UnregisterBrokerRecord(broker_id=1, broker_epoch=11)], "in epoch 11, but has epoch 10"),
        ([broker(), BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, fenced=2)], "value is unknown"),
        ([ProducerIdsRecord(next_producer_id=9), ProducerIdsRecord(next_producer_id=8)], "goes back from 9 to 8"),
        ([RemoveAccessControlEntryRecord(id=TOPIC)], "ACL with id"),
    ],
)
def test_what_cannot_follow_is_refused(records: list[Message], reason: str) -> None:
    with pytest.raises(InvalidMetadata, match=reason):
        image_of(*records)


def test_a_partition_of_many_in_one_topic_is_not_a_copy_of_all_others() -> None:
    """The partitions of a topic are copied once between two images."""
    running = Replay()
    running.apply(topic())
    for index in range(3):
        running.apply(PartitionRecord(partition_id=index, topic_id=TOPIC))
    owned = running._partitions(TOPIC)
    running.apply(change(1, isr=[]))
    assert running._partitions(TOPIC) is owned
    running.image()
    assert running._partitions(TOPIC) is not owned


def test_only_what_was_touched_is_compared_with_the_image_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change must not cost what all topics together cost."""
    replayed = Replay(image_of(topic(), partition(), partition(1)))
    before = replayed.image()
    monkeypatch.setattr(delta, "_all_of", lambda *_: pytest.fail("everything is compared"))
    replayed.apply(change(1, leader=2))
    image, found = at_once(replayed.image_after(before))
    assert [(key.partition, each.after) for key, each in found.partitions.items()] == [
        (1, image.topics[TOPIC].partitions[1])
    ]
    replayed.apply(RemoveTopicRecord(topic_id=TOPIC))
    gone, found = at_once(replayed.image_after(image))
    assert (list(found.topics), len(found.partitions), dict(gone.topics)) == ([TOPIC], 2, {})


def test_an_image_that_is_not_the_last_one_is_compared_as_a_whole() -> None:
    replayed = Replay(image_of(topic(), partition()))
    _, found = at_once(replayed.image_after(EMPTY_IMAGE))
    assert list(found.topics) == [TOPIC]
