"""Transactions whose coordinator and partitions are on different brokers, on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster import partitions
from oncelog.core.errors import ErrorCode
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import TRANSACTION_STATE_TOPIC
from oncelog.core.promise import Promise
from oncelog.protocol.batch import iter_headers, parse_control
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.cluster_metadata import FeatureLevelRecord
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.unit.server.harness import batch_of
from tests.unit.server.test_transactions import BrokenMarkers
from tests.unit.server.virtual_cluster import VirtualCluster

LEADER, COORDINATOR, THIRD = 1, 2, 3
"""Of the topic, and of the transactional id; the third one is there to take over."""


class Transaction:
    """A producer of the TV2 protocol, whose coordinator is not the leader of what it writes to."""

    def __init__(self, cluster: VirtualCluster, number: int = 0, *, timeout_ms: int = 60_000, of: int = 3) -> None:
        """`number` is of the id among those of this coordinator, `of` how many partitions `__transaction_state` has."""
        self.cluster = cluster
        self.id = self._id_at(COORDINATOR, number, of)
        answer = self.ask(
            COORDINATOR, InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms), 5
        )
        assert answer.error_code == 0
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def _id_at(self, node: int, number: int, partitions: int) -> str:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["any"])
        self.cluster.until(lambda: self.ask(LEADER, find).coordinators[0].error_code == 0)
        self.cluster.until(self.cluster.is_known_to_all)
        led = [index for index in range(partitions) if self.cluster.leader(TRANSACTION_STATE_TOPIC, index) == node]
        return [text for text in map(str, range(100)) if coordinator_partition(text, partitions) in led][number]

    def ask(self, node: int, request: Any, version: int | None = None) -> Any:
        return self.cluster.result(self.cluster.nodes[node].send(request, version))

    def produce(self, node: int = LEADER, topic: str = "orders") -> Any:
        answer = self.cluster.result(self.send(node, topic)).responses[0].partition_responses[0]
        self.sequence += answer.error_code == 0
        return answer

    def send(self, node: int = LEADER, topic: str = "orders") -> Promise[Any]:
        data = batch_of(
            [b"v"],
            timestamp_ms=self.cluster.clock.now_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        written = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])
        request = ProduceRequest(acks=-1, timeout_ms=5000, transactional_id=self.id, topic_data=[written])
        return self.cluster.nodes[node].send(request, 12)

    def ending(self) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )

    def end(self, node: int = COORDINATOR) -> Any:
        answer = self.ask(node, self.ending())
        if answer.error_code == 0:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return answer


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    started = VirtualCluster(
        tmp_path,
        3,
        replica_socket_timeout_ms="1000",
        replica_lag_time_max_ms="2000",
        transaction_state_log_num_partitions="3",
        transaction_two_phase_commit_enable="true",
    ).start()
    started.controller.create_topic("orders", [LEADER, THIRD])
    started.until(started.is_known_to_all)
    return started


def stable_offset(cluster: VirtualCluster, node: int = LEADER) -> int:
    partition = cluster.nodes[node].running.partitions.opened("orders", 0)
    assert partition is not None
    return partition.last_stable_offset


def test_the_leader_asks_the_coordinator_and_gets_its_marker(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    for number in range(3):
        assert transaction.produce().error_code == 0
        assert stable_offset(cluster) == 2 * number
        assert transaction.end().error_code == 0
        cluster.until(lambda number=number: stable_offset(cluster) == 2 * number + 2)  # type: ignore[misc]


def test_without_the_coordinator_nothing_is_written(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    cluster.cut(LEADER, COORDINATOR)
    assert transaction.produce().error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    partition = cluster.nodes[LEADER].running.partitions.opened("orders", 0)
    assert partition is not None
    assert partition.log_end_offset == 0
    cluster.heal()
    assert transaction.produce().error_code == 0


def test_a_marker_is_sent_until_the_leader_has_it(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    transaction.produce()
    cluster.cut(LEADER, COORDINATOR)
    assert transaction.end().error_code == 0
    cluster.clock.advance_ms(5000)
    assert stable_offset(cluster) == 0
    cluster.heal()
    cluster.until(lambda: stable_offset(cluster) == 2)


def test_the_next_coordinator_sends_the_markers_and_the_old_one_stops(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    transaction.produce()
    cluster.cut(LEADER, COORDINATOR)
    assert transaction.end().error_code == 0
    cluster.controller.fence(COORDINATOR)
    cluster.until(lambda: stable_offset(cluster) == 2)
    cluster.until(cluster.is_known_to_all)
    cluster.heal()
    cluster.calls.clear()
    # What it has given up it forgets at once, also if the request is still on its way.
    cluster.until(lambda: cluster.nodes[COORDINATOR].running.markers.queued_count == 0, within_ms=5_000)
    cluster.clock.advance_ms(60_000)  # the request that got no answer is given up by then
    sent = [call for call in cluster.calls if isinstance(call[2], WriteTxnMarkersRequest)]
    assert [call for call in sent if call[0] == COORDINATOR] == []
    assert cluster.nodes[COORDINATOR].running.markers.queued_count == 0


def test_the_next_leader_of_the_partition_gets_the_marker(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    transaction.produce()
    cluster.cut(LEADER, COORDINATOR)
    assert transaction.end().error_code == 0
    cluster.nodes[LEADER].kill()
    cluster.controller.fence(LEADER)
    cluster.until(lambda: stable_offset(cluster, THIRD) == 2)


def test_an_id_that_waits_for_its_markers_holds_up_nobody_else(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection between the leader and the coordinator serves all ids."""
    stuck, bystander = [Transaction(cluster, number) for number in (0, 1)]
    assert stuck.produce().error_code == 0
    markers = BrokenMarkers(monkeypatch)
    assert stuck.end().error_code == 0
    waiting = stuck.send()
    cluster.clock.advance_ms(50)
    begin_ms = cluster.clock.monotonic_ms()
    assert bystander.produce().error_code == 0
    assert bystander.end().error_code == 0
    assert cluster.clock.monotonic_ms() - begin_ms < 100
    assert not waiting.done
    markers.broken = False
    code = cluster.result(waiting).responses[0].partition_responses[0].error_code
    assert code == 0, "it is asked for again until the id has settled"


def test_an_id_that_does_not_settle_is_told_so_in_the_end(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = Transaction(cluster)
    assert transaction.produce().error_code == 0
    BrokenMarkers(monkeypatch)
    assert transaction.end().error_code == 0
    begin_ms = cluster.clock.monotonic_ms()
    cluster.calls.clear()
    assert transaction.produce().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert cluster.clock.monotonic_ms() - begin_ms <= 2000  # oncelog.parked.request.ms
    asked = [call for call in cluster.calls if isinstance(call[2], AddPartitionsToTxnRequest)]
    assert len(asked) in range(15, 30), "first after 20 ms, then every 100"


FIRST, SECOND, THIRD_IN_LINE = 2, 3, 4
"""The coordinators of the test below, one after the other; brokers 1 and 5 lead a topic each."""


def test_a_decision_that_is_not_committed_yet_is_not_carried_out_by_the_next_coordinator(tmp_path: Path) -> None:
    """The one after it may not have the decision, and then aborts what was committed on some partitions."""
    cluster = VirtualCluster(
        tmp_path,
        5,
        replica_socket_timeout_ms="1000",
        transaction_state_log_num_partitions="1",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
    ).start()
    coordinators = [FIRST, SECOND, THIRD_IN_LINE]
    cluster.controller.create_topic(
        TRANSACTION_STATE_TOPIC, coordinators, cleanup_policy="compact", min_insync_replicas="2"
    )
    leaders = {"orders-a": 1, "orders-b": 5}
    for topic, leader in leaders.items():
        cluster.controller.create_topic(topic, [leader])
    cluster.until(cluster.is_known_to_all)
    transaction = Transaction(cluster, timeout_ms=20_000, of=1)
    for topic, leader in leaders.items():
        assert transaction.produce(leader, topic).error_code == 0
        transaction.sequence = 0
    cluster.clock.advance_ms(2000)
    # The last in line misses the decision but is still in sync; markers of the second reach one of the topics.
    for one, other in [(THIRD_IN_LINE, FIRST), (THIRD_IN_LINE, SECOND), (SECOND, 5), (FIRST, 1), (FIRST, 5)]:
        cluster.cut(one, other)
    ending = cluster.nodes[FIRST].send(transaction.ending())
    cluster.clock.advance_ms(1200)
    assert not ending.done
    assert cluster.isr(TRANSACTION_STATE_TOPIC) == coordinators
    for node in (FIRST, SECOND):
        cluster.nodes[node].kill()
        cluster.controller.fence(node)
        cluster.clock.advance_ms(1500)
    cluster.heal()
    for node in (FIRST, SECOND):
        cluster.nodes[node].start()
    cluster.until(lambda: all(outcomes(cluster, leader, topic) for topic, leader in leaders.items()))
    found = {topic: outcomes(cluster, leader, topic) for topic, leader in leaders.items()}
    assert found == {"orders-a": ["abort"], "orders-b": ["abort"]}


def outcomes(cluster: VirtualCluster, node: int, topic: str) -> list[str]:
    partition = cluster.nodes[node].running.partitions.opened(topic, 0)
    assert partition is not None
    data = b"".join(segment.log_file.path.read_bytes() for segment in partition.log.segments)
    return [
        "commit" if parse_control(data, position).is_commit else "abort"
        for position, header in iter_headers(data)
        if header.is_control
    ]


def features_of(
    cluster: VirtualCluster, node: int, version: int = 4
) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Finalised levels, and the levels that the broker supports."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = cluster.result(cluster.nodes[node].send(request, version))
    finalised = {each.name: each.max_version_level for each in answer.finalized_features}
    return finalised, {each.name: (each.min_version, each.max_version) for each in answer.supported_features}


def test_the_level_of_the_cluster_decides_also_when_it_is_raised_at_run_time(cluster: VirtualCluster) -> None:
    """The broker's own setting, 2, does not count."""
    level = "transaction.version"
    cluster.controller.write(FeatureLevelRecord(name=level, feature_level=1))
    cluster.until(cluster.is_known_to_all)
    transaction = Transaction(cluster)
    keeping = InitProducerIdRequest(
        transactional_id=transaction.id, transaction_timeout_ms=60_000, enable2_pc=True, keep_prepared_txn=True
    )
    assert features_of(cluster, COORDINATOR)[0][level] == 1
    assert transaction.ask(COORDINATOR, keeping, 6).error_code == ErrorCode.UNSUPPORTED_VERSION
    cluster.controller.write(FeatureLevelRecord(name=level, feature_level=2))
    cluster.until(cluster.is_known_to_all)
    assert features_of(cluster, COORDINATOR)[0][level] == 2
    assert transaction.ask(COORDINATOR, keeping, 6).error_code == ErrorCode.NONE


def test_a_broker_tells_clients_of_all_features_that_it_registers_with(cluster: VirtualCluster) -> None:
    supported = features_of(cluster, LEADER)[1]
    assert supported["metadata.version"] == (21, 30)
    assert supported["transaction.version"] == (0, 2)
    assert "group.version" not in supported


def test_clients_that_know_no_level_zero_are_told_of_features_without_it(cluster: VirtualCluster) -> None:
    """KAFKA-17011: in version 3 they take such a feature for an error."""
    finalised, supported = features_of(cluster, LEADER, version=3)
    assert finalised["transaction.version"] == 2
    assert list(supported) == ["metadata.version"]


def epochs_of_markers(cluster: VirtualCluster, node: int = LEADER) -> list[int]:
    """The coordinator epochs of the markers in a log."""
    partition = cluster.nodes[node].running.partitions.opened("orders", 0)
    assert partition is not None
    data = b"".join(segment.log_file.path.read_bytes() for segment in partition.log.segments)
    headers = iter_headers(data)
    return [parse_control(data, position).coordinator_epoch for position, header in headers if header.is_control]


def elect_again(cluster: VirtualCluster, transaction: Transaction) -> None:
    """The same leader in a new epoch, as after it was fenced for a moment: nothing of the old one may go on."""
    index = coordinator_partition(transaction.id, 3)
    cluster.controller.change(TRANSACTION_STATE_TOPIC, index, leader=cluster.leader(TRANSACTION_STATE_TOPIC, index))
    cluster.until(cluster.is_known_to_all)


def test_a_coordinator_that_is_elected_again_works_under_its_new_epoch(cluster: VirtualCluster) -> None:
    transaction = Transaction(cluster)
    for epoch in (0, 1, 2):
        assert transaction.produce().error_code == 0
        cluster.until(lambda: transaction.end().error_code == 0)
        cluster.until(lambda epoch=epoch: epochs_of_markers(cluster) == list(range(epoch + 1)))  # type: ignore[misc]
        elect_again(cluster, transaction)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "late"])
def test_what_is_under_way_when_a_coordinator_is_elected_again_does_not_end_what_it_does_then(
    cluster: VirtualCluster, is_lost: bool
) -> None:
    """KAFKA-16352: the answer to markers of the old epoch is not for those of the new one, which must end as well."""
    transaction = Transaction(cluster)
    assert transaction.produce().error_code == 0
    if is_lost:
        cluster.cut(LEADER, COORDINATOR)
    else:
        cluster.lag_ms[COORDINATOR, "markers"] = 3000
    assert transaction.end().error_code == 0
    cluster.clock.advance_ms(100)
    elect_again(cluster, transaction)
    cluster.clock.advance_ms(100)
    cluster.heal()
    cluster.lag_ms.clear()
    expected = [1] if is_lost else [0, 1]
    cluster.until(lambda: epochs_of_markers(cluster) == expected, within_ms=40_000)
    cluster.until(lambda: transaction.produce().error_code == 0, within_ms=5000)
    cluster.until(lambda: transaction.end().error_code == 0, within_ms=5000)
    cluster.until(lambda: epochs_of_markers(cluster) == [*expected, 1])
    cluster.until(lambda: cluster.nodes[COORDINATOR].running.markers.queued_count == 0)


def test_a_decision_of_an_epoch_that_is_over_is_not_applied_when_it_is_committed(cluster: VirtualCluster) -> None:
    """KAFKA-20634: its record may be committed by the same broker under its next epoch, which loads it by itself."""
    transaction = Transaction(cluster)
    assert transaction.produce().error_code == 0
    cluster.clock.advance_ms(1000)
    for follower in (LEADER, THIRD):
        cluster.cut(COORDINATOR, follower)
    waiting = cluster.nodes[COORDINATOR].send(transaction.ending())
    cluster.clock.advance_ms(10)
    elect_again(cluster, transaction)
    assert not waiting.done
    cluster.calls.clear()
    cluster.heal()
    assert cluster.result(waiting).error_code == ErrorCode.NOT_COORDINATOR
    cluster.until(lambda: epochs_of_markers(cluster) == [1], within_ms=40_000)
    cluster.clock.advance_ms(5000)
    sent = [call[2].markers for call in cluster.calls if isinstance(call[2], WriteTxnMarkersRequest)]
    assert {marker.coordinator_epoch for markers in sent for marker in markers} == {1}
    assert epochs_of_markers(cluster) == [1]


def test_a_coordinator_whose_log_could_not_be_opened_carries_on_when_it_can_be(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in KAFKA-9307 the role is given again in the same epoch, and by then a request has opened the partition.

    Nobody asks for the transaction: its producer has gone.
    """
    transaction = Transaction(cluster)
    assert transaction.produce().error_code == 0
    cluster.cut(LEADER, COORDINATOR)
    assert transaction.end().error_code == 0
    cluster.clock.advance_ms(100)
    index = coordinator_partition(transaction.id, 3)
    cluster.controller.change(TRANSACTION_STATE_TOPIC, index, isr=[COORDINATOR])
    cluster.nodes[COORDINATOR].kill()
    cluster.controller.fence(COORDINATOR)
    cluster.heal()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as failing:
        failing.setattr(partitions, "Partition", refuse)
        cluster.nodes[COORDINATOR].start()
        cluster.until(lambda: cluster.controller.is_active(COORDINATOR))
        cluster.controller.change(TRANSACTION_STATE_TOPIC, index, leader=COORDINATOR)
        cluster.until(cluster.is_known_to_all)
    table = cluster.nodes[COORDINATOR].running.partitions
    assert table.opened(TRANSACTION_STATE_TOPIC, index) is None
    assert table.get(TRANSACTION_STATE_TOPIC, index).is_leader
    assert epochs_of_markers(cluster) == []
    cluster.until(lambda: epochs_of_markers(cluster) == [2], within_ms=20_000)


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused_by_the_next_leader_as_well(
    cluster: VirtualCluster,
) -> None:
    transaction = Transaction(cluster)
    assert transaction.produce().error_code == 0
    elect_again(cluster, transaction)
    cluster.until(lambda: transaction.end().error_code == 0)
    cluster.until(lambda: epochs_of_markers(cluster) == epochs_of_markers(cluster, THIRD) == [1])
    assert transaction.produce().error_code == 0
    late = WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch + 1,
        transaction_result=False,
        coordinator_epoch=0,
        transaction_version=2,
        topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
    )
    cluster.controller.change("orders", leader=THIRD)
    cluster.until(cluster.is_known_to_all)
    answer = transaction.ask(THIRD, WriteTxnMarkersRequest(markers=[late]))
    code = answer.markers[0].topics[0].partitions[0].error_code
    assert code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert epochs_of_markers(cluster, THIRD) == [1]


def test_a_transaction_does_not_wait_for_the_next_fetch_of_a_follower(tmp_path: Path) -> None:
    """The fetch that commits a marker makes the coordinator append, after that fetch has looked for news there."""
    cluster = VirtualCluster(
        tmp_path, 2, transaction_state_log_num_partitions="3", transaction_state_log_replication_factor="2"
    ).start()
    cluster.controller.create_topic("orders", [COORDINATOR, LEADER])
    cluster.until(cluster.is_known_to_all)
    transaction = Transaction(cluster)
    fetch_wait_ms = 500
    for number in range(10):
        before_ms = cluster.clock.now_ms()
        assert transaction.produce(COORDINATOR).error_code == 0
        assert transaction.end().error_code == 0
        took_ms = cluster.clock.now_ms() - before_ms
        assert number == 0 or took_ms < fetch_wait_ms / 5
