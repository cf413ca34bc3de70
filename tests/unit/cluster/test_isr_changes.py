"""AlterPartition: one request under way, with all that waits, until everything is decided."""

from __future__ import annotations

import uuid

import pytest

from oncelog.cluster.isr_changes import BACKOFF_MS, TIMEOUT_MS, IsrChanges, PartitionKey
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replicas import ProposalReaction, ReplicaFetch, ReplicaRules, Replicas
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.protocol.compiler import encode_bytes
from oncelog.protocol.messages.alter_partition import AlterPartitionResponse, ChangedPartition, ChangedTopic
from tests.unit.cluster.test_replicas import Broker, ids

TOPIC = uuid.UUID("97b871e8-d361-40bc-9086-71e2e1f5d99d")
OTHER = uuid.UUID(int=7)


def proposing(*, partition_epoch: int = 1) -> Replicas:
    """Broker 1 leads and wants broker 2 in the ISR."""
    state = PartitionState(NodeId(1), LeaderEpoch(1), ids(1, 2), ids(1), partition_epoch)
    rules = ReplicaRules(lambda broker: Broker(118))
    replicas = Replicas(NodeId(1), state, rules, epoch_start_offset=0, now_ms=0)
    replicas.on_fetch(NodeId(2), ReplicaFetch(0, 0, 118), 0, 0)
    assert replicas.propose_expansion(0, 29) is not None
    return replicas


def accepted(index: int, *, error: int = 0, topic: uuid.UUID = TOPIC, partition_epoch: int = 2) -> ChangedTopic:
    answer = ChangedPartition(
        partition_index=index,
        error_code=error,
        leader_id=1,
        leader_epoch=1,
        isr=[1, 2],
        partition_epoch=partition_epoch,
    )
    return ChangedTopic(topic_id=topic, partitions=[answer])


def response(*topics: ChangedTopic, error: int = 0) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=error, topics=list(topics))


def test_the_request_is_what_a_broker_of_kafka_sends() -> None:
    changes = IsrChanges(NodeId(1))
    changes.submit(PartitionKey(TOPIC, 1), proposing())
    sent = changes.poll(0, 29)
    assert sent is not None
    assert encode_bytes(sent.request, 3).hex() == (
        "00000001000000000000001d0297b871e8d36140bc908671e2e1f5d99d0200000001000000010300000001000000000000001d"
        "00000000020000000000000076000000000001000000"
    )


def test_what_waits_goes_together_and_one_request_is_under_way() -> None:
    changes = IsrChanges(NodeId(1))
    first, second, third = proposing(), proposing(), proposing()
    changes.submit(PartitionKey(TOPIC, 0), first)
    changes.submit(PartitionKey(OTHER, 3), second)
    sent = changes.poll(0, 29)
    assert sent is not None
    assert [(topic.topic_id, [each.partition_index for each in topic.partitions]) for topic in sent.request.topics] == [
        (TOPIC, [0]),
        (OTHER, [3]),
    ]
    changes.submit(PartitionKey(TOPIC, 1), third)
    assert changes.poll(100, 29) is None
    changed = changes.on_response(sent.number, response(accepted(0), accepted(3, topic=OTHER)), 100)
    assert changed == {(TOPIC, 0): ProposalReaction.COMMIT, (OTHER, 3): ProposalReaction.COMMIT}
    assert first.state.in_sync == second.state.in_sync == (1, 2)
    after = changes.poll(100, 29)
    assert after is not None
    assert [topic.partitions[0].partition_index for topic in after.request.topics] == [1]


@pytest.mark.parametrize(
    ("answer", "is_sent_again", "changed", "in_sync"),
    [
        (response(accepted(0)), False, [ProposalReaction.COMMIT], (1, 2)),
        (response(accepted(0, error=ErrorCode.INELIGIBLE_REPLICA)), False, [ProposalReaction.REVERT], (1,)),
        (response(accepted(0, error=ErrorCode.NEW_LEADER_ELECTED)), False, [], (1,)),
        (response(accepted(0, error=ErrorCode.NOT_CONTROLLER)), True, [], (1,)),
        (response(error=ErrorCode.STALE_BROKER_EPOCH), True, [], (1,)),
        (response(error=ErrorCode.NOT_CONTROLLER), True, [], (1,)),
        (response(), True, [], (1,)),
    ],
    ids=["ok", "ineligible", "new leader", "old controller", "stale epoch", "no controller", "not a word of it"],
)
def test_what_is_sent_again(
    answer: AlterPartitionResponse, is_sent_again: bool, changed: list[ProposalReaction], in_sync: tuple[int, ...]
) -> None:
    changes, replicas = IsrChanges(NodeId(1)), proposing()
    changes.submit(PartitionKey(TOPIC, 0), replicas)
    sent = changes.poll(0, 29)
    assert sent is not None
    assert list(changes.on_response(sent.number, answer, 10).values()) == changed
    assert replicas.state.in_sync == in_sync
    assert changes.poll(10, 29) is None
    again = changes.poll(10 + BACKOFF_MS, 29)
    assert (again is not None) == is_sent_again
    assert changes.is_idle == (not is_sent_again)
    if again is not None:
        assert again.request == sent.request


def test_a_lost_request_is_sent_again() -> None:
    changes = IsrChanges(NodeId(1))
    changes.submit(PartitionKey(TOPIC, 0), proposing())
    first = changes.poll(0, 29)
    assert first is not None
    changes.on_failure(first.number, 5)
    second = changes.poll(5 + BACKOFF_MS, 30)
    assert second is not None
    assert second.request.broker_epoch == 30
    assert changes.poll(4 + BACKOFF_MS + TIMEOUT_MS, 30) is None
    third = changes.poll(5 + BACKOFF_MS + TIMEOUT_MS, 30)
    assert third is not None
    assert changes.on_response(second.number, response(accepted(0)), 0) == {}, "it was given up"
    assert changes.on_response(third.number, response(accepted(0)), 0) == {(TOPIC, 0): ProposalReaction.COMMIT}


def test_what_metadata_has_ended_is_not_sent() -> None:
    changes, replicas = IsrChanges(NodeId(1)), proposing()
    changes.submit(PartitionKey(TOPIC, 0), replicas)
    replicas.on_state(PartitionState(NodeId(1), LeaderEpoch(1), ids(1, 2), ids(1, 2), 2), 0)
    assert changes.poll(0, 29) is None
    assert changes.is_idle


def test_the_proposal_of_a_newer_leadership_replaces_the_old_one() -> None:
    changes, old, new = IsrChanges(NodeId(1)), proposing(), proposing(partition_epoch=6)
    changes.submit(PartitionKey(TOPIC, 0), old)
    sent = changes.poll(0, 29)
    assert sent is not None
    changes.submit(PartitionKey(TOPIC, 0), new)
    changes.on_failure(sent.number, 0)
    again = changes.poll(BACKOFF_MS, 29)
    assert again is not None
    assert again.request.topics[0].partitions[0].partition_epoch == 6
