"""Registration, heartbeats, sessions, controlled shutdown."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.unit.controller.rig import FEATURES, SESSION_MS, Asker, Rig, state

OLD = Feature(name="metadata.version", min_supported_version=7, max_supported_version=29)


def refusal(call: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_the_epoch_of_a_broker_is_the_offset_of_the_first_record() -> None:
    rig = Rig()
    end = len(rig.log)
    assert rig.register(1) == end
    record = rig.log[-1]
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_epoch, record.fenced) == (end, True)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [uuid.UUID(int=1)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [uuid.UUID(int=900), uuid.UUID(int=900)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [uuid.UUID(int=50_001)]}, ErrorCode.INVALID_REGISTRATION),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"features": FEATURES[1:]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": FEATURES[:1]}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": [*FEATURES[1:], OLD]}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": [*FEATURES, Feature(name="new", min_supported_version=1, max_supported_version=5)]},
         ErrorCode.UNSUPPORTED_VERSION),
    ],
)  # fmt: skip
def test_who_may_not_register(fields: dict[str, Any], code: ErrorCode) -> None:
    rig = Rig()
    rig.start(1)
    assert refusal(lambda: rig.register(2, **fields)) is code
    assert NodeId(2) not in rig.image.brokers


def test_an_unknown_feature_that_may_be_off_is_no_reason_to_refuse() -> None:
    rig = Rig()
    rig.start(1, features=[*FEATURES, Feature(name="new", min_supported_version=0, max_supported_version=5)])


def test_an_id_is_taken_as_long_as_its_broker_sends_heartbeats() -> None:
    rig = Rig()
    rig.register(1)
    rig.register(1, incarnation_id=uuid.uuid4())  # without a heartbeat between, they replace each other
    rig.heartbeat(1)
    rig.now_ms += SESSION_MS
    other = {"incarnation_id": uuid.uuid4()}
    assert refusal(lambda: rig.register(1, **other)) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    rig.now_ms += 1
    rig.register(1, **other)


def test_the_same_process_may_register_again_in_its_epoch() -> None:
    """KAFKA-16952: with another epoch, leaders would take its fetches for those of a process that is gone."""
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    epoch = rig.epochs[2]
    same = rig.registration(2).incarnation_id
    assert rig.register(2, incarnation_id=same, rack="r9") == epoch
    assert (rig.registration(2).rack, rig.registration(2).is_fenced) == ("r9", False)
    assert rig.registration(2).epoch == epoch
    assert state(rig.partition("orders")) == (1, [1, 2], [])
    assert not rig.heartbeat(2).is_fenced
    rig.alter("orders", [1])
    assert rig.alter("orders", [1, 2], epochs={1: rig.epochs[1], 2: epoch}).error_code == 0


def test_a_process_that_registers_again_while_it_stops_goes_on_stopping() -> None:
    """So it does in a session that is about to end: KAFKA-16952."""
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    assert not rig.heartbeat(1, want_shut_down=True).should_shut_down
    rig.register(1, incarnation_id=rig.registration(1).incarnation_id)
    assert rig.registration(1).in_controlled_shutdown
    rig.heartbeat(2)
    assert rig.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_broker_is_unfenced_once_it_has_read_its_registration() -> None:
    rig = Rig()
    offset = rig.register(1)
    answer = rig.heartbeat(1, offset=offset - 1)
    assert (answer.is_caught_up, answer.is_fenced) == (False, True)
    answer = rig.heartbeat(1, offset=offset, want_fence=True)
    assert (answer.is_caught_up, answer.is_fenced) == (True, True)
    answer = rig.heartbeat(1, offset=offset)
    assert (answer.is_caught_up, answer.is_fenced) == (True, False)
    assert rig.last == [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=offset, fenced=-1)]
    assert rig.heartbeat(1, offset=offset).is_fenced is False
    assert rig.last == []


def test_a_broker_that_registers_again_is_unfenced_once_it_has_read_that() -> None:
    """Its new process may have read what the former one had: without its own registration it knows nobody's roles."""
    rig = Rig()
    first = rig.register(1)
    again = rig.register(1, incarnation_id=uuid.uuid4())
    assert again > first
    answer = rig.heartbeat(1, offset=again - 1)
    assert (answer.is_caught_up, answer.is_fenced) == (False, True)
    assert rig.heartbeat(1, offset=again).is_fenced is False


def test_a_stale_or_unknown_epoch_is_told() -> None:
    rig = Rig()
    rig.start(1)
    for broker_id, epoch in ((1, rig.epochs[1] - 1), (2, 5)):
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
        assert refusal(lambda request=request: rig.ask(request)) is ErrorCode.STALE_BROKER_EPOCH


def test_a_silent_broker_is_fenced_after_its_partitions_have_got_other_leaders() -> None:
    rig = Rig()
    rig.start(1, 2, 3)
    rig.create("orders", [1, 2, 3])
    assert rig.pass_time(SESSION_MS, 2, 3) == []
    rig.now_ms += 1
    topic_id = rig.image.topic_ids["orders"]
    assert rig.pass_time(0) == [
        PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[2, 3], leader=2),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=rig.epochs[1], fenced=1),
    ]
    assert rig.partition("orders").leader_epoch == 1
    assert rig.heartbeat(1).is_fenced is False  # silence does not end the epoch
    assert rig.partition("orders").leader == 2


def test_a_new_active_controller_gives_every_unfenced_broker_a_new_session() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.now_ms += 10 * SESSION_MS
    rig.machine.activate(rig.now_ms)
    assert rig.pass_time(0) == []
    rig.now_ms += SESSION_MS + 1
    assert len(rig.pass_time(0)) == 2


def test_a_broker_that_leads_nothing_may_stop_at_once() -> None:
    rig = Rig()
    rig.start(1, 2)
    answer = rig.heartbeat(2, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert rig.registration(2).is_fenced


def test_a_controlled_shutdown_ends_when_all_others_know_who_leads() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    before = len(rig.log)
    answer = rig.heartbeat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert [type(record) for record in rig.last] == [BrokerRegistrationChangeRecord, PartitionChangeRecord]
    assert state(rig.partition("orders")) == (2, [2], [])
    rig.heartbeat(2, offset=before)
    assert not rig.heartbeat(1, want_shut_down=True).should_shut_down
    assert rig.last == []
    rig.heartbeat(2, offset=before + 1)
    answer = rig.heartbeat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert rig.last == [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=rig.epochs[1], fenced=1)]
    assert rig.heartbeat(1, want_shut_down=True).should_shut_down  # an answer may have been lost


@pytest.mark.parametrize("leads", [True, False])
def test_a_heartbeat_that_comes_late_does_not_unfence_a_broker_that_has_stopped(leads: bool) -> None:
    """It would lead what nobody else can, and its process has ended."""
    rig = Rig(elr=False)
    rig.start(1, 2)
    rig.create("orders", [1 if leads else 2])
    while not rig.heartbeat(1, want_shut_down=True).should_shut_down:
        rig.heartbeat(2, offset=len(rig.log))
    assert rig.heartbeat(1).is_fenced
    assert rig.last == []
    rig.restart(1, clean=True)
    assert not rig.registration(1).is_fenced


def test_the_last_in_sync_replica_keeps_its_partitions_in_its_shutdown() -> None:
    rig = Rig(elr=False)
    rig.start(1)
    rig.create("orders", [1])
    assert not rig.heartbeat(1, want_shut_down=True).should_shut_down
    assert state(rig.partition("orders")) == (-1, [1], [])
    assert rig.heartbeat(1, want_shut_down=True).should_shut_down
    rig.restart(1, clean=True)
    assert state(rig.partition("orders")) == (1, [1], [])


def test_an_unregistered_broker_is_in_no_partition_and_its_heartbeats_are_stale() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    rig.ask(UnregisterBrokerRequest(broker_id=1))
    assert rig.log[-1] == UnregisterBrokerRecord(broker_id=1, broker_epoch=rig.epochs[1])
    assert state(rig.partition("orders")) == (2, [2], [])
    assert refusal(lambda: rig.heartbeat(1)) is ErrorCode.STALE_BROKER_EPOCH
    request = UnregisterBrokerRequest(broker_id=1)
    assert refusal(lambda: rig.ask(request)) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_cordoned_directories_are_noted_once() -> None:
    rig = Rig()
    rig.start(1)
    request = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=rig.epochs[1], current_metadata_offset=len(rig.log), cordoned_log_dirs=[]
    )
    rig.ask(request)
    assert len(rig.last) == 1
    rig.ask(request)
    assert rig.last == []


def test_a_restart_of_an_older_version_counts_as_unclean() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2], min_insync_replicas="2")
    rig.heartbeat(1, want_fence=True, want_shut_down=True)
    assert state(rig.partition("orders")) == (2, [2], [1])
    rig.now_ms += SESSION_MS + 1
    old, epoch = Asker(api_version=2), rig.epochs[1]
    rig.ask(
        BrokerRegistrationRequest(
            broker_id=1, cluster_id=rig.machine.config.cluster_id, incarnation_id=uuid.uuid4(),
            features=FEATURES, log_dirs=[uuid.UUID(int=50_001)], previous_broker_epoch=epoch,
        ),
        old,
    )  # fmt: skip
    assert state(rig.partition("orders")) == (2, [2], [])


def test_replicas_in_a_directory_that_failed_are_out_of_sync() -> None:
    rig = Rig()
    rig.start(1)
    directories = [uuid.UUID(int=901), uuid.UUID(int=902)]
    rig.start(2, log_dirs=directories)
    rig.create("orders", [2, 1])
    assert rig.partition("orders").directories[0] == uuid.UUID(int=1), "not assigned yet"
    topic_id = rig.image.topic_ids["orders"]

    def assign(directory: uuid.UUID, index: int = 0, topic: uuid.UUID = topic_id, broker_id: int = 2) -> int:
        partitions = [AssignedPartition(partition_index=index)]
        wanted = AssignedDirectory(id_=directory, topics=[AssignedTopic(topic_id=topic, partitions=partitions)])
        answer = rig.ask(
            AssignReplicasToDirsRequest(broker_id=broker_id, broker_epoch=rig.epochs[broker_id], directories=[wanted])
        )
        code: int = answer.directories[0].topics[0].partitions[0].error_code
        return code

    before = rig.partition("orders")
    assert assign(directories[0]) == 0
    found = rig.partition("orders")
    assert (found.directories[0], found.leader_epoch) == (directories[0], before.leader_epoch)
    assert found.partition_epoch == before.partition_epoch + 1
    assert assign(directories[0]) == 0
    assert rig.last == []
    assert assign(directories[0], index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(directories[0], topic=uuid.UUID(int=5)) == ErrorCode.UNKNOWN_TOPIC_ID
    rig.create("elsewhere", [1])
    other = rig.image.topic_ids["elsewhere"]
    assert assign(directories[0], topic=other) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def report(*failed: uuid.UUID) -> None:
        rig.ask(
            BrokerHeartbeatRequest(
                broker_id=2, broker_epoch=rig.epochs[2], current_metadata_offset=len(rig.log),
                offline_log_dirs=list(failed),
            )
        )  # fmt: skip

    report(directories[0])
    assert state(rig.partition("orders")) == (1, [1], [])
    assert rig.registration(2).directories == (directories[1],)
    assert rig.last[-1] == BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=rig.epochs[2], log_dirs=[directories[1]]
    )
    report(directories[0])
    assert rig.last == []
    assert rig.alter("orders", [1]).error_code == 0
    report(*directories)
    assert rig.last == [], "directories that are all gone cannot be told, and no heartbeat costs a record"


def test_a_silent_broker_is_fenced_later_if_the_first_attempt_was_not_committed() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    rig.now_ms += SESSION_MS + 1
    rig.heartbeat(2)
    lost = rig.machine.round(len(rig.log))
    lost.fence_silent(rig.now_ms)
    assert lost.records
    assert rig.partition("orders").leader == 1
    assert rig.pass_time(0)
    assert state(rig.partition("orders")) == (2, [2], [])
    assert rig.registration(1).is_fenced
    assert rig.pass_time(0) == []
    assert rig.machine.heartbeats.next_expiry_ms == rig.now_ms + SESSION_MS + 1


def test_a_controlled_shutdown_begins_again_if_its_begin_was_not_committed() -> None:
    rig = Rig()
    rig.start(1, 2)
    rig.create("orders", [1, 2])
    request = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=rig.epochs[1], current_metadata_offset=len(rig.log), want_shut_down=True
    )
    lost = rig.machine.round(len(rig.log))
    lost.ask(request, Asker(), rig.now_ms)
    assert lost.records
    assert not rig.heartbeat(1, want_shut_down=True).should_shut_down
    assert state(rig.partition("orders")) == (2, [2], [])
    rig.heartbeat(2)
    assert rig.heartbeat(1, want_shut_down=True).should_shut_down
