"""Brokers of a cluster, on a virtual clock with a controller and a network of the test's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NodeId, TopicPartition
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.alter_partition import AlterPartitionRequest
from oncelog.protocol.messages.cluster_metadata import UnregisterBrokerRecord
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.envelope import EnvelopeRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.schema import Message
from oncelog.server.context import Peer
from oncelog.storage.clean_shutdown import read_broker_epoch
from tests.unit.server.virtual_cluster import CONTROLLER, VirtualCluster, address_of

NEXT_CONTROLLER = 99


@pytest.fixture
def new_cluster(tmp_path: Path) -> Callable[..., VirtualCluster]:
    return lambda nodes=2, **settings: VirtualCluster(tmp_path, nodes, **settings).start()


def committed(cluster: VirtualCluster, node: int, topic: str, value: bytes = b"v") -> Any:
    cluster.until(cluster.is_known_to_all)
    return cluster.result(cluster.nodes[node].produce(topic, value))


def end_offset(cluster: VirtualCluster, node: int, topic: str) -> int:
    partition = cluster.nodes[node].running.partitions.opened(topic, 0)
    return -1 if partition is None else partition.log_end_offset


def sent_to_controller(cluster: VirtualCluster, node: int) -> list[Message]:
    return [request for sender, target, request in cluster.calls if (sender, target) == (node, CONTROLLER)]


def is_led_by(cluster: VirtualCluster, node: int, topic: str) -> bool:
    partition = cluster.nodes[node].running.partitions.opened(topic, 0)
    return partition is not None and partition.is_leader


def test_both_brokers_serve_and_tell_of_each_other(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    for node in cluster.nodes.values():
        answer = cluster.result(node.send(MetadataRequest(topics=[])))
        assert sorted((broker.node_id, broker.port) for broker in answer.brokers) == [(1, 1001), (2, 1002)]


def test_a_broker_that_is_away_is_described_if_asked_for(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    cluster.until(lambda: cluster.nodes[1].running.metadata.image.brokers[NodeId(2)].is_fenced)
    for include, described in ((False, [(1, False)]), (True, [(1, False), (2, True)])):
        answer = cluster.result(cluster.nodes[1].send(DescribeClusterRequest(include_fenced_brokers=include)))
        assert sorted((broker.broker_id, broker.is_fenced) for broker in answer.brokers) == described


def test_acks_all_waits_for_the_follower(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 0)
    cluster.until(cluster.is_known_to_all)
    cluster.cut(1, 2)
    waiting = cluster.nodes[1].produce("orders", b"v", timeout_ms=3000)
    cluster.clock.advance_ms(2000)
    assert not waiting.done
    answer = cluster.result(waiting)
    assert (ErrorCode(answer.error_code), answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    cluster.heal()
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 1)
    assert committed(cluster, 1, "orders").error_code == 0
    assert end_offset(cluster, 2, "orders") == 2


def test_a_follower_that_stays_away_leaves_the_isr_and_comes_back(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster(replica_lag_time_max_ms="2000")
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.cut(1, 2)
    waiting = cluster.nodes[1].produce("orders", b"v", timeout_ms=30_000)
    cluster.until(lambda: cluster.isr("orders") == [1])
    assert cluster.result(waiting).error_code == 0
    cluster.heal()
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2])


def test_a_follower_joins_the_isr_when_it_has_all_that_is_committed(new_cluster: Callable[..., VirtualCluster]) -> None:
    """Its log is fetched batch by batch, and each fetch is in the leader epoch."""
    cluster = new_cluster(replica_lag_time_max_ms="2000", replica_fetch_response_max_bytes="1")
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.cut(1, 2)
    cluster.until(lambda: cluster.isr("orders") == [1])
    for _ in range(5):
        assert committed(cluster, 1, "orders").error_code == 0
    del cluster.calls[:]
    cluster.heal()
    cluster.until(lambda: any(isinstance(call, AlterPartitionRequest) for call in sent_to_controller(cluster, 1)))
    assert end_offset(cluster, 2, "orders") == 6
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2])


def test_a_follower_that_the_controller_refuses_is_proposed_again_when_it_fetches(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    """And not at once, for as long as the metadata takes that tells why."""
    cluster = new_cluster(
        replica_lag_time_max_ms="2000", replica_socket_timeout_ms="1000", replica_fetch_backoff_ms="10"
    )
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 0)
    cluster.until(cluster.is_known_to_all)
    cluster.cut(1, 2)
    assert cluster.result(cluster.nodes[1].produce("orders", b"v", acks=1)).error_code == ErrorCode.NONE
    cluster.until(lambda: cluster.isr("orders") == [1], within_ms=10_000)
    cluster.until(cluster.is_known_to_all)
    cluster.cut(2, CONTROLLER)
    cluster.lag_ms[1, "quorum"] = 1400
    cluster.clock.advance_ms(1500)
    del cluster.calls[:]
    cluster.until(lambda: any(isinstance(call, FetchRequest) for call in sent_to_controller(cluster, 1)))
    cluster.controller.fence(2)
    cluster.heal(1, 2)
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 1, within_ms=1100)
    cluster.clock.advance_ms(100)
    sent = [type(request) for request in sent_to_controller(cluster, 1)]
    fetches = [request for sender, target, request in cluster.calls if (sender, target) == (2, 1)]
    assert 1 <= sent.count(AlterPartitionRequest) <= len(fetches)
    cluster.heal()
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2], within_ms=20_000)


def test_what_a_paused_controller_was_asked_is_asked_of_the_next_one_when_that_is_known(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    """And not only when its time is over: half a minute for those in sync, a minute for what clients want."""
    servers = ",".join(f"127.0.0.1:{address_of(node).port}" for node in (CONTROLLER, NEXT_CONTROLLER))
    cluster = new_cluster(replica_lag_time_max_ms="2000", controller_quorum_bootstrap_servers=servers)
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.lag_ms[1, "isr"] = 10
    cluster.cut(1, 2)
    waiting = cluster.nodes[1].produce("orders", b"v", timeout_ms=60_000)
    cluster.until(lambda: any(isinstance(call, AlterPartitionRequest) for call in sent_to_controller(cluster, 1)))
    cluster.cut(1, CONTROLLER)
    creating = cluster.nodes[1].send(CreateTopicsRequest(topics=[CreatableTopic(name="new")]))
    assert any(isinstance(call, EnvelopeRequest) for call in sent_to_controller(cluster, 1))
    cluster.controller.move(NEXT_CONTROLLER)
    cluster.until(lambda: waiting.done and creating.done, within_ms=5000)
    assert waiting.value.error_code == ErrorCode.NONE
    assert cluster.isr("orders") == [1]
    assert creating.value is None, "the client asks again: nobody knows whether the first controller has made it"


def test_the_next_leader_has_what_was_acknowledged_and_the_old_one_cuts_off_the_rest(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders", b"kept")
    cluster.cut(1, 2)
    cluster.cut(1, CONTROLLER)
    lost = cluster.nodes[1].produce("orders", b"lost", timeout_ms=60_000)
    cluster.controller.fence(1)
    cluster.until(lambda: is_led_by(cluster, 2, "orders"))
    answer = cluster.result(cluster.nodes[2].produce("orders", b"instead"))
    assert answer.error_code == 0
    assert end_offset(cluster, 1, "orders") == 2
    assert not lost.done
    cluster.heal()
    assert cluster.result(lost).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2])
    logs = [cluster.nodes[node].running.partitions.opened("orders", 0) for node in (1, 2)]
    contents = [bytes(log.log.read(0, 10_000, end_offset=2).data) for log in logs if log is not None]
    assert contents[0] == contents[1]


def test_a_broker_that_restarts_within_its_session_does_not_lead_before_it_is_registered(
    new_cluster: Callable[..., VirtualCluster], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    cluster.clock.advance_ms(5000)
    broker = cluster.nodes[1].running
    assert (cluster.leader("orders"), broker.partitions.opened("orders", 0)) == (1, None)
    waits = [record for record in caplog.records if record.message.startswith("broker 1 waits: ")]
    assert [record.levelname for record in waits] == ["INFO"], "once"
    cluster.controller.fence(1)
    cluster.until(lambda: sorted(cluster.isr("orders")) == [1, 2])
    assert cluster.leader("orders") == 2
    assert not broker.partitions.find("orders", 0).is_leader  # type: ignore[union-attr]  # it is kept here


def test_a_reader_ahead_of_a_new_leaders_high_watermark_waits(new_cluster: Callable[..., VirtualCluster]) -> None:
    """The follower has all records, but has not heard yet that the last ones are committed."""
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    follower = cluster.nodes[2].running.partitions.opened("orders", 0)
    assert follower is not None
    assert (follower.log_end_offset, follower.high_watermark) == (1, 0)
    cluster.cut(1, 2)
    cluster.controller.change("orders", leader=2)
    cluster.until(lambda: follower.is_leader)
    partition = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[partition])])
    reading = cluster.nodes[2].send(request, 12)
    asked = ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    latest = cluster.result(cluster.nodes[2].send(ListOffsetsRequest(replica_id=-1, topics=[asked])))
    assert latest.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    data = cluster.result(reading).responses[0].partitions[0]
    assert (data.error_code, data.high_watermark, bytes(data.records or b"")) == (0, 0, b"")


def test_whoever_waits_on_a_partition_that_moves_away_is_sent_to_its_leader(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    cluster = new_cluster(3)
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.cut(1, 2)
    waiting = cluster.nodes[1].produce("orders", b"v", timeout_ms=60_000)
    cluster.clock.advance_ms(10)
    cluster.controller.change("orders", replicas=[2], isr=[2], leader=2, directories=[uuid.UUID(int=7)])
    answer = cluster.result(waiting)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader.leader_id == 2
    assert TopicPartition("orders", 0) not in cluster.nodes[1].running.log_dir.logs
    again = cluster.result(cluster.nodes[1].produce("orders", b"v"))
    assert (again.error_code, again.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


def test_a_topic_that_is_made_again_has_nothing_of_the_old_one(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    cluster.controller.delete_topic("orders")
    cluster.controller.create_topic("orders", [2, 1])
    cluster.until(lambda: cluster.nodes[2].running.partitions.find("orders", 0) is not None)
    cluster.until(lambda: cluster.result(cluster.nodes[2].produce("orders", b"v")).error_code == 0)
    cluster.until(lambda: end_offset(cluster, 1, "orders") == 1)


@pytest.mark.parametrize("is_ours", [True, False], ids=["kept here again", "kept elsewhere now"])
def test_replicas_of_topics_that_are_gone_are_set_aside_at_a_start(
    new_cluster: Callable[..., VirtualCluster], is_ours: bool
) -> None:
    """Before new ones of the same name are made, which would begin with the records of the old (KAFKA-14616)."""
    cluster = new_cluster()
    cluster.controller.create_topic("gone", [1, 2])
    cluster.controller.create_topic("kept", [1, 2])
    for topic in ("gone", "kept"):
        committed(cluster, 1, topic)
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    cluster.controller.delete_topic("gone")
    cluster.controller.create_topic("gone", [1, 2] if is_ours else [1])
    cluster.nodes[2].start()
    cluster.until(lambda: sorted(cluster.isr("kept")) == [1, 2])
    folders = sorted(path.name for path in (cluster.nodes[2].folder).iterdir() if path.is_dir())
    assert [name.partition(".")[0] for name in folders] == (["gone-0"] if is_ours else []) + ["gone-0", "kept-0"]
    assert [name.endswith("-stray") for name in folders].count(True) == 1
    assert end_offset(cluster, 2, "gone") == (0 if is_ours else -1)


def test_a_controlled_shutdown_moves_leadership_first(new_cluster: Callable[..., VirtualCluster]) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    committed(cluster, 1, "orders")
    membership = cluster.nodes[1].running.membership
    assert membership is not None
    membership.leave()
    assert cluster.result(membership.ended) is None
    assert (cluster.leader("orders"), cluster.isr("orders")) == (2, [2])


def test_a_start_without_a_controller_does_not_make_a_clean_stop_unclean(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    """With ELR, a broker whose last stop was not clean is no candidate for the partitions that nobody leads."""
    cluster = new_cluster()
    node = cluster.nodes[1]
    epoch = leave(cluster, 1)
    assert read_broker_epoch(node.folder) == epoch
    cluster.cut(1, CONTROLLER)
    node.start()
    membership = node.running.membership
    assert membership is not None
    cluster.until(lambda: membership.ended.done, within_ms=100_000)
    node.running.stop(clean=True)
    assert read_broker_epoch(node.folder) == epoch
    cluster.heal()
    node.start()
    cluster.until(lambda: cluster.controller.is_active(1))
    assert leave(cluster, 1) > epoch
    assert (read_broker_epoch(node.folder) or -1) > epoch


def leave(cluster: VirtualCluster, node: int) -> int:
    """A stop in order. Returns the broker epoch."""
    broker = cluster.nodes[node].running
    membership = broker.membership
    assert membership is not None
    membership.leave()
    cluster.until(lambda: membership.ended.done)
    broker.stop(clean=True)
    return membership.lifecycle.epoch


def test_a_broker_that_the_cluster_has_forgotten_ends_with_the_reason(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    cluster = new_cluster()
    membership = cluster.nodes[1].running.membership
    assert membership is not None
    broker = cluster.controller.image.brokers[NodeId(1)]
    cluster.controller.write(UnregisterBrokerRecord(broker_id=1, broker_epoch=broker.epoch))
    assert "does not know broker 1" in (cluster.result(membership.ended) or "")


def test_a_role_that_could_not_be_taken_ends_with_its_topic(
    new_cluster: Callable[..., VirtualCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again every second, and must not be given to a topic that has the name now."""
    cluster = new_cluster()
    follower = cluster.nodes[2].running
    with monkeypatch.context() as full:
        full.setattr(follower.log_dir, "create_log", disk_is_full)
        cluster.controller.create_topic("orders", [1, 2])
        cluster.controller.change("orders", leader=1)
        cluster.until(cluster.is_known_to_all)
        assert follower.partitions.opened("orders", 0) is None
        cluster.controller.delete_topic("orders")
        cluster.until(cluster.is_known_to_all)
    cluster.controller.create_topic("orders", [2, 1])
    cluster.until(cluster.is_known_to_all)
    cluster.clock.advance_ms(2_000)
    partition = follower.partitions.get("orders", 0)
    assert (partition.leader_epoch, partition.state.replicas) == (0, (2, 1))


def disk_is_full(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is full")


@pytest.mark.parametrize("is_ours", [True, False], ids=["kept here again", "kept elsewhere now"])
def test_a_topic_is_deleted_and_made_again_before_a_broker_has_heard_of_it(
    new_cluster: Callable[..., VirtualCluster], is_ours: bool
) -> None:
    """The epochs of the new one begin at 0, and what waits for the old one is told that it is gone."""
    cluster = new_cluster(nodes=3)
    cluster.controller.create_topic("orders", [2, 1])
    cluster.controller.change("orders", leader=2)
    cluster.until(cluster.is_known_to_all)
    cluster.cut(1, 2)
    waiting = cluster.nodes[2].produce("orders", b"of the old topic", timeout_ms=30_000)
    cluster.cut(2, CONTROLLER)
    cluster.controller.delete_topic("orders")
    cluster.controller.create_topic("orders", [1, 2] if is_ours else [1, 3])
    cluster.heal()
    cluster.until(cluster.is_known_to_all)
    assert ErrorCode(cluster.result(waiting).error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert committed(cluster, 1, "orders").base_offset == 0
    assert end_offset(cluster, 2, "orders") == (1 if is_ours else -1)


def test_a_leader_without_the_listener_of_the_client_is_told_apart_from_one_that_is_away(
    new_cluster: Callable[..., VirtualCluster],
) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    cluster.until(cluster.is_known_to_all)
    peer = Peer("127.0.0.1", "127.0.0.1", listener="OTHER")

    def told(version: int) -> tuple[int, int]:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        key = ApiKey.METADATA
        frame = b"".join(encode_request_frame(key, version, 1, "c", encode_request(key, version, request)))
        answer = cluster.nodes[1].running.dispatcher.serve(memoryview(frame)[4:], peer)
        assert isinstance(answer, list)
        data = memoryview(b"".join(answer))[4:]
        _, position = parse_response_header(data, response_header_version(key, version))
        found: Any = decode_response(key, version, data[position:])
        assert found.brokers == []
        (partition,) = found.topics[0].partitions
        return partition.error_code, partition.leader_id

    assert told(5) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert told(6) == told(12) == (ErrorCode.LISTENER_NOT_FOUND, -1)
    cluster.controller.change("orders", leader=-1)
    cluster.until(cluster.is_known_to_all)
    assert told(12) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
