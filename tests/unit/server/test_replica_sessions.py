"""Fetch sessions between brokers: followers name only what changed, and leaders tell only what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NodeId
from oncelog.protocol.api import encode_request, encode_response
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tests.unit.server.virtual_cluster import VirtualCluster

PARTITIONS = 40
VERSION = 18


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    """Broker 1 leads all, broker 2 follows."""
    cluster = VirtualCluster(tmp_path, nodes=2).start()
    cluster.controller.create_topic("orders", *[(1, 2)] * PARTITIONS)
    cluster.until(cluster.is_known_to_all)
    return cluster


def fetches(cluster: VirtualCluster) -> list[FetchRequest]:
    return [
        request
        for source, target, request in cluster.calls
        if (source, target) == (2, 1) and isinstance(request, FetchRequest)
    ]


def high_watermark(cluster: VirtualCluster, node: int) -> int:
    partition = cluster.nodes[node].running.partitions.opened("orders", 0)
    return -1 if partition is None else partition.high_watermark


def wait_until_idle(cluster: VirtualCluster) -> None:
    cluster.until(lambda: fetches(cluster) and not fetches(cluster)[-1].topics)


def test_an_idle_follower_names_no_partition(cluster: VirtualCluster) -> None:
    wait_until_idle(cluster)
    request = fetches(cluster)[-1]
    assert (len(request.forgotten_topics_data), request.session_id > 0, request.session_epoch > 0) == (0, True, True)
    assert len(b"".join(encode_request(ApiKey.FETCH, VERSION, request))) < 60
    before = len(fetches(cluster))
    cluster.clock.advance_ms(1_100)
    assert 2 <= len(fetches(cluster)) - before <= 3, "an empty answer takes as long as before"


def test_records_and_the_high_watermark_arrive(cluster: VirtualCluster) -> None:
    wait_until_idle(cluster)
    for number in range(1, 4):
        assert cluster.result(cluster.nodes[1].produce("orders", b"value")).error_code == 0
        cluster.until(lambda number=number: high_watermark(cluster, 2) == number, within_ms=1_000)
    named = [len(topic.partitions) for request in fetches(cluster)[-4:] for topic in request.topics]
    assert set(named) == {1}, "of all partitions only the one that has records"


def test_the_session_of_a_leader_that_was_started_again_is_begun_anew(cluster: VirtualCluster) -> None:
    wait_until_idle(cluster)
    session_id = fetches(cluster)[-1].session_id
    replication: Any = cluster.nodes[1].running.replication
    replication.fetch_sessions._sessions.clear()
    cluster.until(lambda: fetches(cluster)[-1].session_id != session_id, within_ms=1_000)
    wait_until_idle(cluster)
    cluster.result(cluster.nodes[1].produce("orders", b"value"))
    cluster.until(lambda: high_watermark(cluster, 2) == 1, within_ms=1_000)


class Follower:
    """Sends the fetches of broker 2, which has been killed."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._epoch = cluster.controller.image.brokers[NodeId(2)].epoch
        self._topic_id = cluster.controller.image.topic_ids["orders"]

    def fetch(self, session: tuple[int, int], *wanted: FetchPartition, replica: int = 2) -> FetchResponse:
        state = ReplicaState(replica_id=replica, replica_epoch=self._epoch) if replica >= 0 else ReplicaState()
        request = FetchRequest(
            replica_state=state, max_wait_ms=0, min_bytes=1, session_id=session[0], session_epoch=session[1],
            topics=[FetchTopic(topic_id=self._topic_id, partitions=list(wanted))] if wanted else [],
        )  # fmt: skip
        answer: FetchResponse = self._cluster.result(self._cluster.nodes[1].send(request, VERSION))
        return answer


@pytest.fixture
def follower(cluster: VirtualCluster) -> Follower:
    cluster.nodes[2].kill()
    return Follower(cluster)


def wanted(partition: int, offset: int = 0, last_epoch: int = -1) -> FetchPartition:
    return FetchPartition(
        partition=partition, current_leader_epoch=0, fetch_offset=offset, last_fetched_epoch=last_epoch,
        log_start_offset=0, partition_max_bytes=1 << 20,
    )  # fmt: skip


def told(response: FetchResponse) -> dict[int, PartitionData]:
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def test_a_leader_tells_only_what_is_new(cluster: VirtualCluster, follower: Follower) -> None:
    first = follower.fetch((0, 0), wanted(0), wanted(1))
    assert (list(told(first)), first.session_id > 0) == ([0, 1], True)
    empty = follower.fetch((first.session_id, 1))
    assert (told(empty), empty.session_id) == ({}, first.session_id)
    assert len(b"".join(encode_response(ApiKey.FETCH, VERSION, empty))) < 30
    produced = cluster.nodes[1].produce("orders", b"value")
    assert [len(data.records or b"") > 0 for data in told(follower.fetch((first.session_id, 2))).values()] == [True]
    acknowledging = told(follower.fetch((first.session_id, 3), wanted(0, 1, 0)))
    assert {index: data.high_watermark for index, data in acknowledging.items()} == {0: 1}
    assert cluster.result(produced).error_code == 0
    assert told(follower.fetch((first.session_id, 4))) == {}


def test_a_follower_that_was_told_to_cut_its_log_is_told_the_high_watermark_afterwards(follower: Follower) -> None:
    """It takes nothing but the divergence from that answer."""
    session_id = follower.fetch((0, 0), wanted(0)).session_id
    diverging = told(follower.fetch((session_id, 1), wanted(0, 3, 0)))[0]
    assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (0, 0)
    assert told(follower.fetch((session_id, 2), wanted(0)))[0].high_watermark == 0


def test_consumers_cannot_use_the_session_of_a_follower(follower: Follower) -> None:
    session_id = follower.fetch((0, 0), wanted(0)).session_id
    assert follower.fetch((session_id, 1), wanted(0), replica=-1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert follower.fetch((session_id, 2)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert follower.fetch((session_id, 1)).error_code == ErrorCode.NONE
