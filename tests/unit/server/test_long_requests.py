"""Requests that name very much are worked in parts, between which others have their turn: the answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partitions import PartitionTable
from oncelog.controller.scram_changes import CHANGES_MAX
from oncelog.coordinator.group.machine import OFFSETS_DELETED_AT_ONCE_MAX
from oncelog.coordinator.group.offsets import OffsetStore
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.protocol.api import decode_request, encode_request
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.decoder import RECORDS_REQUEST_ELEMENTS_MAX
from oncelog.protocol.framing import encode_request_frame
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from oncelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.protocol.primitives import MalformedRequest
from oncelog.server import coordinator_runtime, turns
from oncelog.server.context import RequestContext
from oncelog.server.fetch_session import EVICTION_IDLE_MS
from oncelog.server.handlers.h01_fetch import handle as handle_fetch
from oncelog.server.handlers.h09_offset_fetch import handle as handle_offset_fetch
from oncelog.server.offset_parts import OFFSETS_PER_PART
from oncelog.storage.log_dir import LogDir
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.held_worker import hold_worker
from tests.unit.server.test_produce_fetch import fetch_request
from tests.unit.server.test_transactions import Producer

FETCH_VERSION = 11


def commit(node: BrokerInProcess, topics: dict[str, int]) -> Any:
    """A first offset for each of so many partitions."""
    wanted = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(count)],
        )
        for name, count in topics.items()
    ]
    return node.send(OffsetCommitRequest(group_id="g", topics=wanted), 8)


def committed(node: BrokerInProcess) -> list[tuple[str, int]]:
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = node.call(OffsetFetchRequest(groups=[group]), 8).groups[0]
    return sorted((topic.name, one.partition_index) for topic in answer.topics for one in topic.partitions)


def fetch(partitions: int, session_id: int = 0, epoch: int = 0, forgotten: int = 0) -> FetchRequest:
    wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1_000) for n in range(partitions)]
    return FetchRequest(
        max_wait_ms=0,
        max_bytes=1_000,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="wide", partitions=wanted)] if wanted else [],
        forgotten_topics_data=[ForgottenTopic(topic="wide", partitions=list(range(forgotten)))] if forgotten else [],
    )


def test_a_fetch_session_grows_and_shrinks_in_parts(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("wide", 1_000)
    session = node.call(fetch(1), FETCH_VERSION).session_id
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    waiting = node.send(fetch(1_000, session, 1), FETCH_VERSION)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert [len(topic.partitions) for topic in waiting.value.responses] == [999]
    waiting = node.send(fetch(0, session, 2, forgotten=990), FETCH_VERSION)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert waiting.value.error_code == ErrorCode.NONE
    assert node.broker.fetch_sessions._partitions == 10


@pytest.mark.parametrize(("min_bytes", "left_bytes"), [(1, 70_000), (200_000, 0)])
def test_a_fetch_of_many_partitions_holds_what_it_has_read(
    node: BrokerInProcess, min_bytes: int, left_bytes: int
) -> None:
    """Others may read as much meanwhile. One that waits for more lets go of it."""
    node.create("wide", partitions=40)
    node.produce("wide", [bytes(70_000)], partition=1)
    offsets = {("wide", index): 0 for index in range(40)}
    request = fetch_request(node, offsets, min_bytes=min_bytes, max_wait_ms=1_000)
    steps = handle_fetch(node.broker, request, RequestContext(11, "test", node.peer))
    assert isinstance(steps, Generator)
    held_bytes = list(accumulate(step or 0 for step in steps))
    assert max(held_bytes) > 70_000
    assert left_bytes <= held_bytes[-1] <= left_bytes * 1.2, "its records, and what 40 partitions take without them"


def test_a_fetch_session_that_ends_while_it_grows_is_told(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("wide", 1_000)
    session = node.call(fetch(1), FETCH_VERSION).session_id
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    waiting = node.send(fetch(1_000, session, 1), FETCH_VERSION)
    cache = node.broker.fetch_sessions
    while session in cache._sessions and not cache._partitions > 1:
        node.broker.turns._take_turn()
    cache._forget(session)
    node.clock.advance_ms(EVICTION_IDLE_MS)
    assert waiting.value.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache._partitions == 0


def test_the_first_commit_of_many_offsets_waits_for_its_topic_and_goes_on_in_parts(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("wide", 1_000)
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    waiting = commit(node, {"wide": 1_000})
    assert not waiting.done
    node.clock.advance_ms(0)
    assert {one.error_code for one in waiting.value.topics[0].partitions} == {ErrorCode.NONE}
    assert len(committed(node)) == 1_000


def test_offsets_in_a_transaction_are_committed_behind_a_part_that_is_refused(node: BrokerInProcess) -> None:
    """The first part that is written opens the transaction there, and needs the word of the coordinator for it."""
    node.create("t")
    producer = Producer(node)
    assert producer.init().value.error_code == 0
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="g",
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(count)
                ],
            )
            for name, count in (("deleted", 2 * OFFSETS_PER_PART), ("t", 1))
        ],
    )
    deleted, there = node.call(request, 5).topics
    assert {one.error_code for one in deleted.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert [one.error_code for one in there.partitions] == [ErrorCode.NONE]


def test_topics_without_an_offset_are_parts_as_well(node: BrokerInProcess) -> None:
    node.create("t")
    commit(node, {**{f"no-{n}": 0 for n in range(500)}, "t": 1})
    node.clock.advance_ms(0)
    assert committed(node) == [("t", 0)]


def test_offsets_of_topics_that_go_together_are_looked_for_once(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{n}" for n in range(20)]
    for name in (*names, "stays"):
        node.create(name)
    commit(node, dict.fromkeys((*names, "stays"), 1))
    node.clock.advance_ms(0)
    looks: list[str] = []
    look = OffsetStore.partitions

    def counted(self: OffsetStore, group_id: str) -> list[TopicPartition]:
        looks.append(group_id)
        return look(self, group_id)

    monkeypatch.setattr(OffsetStore, "partitions", counted)
    node.call(DeleteTopicsRequest(topic_names=names, timeout_ms=1_000), 5)
    node.clock.advance_ms(0)
    assert committed(node) == [("stays", 0)]
    assert looks == ["g"]


def test_a_group_with_many_offsets_is_deleted_in_parts_and_whoever_asks_for_it_waits(node: BrokerInProcess) -> None:
    count = 2 * OFFSETS_DELETED_AT_ONCE_MAX + 1
    node.create("wide", count)
    commit(node, {"wide": count})
    node.clock.advance_ms(0)
    deleted = node.send(DeleteGroupsRequest(groups_names=["g", "nobody"]), 2)
    assert not deleted.done
    again = node.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    partitions = [OffsetCommitRequestPartition(partition_index=3, committed_offset=9)]
    topics = [OffsetCommitRequestTopic(name="wide", partitions=partitions)]
    new = node.send(OffsetCommitRequest(group_id="g", topics=topics), 8)
    read = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert node.call(read, 9).groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.clock.advance_ms(0)
    codes = {result.group_id: result.error_code for result in deleted.value.results}
    assert codes == {"g": ErrorCode.NONE, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    assert [result.error_code for result in again.value.results] == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert new.value.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert committed(node) == [("wide", 3)]


def test_a_group_that_cannot_be_deleted_to_its_end_is_answered(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * OFFSETS_DELETED_AT_ONCE_MAX
    node.create("wide", count)
    commit(node, {"wide": count})
    node.clock.advance_ms(0)
    deleted = node.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    monkeypatch.setattr(coordinator_runtime, "append_records", _refuse_append)
    node.clock.advance_ms(0)
    assert [result.error_code for result in deleted.value.results] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    monkeypatch.undo()
    assert len(committed(node)) == OFFSETS_DELETED_AT_ONCE_MAX
    assert node.call(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == ErrorCode.NONE


def _refuse_append(*_: Any, **__: Any) -> None:
    raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "there are not enough of them")


def test_a_topic_whose_partitions_are_being_closed_is_gone_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = BrokerInProcess(tmp_path)
    node.create("wide", 30)
    for index in range(30):
        node.produce("wide", [b"v"], partition=index)
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    at_once(node.broker.metadata_changes.remove_partitions([TopicPartition("wide", index) for index in range(30)]))
    assert any(tmp_path.glob("wide-*")), "its folders have their names until all of its logs are closed"
    node.broker.stop()
    assert not [path for path in tmp_path.glob("wide-*") if not path.name.endswith("-delete")]


def test_a_topic_that_is_made_again_is_written_to_when_the_one_that_was_deleted_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its first partition would write the checkpoints of all logs on the loop."""
    node = BrokerInProcess(tmp_path)
    node.create("t")
    node.produce("t", [b"old"])
    node.broker.log_dir.checkpoint(node.broker.upkeep.high_watermarks())
    worker = hold_worker(node)
    deleted = made_again(node)
    assert not deleted.done
    monkeypatch.setattr(LogDir, "_write_checkpoints", lambda _: pytest.fail("written on the loop"))
    errors: list[int] = []
    for _ in range(10):
        errors.append(written(node, b"new"))
        if worker.jobs:
            worker.finish_one()
        node.clock.advance_ms(10)
    assert errors[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert errors[-1] == ErrorCode.NONE
    assert [error for error in errors if error] == errors[: len(errors) - errors.count(0)], errors
    assert deleted.done
    assert node.broker.partitions.get("t", 0).log.log_end_offset == errors.count(0)


def made_again(node: BrokerInProcess) -> Promise[Any]:
    """Promises the deletion of the first."""
    deleted = node.send(DeleteTopicsRequest(topic_names=["t"]), 5)
    node.clock.advance_ms(100)
    node.send(CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]), 7)
    node.clock.advance_ms(100)
    assert "t" in node.broker.metadata.topics
    return deleted


def test_a_topic_that_is_made_again_waits_for_the_folder_of_the_deleted_one_when_no_checkpoint_names_that(
    tmp_path: Path,
) -> None:
    node = BrokerInProcess(tmp_path)
    node.create("t")
    node.produce("t", [b"old"])
    node.broker.log_dir.checkpoint(node.broker.upkeep.high_watermarks())
    worker = hold_worker(node)
    deleted = made_again(node)
    node.broker.log_dir.checkpoint(node.broker.upkeep.high_watermarks())
    assert not deleted.done
    assert written(node, b"new") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    worker.finish(node.clock)
    assert deleted.done
    assert written(node, b"new") == ErrorCode.NONE


def test_a_waiting_fetch_is_answered_while_a_topic_that_was_made_again_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = BrokerInProcess(tmp_path)
    for name in ("t", "u"):
        node.create(name)
        node.produce(name, [b"old"])
    answer = node.send(fetch_request(node, {("u", 0): 1, ("t", 0): 1}, max_wait_ms=5_000), FETCH_VERSION)
    worker = hold_worker(node)
    # Partitions are closed in later turns, if they are many.
    monkeypatch.setattr(PartitionTable, "_close", lambda _, logs, partitions: logs)
    deleted = made_again(node)
    assert not answer.done
    node.produce("u", [b"new"])
    node.clock.advance_ms(1)
    found = {topic.topic: topic.partitions[0].error_code for topic in answer.value.responses}
    assert found == {"u": ErrorCode.NONE, "t": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert not deleted.done
    worker.finish(node.clock)


def written(node: BrokerInProcess, value: bytes) -> int:
    batch = batch_of([value], timestamp_ms=node.clock.now_ms())
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    answer = node.send(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data]), 9)
    return int(answer.value.responses[0].partition_responses[0].error_code)


def test_many_offsets_are_deleted_in_parts(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("wide", 300)
    commit(node, {"wide": 300})
    node.clock.advance_ms(0)
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in range(1, 310)]
    topics = [OffsetDeleteRequestTopic(name="wide", partitions=partitions)]
    waiting = node.send(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert not waiting.done
    node.clock.advance_ms(0)
    codes = [one.error_code for one in waiting.value.topics[0].partitions]
    assert codes == [ErrorCode.NONE] * 299 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 10
    assert committed(node) == [("wide", 0)]
    unknown = node.call(OffsetDeleteRequest(group_id="nobody", topics=topics), 0)
    assert (unknown.error_code, unknown.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_many_members_leave_in_parts(node: BrokerInProcess) -> None:
    members = [MemberIdentity(member_id=f"m{n}") for n in range(1_200)]
    answer = node.call(LeaveGroupRequest(group_id="g", members=members), 4)
    assert [member.member_id for member in answer.members] == [f"m{n}" for n in range(1_200)]
    assert {member.error_code for member in answer.members} == {ErrorCode.UNKNOWN_MEMBER_ID}
    nameless = node.call(LeaveGroupRequest(group_id="", members=members), 4)
    assert (nameless.error_code, nameless.members) == (ErrorCode.INVALID_GROUP_ID, [])


@pytest.mark.parametrize("enabled", ["false", "true"])
def test_many_markers_let_others_have_their_turn(tmp_path: Path, enabled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = BrokerInProcess(tmp_path, {"oncelog.cluster.action.enable": enabled})
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    topics = [WritableTxnMarkerTopic(name="nowhere", partition_indexes=[0])]
    markers = [WritableTxnMarker(producer_id=n, topics=topics) for n in range(5)]
    waiting = node.send(WriteTxnMarkersRequest(markers=markers), 1)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert [marker.producer_id for marker in waiting.value.markers] == list(range(5))


def test_protocols_of_a_member_are_bounded(node: BrokerInProcess) -> None:
    protocols = [JoinGroupRequestProtocol(name=f"p{n}") for n in range(1_001)]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols)
    assert node.call(request, 5).error_code == ErrorCode.POLICY_VIOLATION
    request.protocols.pop()
    assert node.call(request, 5).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_elements_of_a_produce_are_bounded() -> None:
    data = [PartitionProduceData(index=n, records=None) for n in range(RECORDS_REQUEST_ELEMENTS_MAX)]
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    with pytest.raises(MalformedRequest, match="more than 50000 elements"):
        decode_request(0, 9, memoryview(b"".join(encode_request(0, 9, request))))
    data.pop()
    decoded = decode_request(0, 9, memoryview(b"".join(encode_request(0, 9, request))))
    assert len(decoded.topic_data[0].partition_data) == RECORDS_REQUEST_ELEMENTS_MAX - 1


@pytest.mark.parametrize(("partitions", "is_decoded_elsewhere"), [(3_000, True), (3, False)])
def test_a_produce_that_is_not_large_for_its_records_is_decoded_by_a_worker(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, partitions: int, is_decoded_elsewhere: bool
) -> None:
    node.create("t", partitions)
    batch = batch_of([bytes(90_000 // partitions)], timestamp_ms=1)
    data = [PartitionProduceData(index=n, records=batch) for n in range(partitions)]
    jobs: list[Any] = []
    run = node.broker.decoding.run

    def noted(job: Callable[[], Any]) -> Promise[Any]:
        jobs.append(job)
        return run(job)

    monkeypatch.setattr(node.broker.decoding, "run", noted)
    answer = node.call(ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=data)]), 9)
    assert [each.error_code for each in answer.responses[0].partition_responses] == [0] * partitions
    assert bool(jobs) is is_decoded_elsewhere


@pytest.mark.parametrize("many", [7, 3_000])
def test_a_produce_that_is_refused_as_a_whole_is_answered_for_each_partition(node: BrokerInProcess, many: int) -> None:
    data = [PartitionProduceData(index=n, records=None) for n in range(many)]
    answer = node.call(ProduceRequest(acks=7, topic_data=[TopicProduceData(name="t", partition_data=data)] * 2), 9)
    codes = [[each.error_code for each in topic.partition_responses] for topic in answer.responses]
    assert codes == [[ErrorCode.INVALID_REQUIRED_ACKS] * many] * 2


def test_many_topics_are_described_in_the_order_of_their_names(node: BrokerInProcess) -> None:
    node.create("m500", 3)
    names = [f"m{n:04}" for n in reversed(range(2_500))]
    topics = [TopicRequest(name=name) for name in (*names, "m500", *names)]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2)
    answer = node.call(request, 0)
    assert [topic.name for topic in answer.topics] == [*sorted(names), "m500"]
    assert answer.next_cursor == Cursor(topic_name="m500", partition_index=2)
    request.cursor = answer.next_cursor
    (last,) = node.call(request, 0).topics
    assert [partition.partition_index for partition in last.partitions] == [2]


def test_credentials_of_one_request_are_bounded(node: BrokerInProcess) -> None:
    deletions = [ScramCredentialDeletion(name=f"u{n}", mechanism=1) for n in range(CHANGES_MAX + 1)]
    request = AlterUserScramCredentialsRequest(deletions=deletions)
    answer = node.call(request, 0)
    assert {result.error_code for result in answer.results} == {ErrorCode.POLICY_VIOLATION}
    assert len(answer.results) == CHANGES_MAX + 1
    deletions.pop()
    codes = {result.error_code for result in node.call(request, 0).results}
    assert codes == {ErrorCode.RESOURCE_NOT_FOUND}


def test_a_topic_that_is_named_again_and_again_has_its_partitions_described_once(node: BrokerInProcess) -> None:
    node.create("t", 3)
    topics = [DescribableLogDirTopic(topic="t", partitions=[n]) for n in range(60_000)]
    (result,) = node.call(DescribeLogDirsRequest(topics=topics), 4).results
    assert [one.partition_index for topic in result.topics for one in topic.partitions] == [0, 1, 2]
    (result,) = node.call(DescribeLogDirsRequest(topics=None), 4).results
    assert {topic.name: len(topic.partitions) for topic in result.topics} == {"t": 3}


def resign_after(steps: Generator[Any, None, Any], count: int, node: BrokerInProcess, index: int) -> Any:
    """What they return if a coordinator of groups resigns after so many steps. It has to be loaded again then."""
    for _ in range(count):
        next(steps)
    node.broker.groups.shards.forget(TopicPartition("__consumer_offsets", index))
    return at_once(steps)


@pytest.mark.parametrize("steps_before", [3, 4])
def test_offsets_are_not_unknown_because_their_coordinator_resigns_while_they_are_read(
    node: BrokerInProcess, steps_before: int
) -> None:
    """A consumer that finds none begins anew, or at the end."""
    node.create("wide", 2_000)
    commit(node, {"wide": 2_000})
    node.clock.advance_ms(0)
    read = OffsetFetchRequestTopics(name="wide", partition_indexes=list(range(2_000)))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[read])])
    steps = handle_offset_fetch(node.broker, request, RequestContext(8, "test", node.peer))
    answer = resign_after(steps, steps_before, node, node.broker.groups.shards.index_of("g"))
    assert {one.committed_offset for one in answer.groups[0].topics[0].partitions} == {1}


def test_groups_are_not_left_out_because_their_coordinator_resigns_while_they_are_listed(node: BrokerInProcess) -> None:
    node.create("wide", 1)
    for group_id in map(str, range(100)):
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        topics = [OffsetCommitRequestTopic(name="wide", partitions=partitions)]
        node.send(OffsetCommitRequest(group_id=group_id, topics=topics), 8)
    node.clock.advance_ms(0)
    groups = node.broker.groups
    last = [live.index for live in groups.shards][-1]
    with pytest.raises(KafkaError) as caught:
        resign_after(groups.list_groups((), ()), 1, node, last)
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def crowd(node: BrokerInProcess) -> None:
    """As if the first slices of others had taken this turn of the loop."""
    node.broker.turns._first_slices_ms = turns.FIRST_SLICES_MS_MAX
    node.broker.turns._ask_for_turn()


def test_in_a_crowded_turn_requests_of_some_size_are_decoded_later(node: BrokerInProcess) -> None:
    node.create("wide", partitions=1_000)
    partitions = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(1_000)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="wide", partitions=partitions)])
    crowd(node)
    answer = node.send(request, 7)
    assert not answer.done
    assert node.send(ApiVersionsRequest(), 0).done, "a small one is not"
    node.clock.advance_ms(1)
    assert len(answer.value.topics[0].partitions) == 1_000
    many = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[
        OffsetFetchRequestTopics(name="wide", partition_indexes=list(range(3_000)))])])  # fmt: skip
    crowd(node)
    answer = node.send(many, 8)
    node.clock.advance_ms(1)
    assert len(answer.value.groups[0].topics[0].partitions) == 3_000, "of so many elements that a worker decodes it"


def test_a_request_that_is_decoded_later_and_cannot_be_read_ends_its_connection(node: BrokerInProcess) -> None:
    body = b"\xff" * 5_000
    frame = b"".join(encode_request_frame(ApiKey.LIST_OFFSETS, 7, 1, "test", [body]))
    crowd(node)
    answer = node.broker.dispatcher.serve(memoryview(frame)[4:], node.peer)
    assert isinstance(answer, Promise)
    node.clock.advance_ms(1)
    assert answer.value == []
    crowd(node)
    gone = node.broker.dispatcher.serve(memoryview(frame)[4:], node.peer)
    node.peer.connected = False
    node.clock.advance_ms(1)
    assert isinstance(gone, Promise)
    assert gone.value == []
