"""A group member without an event loop: a coordinator by script, and a time that passes only in pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.errors import ConnectionLost, ErrorCode, KafkaError
from oncelog.client.group_member import GroupMember
from oncelog.client.subscription import decode_assignment, decode_subscription
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.protocol.schema import Message
from tests.unit.client.scripted_network import CONFIG, ScriptedNetwork, run

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Answer = Message | Exception


class Group:
    """One member, who leads, and a coordinator that gives the next of `answers` where there is one for a request."""

    def __init__(self, **settings: Any) -> None:
        self.network = ScriptedNetwork(self.answer)
        self.answers: dict[type[Message], list[Answer]] = {}
        self.requests: list[Message] = []
        self.changes = 0
        self.generation = 0
        config = ConsumerConfig.parse({"bootstrap.servers": "boot:1", "group.id": "g", **settings})
        self.member = GroupMember(Cluster(CONFIG, self.network), config, self._change)  # type: ignore[arg-type]

    def _change(self) -> None:
        self.changes += 1

    def answer(self, address: str, request: Message) -> Answer:
        self.requests.append(request)
        scripted = self.answers.get(type(request))
        if scripted:
            return scripted.pop(0)
        usual: dict[type[Message], Callable[[Any], Message]] = {
            FindCoordinatorRequest: lambda _: FindCoordinatorResponse(
                coordinators=[Coordinator(key="g", node_id=1, host="b1", port=1)]
            ),
            MetadataRequest: lambda _: metadata(),
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: lambda _: HeartbeatResponse(),
            LeaveGroupRequest: lambda _: LeaveGroupResponse(),
        }
        return usual[type(request)](request)

    def _join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
        self.generation += 1
        only = JoinGroupResponseMember(member_id="me", metadata=request.protocols[0].metadata)
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=request.protocols[0].name,
            leader="me",
            member_id="me",
            members=[only],
        )

    def _sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def join(self, *owned: TopicPartition) -> list[TopicPartition]:
        return run(self.member.join(["t"], owned))

    def sent(self, kind: type[Message]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


def metadata() -> MetadataResponse:
    partitions = [MetadataResponsePartition(partition_index=number, leader_id=1) for number in range(2)]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="b1", port=1)],
        topics=[MetadataResponseTopic(name="t", partitions=partitions)],
    )


def test_a_leader_asks_for_its_member_id_joins_and_assigns_what_there_is() -> None:
    group = Group()
    assert group.join() == [T0, T1]
    assert [request.member_id for request in group.sent(JoinGroupRequest)] == ["", "me"]
    (sync,) = group.sent(SyncGroupRequest)
    assert decode_assignment(bytes(sync.assignments[0].assignment)) == [T0, T1]
    assert (group.member.generation_id, group.member.joined_as.member_id) == (1, "me")
    assert group.network.pauses_ms == [], "a member id is asked for without a pause"


@pytest.mark.parametrize(
    ("kind", "answer", "lookups"),
    [
        (JoinGroupRequest, JoinGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), 1),
        (JoinGroupRequest, JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR), 2),
        (JoinGroupRequest, ConnectionLost("gone"), 2),
        (SyncGroupRequest, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 1),
        (SyncGroupRequest, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 1),
        (SyncGroupRequest, ConnectionLost("gone"), 2),
    ],
)
def test_a_join_starts_over_until_both_steps_succeed(kind: type[Message], answer: Answer, lookups: int) -> None:
    group = Group()
    group.answers[kind] = [answer]
    assert group.join() == [T0, T1]
    assert len(group.network.pauses_ms) == 1
    assert len(group.sent(FindCoordinatorRequest)) == lookups
    assert not group.member.lost


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_join_that_finds_the_membership_gone_does_not_keep_partitions(code: ErrorCode) -> None:
    group = Group()
    group.join()
    group.answers[JoinGroupRequest] = [JoinGroupResponse(error_code=code)]
    with pytest.raises(KafkaError):
        group.join(T0, T1)
    assert group.member.lost
    assert group.member.member_id == ("me" if code == ErrorCode.ILLEGAL_GENERATION else "")
    assert group.join() == [T0, T1]


def test_what_joining_again_does_not_mend_is_raised() -> None:
    group = Group()
    group.answers[JoinGroupRequest] = [JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    with pytest.raises(KafkaError, match="group g, member"):
        group.join()


def test_partitions_that_are_kept_are_told_to_the_leader_by_the_cooperative_protocol_only() -> None:
    for strategy, told in (("cooperative-sticky", [T0]), ("range", [])):
        group = Group(**{"partition.assignment.strategy": strategy})
        group.join()
        group.join(T0)
        (protocol,) = group.sent(JoinGroupRequest)[-1].protocols
        assert list(decode_subscription(bytes(protocol.metadata)).owned) == told


@pytest.mark.parametrize(
    ("code", "goes_on", "rejoins", "lost"),
    [
        (ErrorCode.NONE, True, False, False),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True, False, False),
        (ErrorCode.NOT_COORDINATOR, True, False, False),
        (ErrorCode.REBALANCE_IN_PROGRESS, True, True, False),
        (ErrorCode.UNKNOWN_MEMBER_ID, False, False, True),
        (ErrorCode.ILLEGAL_GENERATION, False, False, True),
        (ErrorCode.FENCED_INSTANCE_ID, False, False, True),
    ],
)
def test_what_a_heartbeat_is_answered(code: ErrorCode, goes_on: bool, rejoins: bool, lost: bool) -> None:
    group = Group()
    group.join()
    group.answers[HeartbeatRequest] = [HeartbeatResponse(error_code=code)]
    assert run(group.member.heartbeat()) is goes_on
    assert (group.member.rejoin_needed, group.member.lost) == (rejoins, lost)
    assert (group.member.fatal is not None) == (code == ErrorCode.FENCED_INSTANCE_ID)
    assert group.changes == (1 if rejoins or lost else 0)


def test_a_heartbeat_without_an_answer_looks_for_the_coordinator() -> None:
    group = Group()
    group.join()
    group.answers[HeartbeatRequest] = [ConnectionLost("gone")]
    assert run(group.member.heartbeat())
    assert run(group.member.heartbeat())
    assert len(group.sent(FindCoordinatorRequest)) == 2


def test_heartbeats_come_at_their_interval_until_the_membership_is_gone() -> None:
    group = Group(**{"heartbeat.interval.ms": 3_000})
    group.join()
    good: list[Answer] = [HeartbeatResponse()] * 4
    group.answers[HeartbeatRequest] = [*good, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)]
    run(group.member.keep_alive())
    assert group.network.pauses_ms == [3_000] * 5
    assert group.member.lost


def test_a_member_that_does_not_poll_leaves_the_group() -> None:
    group = Group(**{"heartbeat.interval.ms": 3_000, "max.poll.interval.ms": 10_000})
    group.join()
    group.member.polled()
    run(group.member.keep_alive())
    assert len(group.sent(HeartbeatRequest)) == 3
    (left,) = group.sent(LeaveGroupRequest)
    assert "max.poll.interval.ms" in left.members[0].reason
    assert group.member.lost
    assert group.member.metadata().generation_id == -1
    assert group.member.joined_as.generation_id == 1, "what it got then may be committed as that one only"


def test_a_leader_notices_that_a_topic_grew() -> None:
    group = Group()
    group.join()
    run(group.member.check_topics())
    assert not group.member.rejoin_needed
    grown = metadata()
    grown.topics[0].partitions.append(MetadataResponsePartition(partition_index=2, leader_id=1))
    group.answers[MetadataRequest] = [grown]
    run(group.member.check_topics())
    assert group.member.rejoin_needed


def test_a_static_member_says_nothing_when_it_leaves() -> None:
    group = Group(**{"group.instance.id": "me-1"})
    group.join()
    run(group.member.leave("closed"))
    assert group.sent(LeaveGroupRequest) == []
