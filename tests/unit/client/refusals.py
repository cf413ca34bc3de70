"""Answers that carry one error code for everything a request asked for."""

from __future__ import annotations

from typing import Any

from oncelog.controller.refusals import refused
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    delete_groups,
    delete_records,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sync_group,
    txn_offset_commit,
)
from oncelog.protocol.schema import Message


def refuse(request: Message, code: int) -> Message:
    """The answer by which a broker refuses the whole of a request with one code."""
    match request:
        case produce.ProduceRequest():
            return _produce(request, code)
        case fetch.FetchRequest():
            return _fetch(request, code)
        case list_offsets.ListOffsetsRequest():
            return _list_offsets(request, code)
        case metadata.MetadataRequest():
            return metadata.MetadataResponse(error_code=code)
        case find_coordinator.FindCoordinatorRequest():
            found = [find_coordinator.Coordinator(key=key, error_code=code) for key in request.coordinator_keys]
            return find_coordinator.FindCoordinatorResponse(error_code=code, coordinators=found)
        case init_producer_id.InitProducerIdRequest():
            return init_producer_id.InitProducerIdResponse(error_code=code)
        case add_partitions_to_txn.AddPartitionsToTxnRequest():
            return _add_partitions(request, code)
        case add_offsets_to_txn.AddOffsetsToTxnRequest():
            return add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=code)
        case end_txn.EndTxnRequest():
            return end_txn.EndTxnResponse(error_code=code)
        case txn_offset_commit.TxnOffsetCommitRequest():
            return _txn_offset_commit(request, code)
        case offset_commit.OffsetCommitRequest():
            return _offset_commit(request, code)
        case offset_fetch.OffsetFetchRequest():
            groups = [
                offset_fetch.OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in request.groups
            ]
            return offset_fetch.OffsetFetchResponse(error_code=code, groups=groups)
        case join_group.JoinGroupRequest():
            return join_group.JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name="")
        case sync_group.SyncGroupRequest():
            return sync_group.SyncGroupResponse(error_code=code)
        case heartbeat.HeartbeatRequest():
            return heartbeat.HeartbeatResponse(error_code=code)
        case delete_groups.DeleteGroupsRequest():
            deleted = [delete_groups.DeletableGroupResult(group_id=g, error_code=code) for g in request.groups_names]
            return delete_groups.DeleteGroupsResponse(results=deleted)
        case delete_records.DeleteRecordsRequest():
            topic, partition = delete_records.DeleteRecordsTopicResult, delete_records.DeleteRecordsPartitionResult
            return delete_records.DeleteRecordsResponse(topics=_topics(topic, partition, request, code))
        case offset_delete.OffsetDeleteRequest():
            return offset_delete.OffsetDeleteResponse(error_code=code)
        case leave_group.LeaveGroupRequest():
            return leave_group.LeaveGroupResponse(error_code=code)
    return refused(request, KafkaError(ErrorCode(code)))


def _produce(request: produce.ProduceRequest, code: int) -> Message:
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    produce.PartitionProduceResponse(index=p.index, error_code=code, base_offset=-1)
                    for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: fetch.FetchRequest, code: int) -> Message:
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    fetch.PartitionData(partition_index=p.partition, error_code=code, high_watermark=-1)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: list_offsets.ListOffsetsRequest, code: int) -> Message:
    topic, partition = list_offsets.ListOffsetsTopicResponse, list_offsets.ListOffsetsPartitionResponse
    return list_offsets.ListOffsetsResponse(topics=_topics(topic, partition, request, code))


def _add_partitions(request: add_partitions_to_txn.AddPartitionsToTxnRequest, code: int) -> Message:
    return add_partitions_to_txn.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            add_partitions_to_txn.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    add_partitions_to_txn.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _txn_offset_commit(request: txn_offset_commit.TxnOffsetCommitRequest, code: int) -> Message:
    topic, partition = (
        txn_offset_commit.TxnOffsetCommitResponseTopic,
        txn_offset_commit.TxnOffsetCommitResponsePartition,
    )
    return txn_offset_commit.TxnOffsetCommitResponse(topics=_topics(topic, partition, request, code))


def _offset_commit(request: offset_commit.OffsetCommitRequest, code: int) -> Message:
    topic, partition = offset_commit.OffsetCommitResponseTopic, offset_commit.OffsetCommitResponsePartition
    return offset_commit.OffsetCommitResponse(topics=_topics(topic, partition, request, code))


def _topics(topic_type: type[Message], partition_type: type[Message], request: Any, code: int) -> list[Any]:
    """A refusal for each partition in the request, by topic."""
    return [
        topic_type(
            name=topic.name,
            partitions=[partition_type(partition_index=p.partition_index, error_code=code) for p in topic.partitions],
        )
        for topic in request.topics
    ]
