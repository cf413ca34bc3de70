"""Deletions that followers follow, and consumers that read from followers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.broker_config import RACK_AWARE_SELECTOR
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.server.handlers.h21_delete_records import _followed
from tests.unit.server.test_cluster_members import committed, end_offset
from tests.unit.server.virtual_cluster import VirtualCluster

NewCluster = Callable[..., VirtualCluster]


@pytest.fixture
def new_cluster(tmp_path: Path) -> NewCluster:
    return lambda nodes=2, **settings: VirtualCluster(tmp_path, nodes, **settings).start()


def delete(cluster: VirtualCluster, node: int, offset: int, timeout_ms: int = 5000) -> Promise[Any]:
    """Promises the partition's part of the answer."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        ],
        timeout_ms=timeout_ms,
    )
    return cluster.nodes[node].send(request).map(lambda answer: answer.topics[0].partitions[0])


def start_offset(cluster: VirtualCluster, node: int) -> int:
    partition = cluster.nodes[node].running.partitions.opened("orders", 0)
    return -1 if partition is None else partition.log_start_offset


def test_deletion_is_answered_when_the_follower_has_deleted_too(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    for _ in range(3):
        committed(cluster, 1, "orders")
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 3)
    begun_ms = cluster.clock.monotonic_ms()
    waiting = delete(cluster, 1, 2)
    assert not waiting.done
    answer = cluster.result(waiting)
    assert (answer.error_code, answer.low_watermark, start_offset(cluster, 2)) == (0, 2, 2)
    assert cluster.clock.monotonic_ms() - begun_ms < 100, "the follower's fetch was not woken"


def test_deletion_waits_for_a_follower_only_while_that_is_there(new_cluster: NewCluster) -> None:
    cluster = new_cluster(3)
    cluster.controller.create_topic("orders", [1, 2, 3])
    for _ in range(3):
        committed(cluster, 1, "orders")
    cluster.cut(1, 2)
    late = cluster.result(delete(cluster, 1, 1, timeout_ms=700))
    assert (ErrorCode(late.error_code), late.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert start_offset(cluster, 1) == start_offset(cluster, 3) == 1
    waiting = delete(cluster, 1, 2, timeout_ms=60_000)
    cluster.clock.advance_ms(3000)
    assert not waiting.done
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    answer = cluster.result(waiting)
    assert (answer.error_code, answer.low_watermark) == (0, 2)


def test_deletion_that_waits_is_told_of_the_next_leader(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    for _ in range(2):
        committed(cluster, 1, "orders")
    cluster.cut(1, 2)
    waiting = delete(cluster, 1, 1, timeout_ms=60_000)
    cluster.controller.change("orders", leader=2)
    assert cluster.result(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deletion_by_a_broker_that_leads_no_more_when_it_begins_to_wait_is_no_success(new_cluster: NewCluster) -> None:
    """Deletions of many partitions take turns with others: the leader may be another one before they are all done."""
    cluster = new_cluster()
    cluster.controller.create_topic("orders", [1, 2])
    for _ in range(2):
        committed(cluster, 1, "orders")
    broker = cluster.nodes[1].running
    partition = broker.partitions.get("orders", 0)
    cluster.cut(1, 2)
    result = DeleteRecordsPartitionResult(low_watermark=partition.delete_records(1))
    cluster.controller.change("orders", leader=2)
    cluster.until(lambda: not partition.is_leader)
    assert _followed(broker, partition, result, 1000).done
    assert (result.error_code, result.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def fetch(
    cluster: VirtualCluster, node: int, offset: int, *, rack: str = "", version: int = 12, epoch: int = 0, **fields: Any
) -> Promise[Any]:
    """Promises the partition's part of the answer."""
    wanted = FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
    request = FetchRequest(
        max_bytes=1 << 20,
        **{"max_wait_ms": 300, "min_bytes": 1, "session_epoch": -1, **fields},
        rack_id=rack,
        topics=[FetchTopic(topic="orders", partitions=[wanted])],
    )
    return cluster.nodes[node].send(request, version).map(lambda answer: answer.responses[0].partitions[0])


def in_racks(new_cluster: NewCluster) -> VirtualCluster:
    """Node 1 leads, each node is a rack."""
    cluster = new_cluster(
        3, broker_rack="rack-{node}", replica_selector_class=RACK_AWARE_SELECTOR, replica_lag_time_max_ms="3000"
    )
    cluster.controller.create_topic("orders", [1, 2, 3])
    committed(cluster, 1, "orders", b"first")
    # The followers have acknowledged it with a fetch of theirs, and know that it is committed.
    cluster.until(lambda: high_watermark(cluster, 2) == high_watermark(cluster, 3) == 1)
    return cluster


def high_watermark(cluster: VirtualCluster, node: int) -> int:
    partition = cluster.nodes[node].running.partitions.opened("orders", 0)
    return -1 if partition is None else partition.high_watermark


def test_consumers_are_sent_to_the_follower_in_their_rack(new_cluster: NewCluster) -> None:
    cluster = in_racks(new_cluster)
    begun_ms = cluster.clock.monotonic_ms()
    sent = cluster.result(fetch(cluster, 1, 0, rack="rack-2", min_bytes=1 << 20, max_wait_ms=5000))
    assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records)) == (0, 2, b"")
    assert cluster.clock.monotonic_ms() - begun_ms < 5, "it is told at once"
    read = cluster.result(fetch(cluster, 2, 0, rack="rack-2"))
    assert (read.error_code, read.high_watermark, read.preferred_read_replica) == (0, 1, -1)
    assert b"first" in bytes(read.records)


@pytest.mark.parametrize(("rack", "version"), [("", 12), ("rack-1", 12), ("elsewhere", 12), ("rack-2", 10)])
def test_the_leader_serves_whom_no_follower_is_nearer_to(new_cluster: NewCluster, rack: str, version: int) -> None:
    cluster = in_racks(new_cluster)
    read = cluster.result(fetch(cluster, 1, 0, rack=rack, version=version))
    assert read.error_code == 0 and b"first" in bytes(read.records)
    assert read.preferred_read_replica == -1 or version < 11


def test_consumers_are_not_sent_to_a_follower_that_is_not_in_sync(new_cluster: NewCluster) -> None:
    cluster = in_racks(new_cluster)
    cluster.cut(1, 2)
    cluster.result(cluster.nodes[1].produce("orders", b"second", acks=1))
    cluster.until(lambda: cluster.isr("orders") == [1, 3])
    cluster.until(cluster.is_known_to_all)
    assert cluster.controller.is_active(2)
    assert b"first" in bytes(cluster.result(fetch(cluster, 1, 0, rack="rack-2")).records)
    assert cluster.result(fetch(cluster, 1, 0, rack="rack-3")).preferred_read_replica == 3
    cluster.nodes[3].kill()
    cluster.controller.fence(3)
    cluster.until(cluster.is_known_to_all)
    assert b"first" in bytes(cluster.result(fetch(cluster, 1, 0, rack="rack-3")).records)


def test_a_follower_shows_what_is_committed_and_waits_for_more(new_cluster: NewCluster) -> None:
    cluster = in_racks(new_cluster)
    cluster.cut(1, 3)
    cluster.nodes[1].produce("orders", b"second", timeout_ms=60_000)
    cluster.until(lambda: end_offset(cluster, 2, "orders") == 2)
    assert high_watermark(cluster, 2) == 1, "the test is about a record that is not committed"
    waiting = fetch(cluster, 2, 1, rack="rack-2", max_wait_ms=60_000)
    cluster.clock.advance_ms(2000)
    assert not waiting.done
    beyond = cluster.result(fetch(cluster, 2, 2, rack="rack-2", max_wait_ms=10))
    assert (beyond.error_code, bytes(beyond.records)) == (0, b""), "it may have been read elsewhere"
    assert cluster.result(fetch(cluster, 2, 3, rack="rack-2")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.heal()
    assert b"second" in bytes(cluster.result(waiting).records)


def test_followers_serve_consumers_that_know_of_followers_only(new_cluster: NewCluster) -> None:
    cluster = in_racks(new_cluster)
    refused = {"version": 10}, {"epoch": -1}
    for how in refused:
        assert cluster.result(fetch(cluster, 2, 0, **how)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.result(fetch(cluster, 2, 0, epoch=7)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert cluster.result(fetch(cluster, 2, 0)).error_code == 0
    cluster.controller.change("orders", leader=3)
    cluster.until(lambda: end_offset(cluster, 3, "orders") == 1 and cluster.is_known_to_all())
    assert cluster.result(fetch(cluster, 2, 0, rack="rack-2")).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_reader_of_the_leader_is_told_when_it_leads_no_more(new_cluster: NewCluster) -> None:
    cluster = in_racks(new_cluster)
    waiting = fetch(cluster, 1, 1, max_wait_ms=60_000)
    cluster.controller.change("orders", leader=2)
    assert cluster.result(waiting).error_code == ErrorCode.FENCED_LEADER_EPOCH
