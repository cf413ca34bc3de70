"""A small request does not become much work by naming things again and again, or by being all numbers and tags."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.steps import at_once
from oncelog.protocol.api import decode_request, encode_request
from oncelog.protocol.decoder import REQUEST_ELEMENTS_MAX, TAGS_MAX
from oncelog.protocol.framing import parse_request_header
from oncelog.protocol.messages import incremental_alter_configs as incremental
from oncelog.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.primitives import MalformedRequest, uvarint
from oncelog.server import dispatch
from oncelog.server.context import Peer, RequestContext
from oncelog.server.dispatch import ENCODED_HERE_ELEMENTS_MAX
from oncelog.server.handlers.h02_list_offsets import _asked_twice
from oncelog.server.handlers.h03_metadata import handle as describe_metadata
from tests.unit.server.harness import BrokerInProcess

OFFSET_FETCH_VERSION = 9


def offset_fetch(indexes: list[int]) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=indexes)]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])


def commit(node: BrokerInProcess, group_id: str, indexes: list[int]) -> None:
    node.create("t", 3)
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in indexes]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    node.call(OffsetCommitRequest(group_id=group_id, topics=topics), 8)


def fetch(times: int) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000) for _ in range(times)]
    return FetchRequest(max_wait_ms=0, max_bytes=1_000, topics=[FetchTopic(topic="t", partitions=partitions)])


def test_a_group_is_described_once(node: BrokerInProcess) -> None:
    assert len(node.call(DescribeGroupsRequest(groups=["g"] * 300), 5).groups) == 1


def test_a_transactional_id_is_described_once(node: BrokerInProcess) -> None:
    answer = node.call(DescribeTransactionsRequest(transactional_ids=["x"] * 300), 0)
    assert len(answer.transaction_states) == 1


def test_a_partition_has_its_producers_described_once(node: BrokerInProcess) -> None:
    node.create("t")
    topics = [TopicRequest(name="t", partition_indexes=[0] * 100)] * 3
    answer = node.call(DescribeProducersRequest(topics=topics), 0)
    assert [len(topic.partitions) for topic in answer.topics] == [1]


def test_a_resource_has_its_settings_described_once(node: BrokerInProcess) -> None:
    resources = [DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)] * 8_000
    assert len(node.call(DescribeConfigsRequest(resources=resources), 4).results) == 1


def test_a_coordinator_is_found_once(node: BrokerInProcess) -> None:
    answer = node.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * 300), 4)
    assert len(answer.coordinators) == 1


def test_offsets_of_a_partition_are_fetched_once(node: BrokerInProcess) -> None:
    answer = node.call(offset_fetch([0] * 1_000 + [1]), OFFSET_FETCH_VERSION)
    assert [partition.partition_index for partition in answer.groups[0].topics[0].partitions] == [0, 1]


@pytest.mark.parametrize("all_first", [False, True])
def test_a_group_has_its_offsets_fetched_once(node: BrokerInProcess, all_first: bool) -> None:
    commit(node, "g", [0, 2])
    some = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[5])])
    everything = OffsetFetchRequestGroup(group_id="g", topics=None)
    groups = [everything, some, everything] if all_first else [some, everything, everything]
    answer = node.call(OffsetFetchRequest(groups=groups), OFFSET_FETCH_VERSION)
    assert [group.group_id for group in answer.groups] == ["g"]
    found = [
        (partition.partition_index, partition.committed_offset) for partition in answer.groups[0].topics[0].partitions
    ]
    assert found == [(0, 7), (2, 7)]


@pytest.mark.parametrize("version", [7, 9, 10])
def test_a_topic_of_a_group_has_its_offsets_fetched_once(node: BrokerInProcess, version: int) -> None:
    commit(node, "g", [0, 2])
    topic_id = node.broker.metadata.topics["t"].topic_id
    if version == 7:
        plain = [OffsetFetchRequestTopic(name="t", partition_indexes=[index]) for index in (2, 0, 2, 9)]
        topics = node.call(OffsetFetchRequest(group_id="g", topics=plain), version).topics
    else:
        wanted = [
            OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[index]) for index in (2, 0, 2, 9)
        ]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=wanted)] * 2
        topics = node.call(OffsetFetchRequest(groups=groups), version).groups[0].topics
    (topic,) = topics
    found = [(partition.partition_index, partition.committed_offset) for partition in topic.partitions]
    assert found == [(2, 7), (0, 7), (9, -1)]


def test_a_topic_that_is_asked_for_by_its_id_is_described_once(node: BrokerInProcess) -> None:
    node.create("t")
    topic_id = node.broker.metadata.topics["t"].topic_id
    asked = [MetadataRequestTopic(topic_id=topic_id, name=name) for name in ("t", None, "a", "b")]
    assert [topic.name for topic in node.call(MetadataRequest(topics=asked), 12).topics] == ["t"]


def test_a_partition_is_fetched_once(node: BrokerInProcess) -> None:
    node.create("t")
    answer = node.call(fetch(1_000), 11)
    assert [len(topic.partitions) for topic in answer.responses] == [1]


@pytest.mark.parametrize(
    "request_of_many",
    [
        AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=4, resource_name="1")] * 100),
        incremental.IncrementalAlterConfigsRequest(
            resources=[incremental.AlterConfigsResource(resource_type=4, resource_name="1")] * 100
        ),
    ],
    ids=["replace", "change"],
)
def test_a_resource_that_is_to_be_changed_many_times_is_refused(node: BrokerInProcess, request_of_many: Any) -> None:
    answer = node.call(request_of_many, 1)
    assert [each.error_code for each in answer.responses] == [ErrorCode.INVALID_REQUEST]


def test_numbers_are_counted() -> None:
    request = offset_fetch(list(range(REQUEST_ELEMENTS_MAX + 1)))
    body = b"".join(encode_request(9, OFFSET_FETCH_VERSION, request))
    with pytest.raises(MalformedRequest, match="more than 200000 elements"):
        decode_request(9, OFFSET_FETCH_VERSION, memoryview(body))


def many_tags(count: int) -> bytes:
    return uvarint(count) + b"\x63\x00" * count


def test_tags_are_counted() -> None:
    body = b"".join(encode_request(9, OFFSET_FETCH_VERSION, offset_fetch([])))
    for count in (TAGS_MAX + 1, REQUEST_ELEMENTS_MAX + 1):
        with pytest.raises(MalformedRequest, match="tags"):
            decode_request(9, OFFSET_FETCH_VERSION, memoryview(body[:-1] + many_tags(count)))
    assert decode_request(9, OFFSET_FETCH_VERSION, memoryview(body[:-1] + many_tags(TAGS_MAX))).groups


def test_tags_of_a_header_are_counted() -> None:
    header = (9).to_bytes(2, "big") + OFFSET_FETCH_VERSION.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with pytest.raises(MalformedRequest, match="tags in one place"):
        parse_request_header(header + many_tags(TAGS_MAX + 1))


def test_large_requests_and_answers_go_through_a_worker(node: BrokerInProcess) -> None:
    answer = node.call(offset_fetch(list(range(50_000))), OFFSET_FETCH_VERSION)
    assert len(answer.groups[0].topics[0].partitions) == 50_000


def test_metadata_of_many_partitions_takes_no_memory_before_it_is_encoded(node: BrokerInProcess) -> None:
    node.create("wide", 5_000)
    context = RequestContext(12, "", Peer("127.0.0.1", "127.0.0.1"))
    tracemalloc.start()
    try:
        answer = at_once(describe_metadata(node.broker, MetadataRequest(topics=None), context))
        assert isinstance(answer, MetadataResponse)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (wide,) = [topic for topic in answer.topics if topic.name == "wide"]
    assert [partition.partition_index for partition in wide.partitions] == list(range(5_000))
    assert taken_bytes < 5_000 * 8


def test_metadata_of_many_partitions_is_encoded_by_a_worker_however_fast_it_is_found(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("wide", ENCODED_HERE_ELEMENTS_MAX)
    monkeypatch.setattr(dispatch, "BRIEF_S", 1_000)
    jobs: list[object] = []
    run = node.broker.encoding.run
    monkeypatch.setattr(node.broker.encoding, "run", lambda job: jobs.append(job) or run(job))
    assert len(node.call(MetadataRequest(topics=None), 12).topics) > 0
    assert len(jobs) == 1


def test_partitions_of_all_fetch_sessions_are_bounded(node: BrokerInProcess) -> None:
    sessions = node.broker.fetch_sessions
    sessions._partitions_max = 3
    for number in range(4):
        node.create(f"t{number}")
    session_ids = []
    for number in range(4):
        partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)]
        topics = [FetchTopic(topic=f"t{number}", partitions=partitions)]
        session_ids.append(node.call(FetchRequest(max_wait_ms=0, session_epoch=0, topics=topics), 11).session_id)
    assert [session_id > 0 for session_id in session_ids] == [True, True, True, False]
    grown = node.call(FetchRequest(max_wait_ms=0, session_id=session_ids[0], session_epoch=1, topics=topics), 11)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    fresh = node.call(FetchRequest(max_wait_ms=0, session_epoch=0, topics=topics), 11)
    assert fresh.session_id > 0, "there is room again"


def test_offsets_of_many_partitions_are_looked_through_in_turns() -> None:
    partitions = [ListOffsetsPartition(partition_index=index) for index in [*range(10_000), 7]]
    steps = _asked_twice(ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)]))
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            assert done.value == {("t", 7)}
            break
        turns += 1
    assert turns >= 10
