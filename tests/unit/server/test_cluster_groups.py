"""Groups whose coordinator moves to another broker, on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.ids import GROUP_METADATA_TOPIC
from oncelog.core.promise import Promise
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.server.test_cluster_transactions import Transaction
from tests.unit.server.virtual_cluster import VirtualCluster

COORDINATORS = (1, 2, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    cluster = VirtualCluster(
        tmp_path,
        3,
        replica_socket_timeout_ms="1000",
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="3",
    ).start()
    cluster.controller.create_topic(
        GROUP_METADATA_TOPIC, COORDINATORS, cleanup_policy="compact", min_insync_replicas="2"
    )
    cluster.controller.create_topic("orders", [1])
    cluster.until(cluster.is_known_to_all)
    return cluster


def commit(cluster: VirtualCluster, node: int, offset: int) -> Promise[int]:
    topic = OffsetCommitRequestTopic(
        name="orders", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    )
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    return cluster.nodes[node].send(request, 9).map(lambda answer: answer.topics[0].partitions[0].error_code)


def committed(cluster: VirtualCluster, node: int, *, stable: bool = False) -> tuple[int, int]:
    wanted = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    )
    request = OffsetFetchRequest(groups=[wanted], require_stable=stable)
    group = cluster.result(cluster.nodes[node].send(request, 9)).groups[0]
    if not group.topics:
        return group.error_code, -1
    found = group.topics[0].partitions[0]
    return group.error_code or found.error_code, found.committed_offset


def test_an_offset_that_the_next_coordinator_may_not_have_is_not_told(cluster: VirtualCluster) -> None:
    assert cluster.result(commit(cluster, 1, 5)) == 0
    cluster.clock.advance_ms(2000)
    cluster.cut(3, 1)
    cluster.cut(3, 2)
    waiting = commit(cluster, 1, 6)
    cluster.clock.advance_ms(1000)
    assert not waiting.done
    cluster.nodes[1].kill()
    cluster.controller.fence(1)
    cluster.until(cluster.is_known_to_all)
    cluster.clock.advance_ms(100)
    assert committed(cluster, 2) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    cluster.nodes[2].kill()
    cluster.controller.fence(2)
    cluster.heal()
    for node in (1, 2):
        cluster.nodes[node].start()
    cluster.until(lambda: committed(cluster, 3) == (ErrorCode.NONE, 5))


def test_offsets_are_told_as_soon_as_those_in_sync_have_them(cluster: VirtualCluster) -> None:
    assert cluster.result(commit(cluster, 1, 5)) == 0
    cluster.nodes[1].kill()
    cluster.controller.fence(1)
    cluster.until(lambda: cluster.leader(GROUP_METADATA_TOPIC) == 2)
    cluster.until(lambda: committed(cluster, 2) == (ErrorCode.NONE, 5), within_ms=3000)
    assert cluster.result(commit(cluster, 2, 6)) == 0


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_that_wait_for_a_transaction_do_so_at_the_next_coordinator(
    cluster: VirtualCluster, commits: bool
) -> None:
    """Also at the one after that, and at the first one when it is elected again: it knew of them before."""
    assert cluster.result(commit(cluster, 1, 5)) == 0
    transaction = Transaction(cluster)
    assert cluster.result(commit_in(cluster, 1, transaction, 6)) == 0
    for leader in (3, 1, 2):
        cluster.controller.change(GROUP_METADATA_TOPIC, leader=leader)
        cluster.until(lambda leader=leader: committed(cluster, leader)[0] == 0, within_ms=3000)  # type: ignore[misc]
        assert committed(cluster, leader) == (ErrorCode.NONE, 5)
        assert committed(cluster, leader, stable=True)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    ending = transaction.ending()
    ending.committed = commits
    assert transaction.ask(2, ending).error_code == 0
    expected = ErrorCode.NONE, 6 if commits else 5
    cluster.until(lambda: committed(cluster, 2, stable=True) == expected, within_ms=3000)
    for leader in (1, 3):
        cluster.controller.change(GROUP_METADATA_TOPIC, leader=leader)
        cluster.until(lambda leader=leader: committed(cluster, leader)[0] == 0, within_ms=3000)  # type: ignore[misc]
        assert committed(cluster, leader, stable=True) == expected


def commit_in(cluster: VirtualCluster, node: int, transaction: Transaction, offset: int) -> Promise[int]:
    """As a part of a transaction, under TV2."""
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id=transaction.id,
        group_id="g",
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])],
    )
    return cluster.nodes[node].send(request, 5).map(lambda answer: answer.topics[0].partitions[0].error_code)
