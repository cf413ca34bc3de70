"""What a follower fetches, with a leader that is played by the test."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog.cluster.cluster_config import ClusterConfig, FetchLimits
from oncelog.cluster.lifecycle import Timing
from oncelog.controller.delta import TopicIdPartition
from oncelog.core.address import Address
from oncelog.core.ids import LeaderEpoch, NodeId, TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.server import replica_fetches
from oncelog.server.handlers import h01_fetch
from oncelog.server.peers import Answer
from oncelog.server.replication import Replication
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.held_worker import hold_worker
from tests.unit.server.test_flusher import SETTINGS

LEADER = NodeId(2)


@pytest.fixture
def settings() -> dict[str, str]:
    return SETTINGS


class Leader:
    """Keeps what it is asked until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, Promise[Answer]]] = []

    def call(self, _purpose: str, _address: Address, request: Any, _timeout_ms: int) -> Promise[Answer]:
        promise: Promise[Answer] = Promise()
        self.asked.append((request, promise))
        return promise

    def close(self) -> None:
        pass

    def answer(self, records: bytes) -> None:
        request, promise = self.asked.pop()
        topic = request.topics[0]
        data = PartitionData(partition_index=0, high_watermark=0, log_start_offset=0, records=records)
        answered = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])
        promise.resolve(FetchResponse(responses=[answered]))


def test_a_follower_fetches_on_when_what_it_has_is_on_disk(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    where = TopicPartition("t", 0)
    led = node.broker.partitions.get(*where)
    state = replace(
        led.state, leader=LEADER, leader_epoch=LeaderEpoch(5), replicas=(node.broker.node_id, LEADER), in_sync=(LEADER,)
    )
    partition = node.broker.metadata_changes.take_role(where, state)
    assert partition is not None
    leader, worker = Leader(), hold_worker(node)
    membership: Any = SimpleNamespace(lifecycle=SimpleNamespace(epoch=1))
    config = ClusterConfig([], None, Timing(), FetchLimits(), 30_000)
    replication = Replication(node.broker, cast(Any, membership), leader, config, "PLAINTEXT")
    monkeypatch.setattr(replication, "address_of", lambda _: Address("leader", 1))
    replication._follow(TopicIdPartition(node.topic_id("t"), "t", 0), partition)
    node.clock.advance_ms(0)
    batch = batch_of([b"a"], timestamp_ms=node.clock.now_ms(), leader_epoch=5)
    leader.answer(batch)
    node.clock.advance_ms(0)
    assert partition.log_end_offset == 1
    assert not leader.asked, "it would acknowledge what is not on disk"
    worker.finish(node.clock)
    assert leader.asked[0][0].topics[0].partitions[0].fetch_offset == 1


def test_consumers_and_followers_that_wait_for_a_partition_are_told_apart() -> None:
    assert h01_fetch.watch_tokens is replica_fetches.watch_tokens  # type: ignore[attr-defined]


def test_the_folder_of_a_broker_has_the_partitions_that_it_keeps(node: BrokerInProcess) -> None:
    node.create("t", 3)
    node.produce("t", [b"a"], partition=1)
    node.broker.is_in_cluster = True
    answer = node.call(DescribeLogDirsRequest(topics=None), 1)
    described = {topic.name: [each.partition_index for each in topic.partitions] for topic in answer.results[0].topics}
    assert described["t"] == [1]
