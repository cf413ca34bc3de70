"""OffsetCommit (8), v2-10: topics by name, from v10 on by id."""

from __future__ import annotations

from oncelog.coordinator.group import requests
from oncelog.coordinator.group.requests import OffsetCommitResult, OffsetToCommit, PartitionError
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext

_TOPIC_ID_VERSION = 10
_GROUP_ID_NOT_FOUND_VERSION = 9

Answer = OffsetCommitResponse | Promise[OffsetCommitResponse]


def handle(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> Answer:
    if not context.may(Operation.READ, Resource.GROUP, request.group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return _response(request, dict.fromkeys(_places(request), refused))
    by_id = context.api_version >= _TOPIC_ID_VERSION
    refusals: dict[tuple[int, int], ErrorCode] = {}
    offsets: list[OffsetToCommit] = []
    places: list[tuple[int, int]] = []
    for t, topic in enumerate(request.topics):
        known = broker.metadata.topics_by_id.get(topic.topic_id) if by_id else broker.metadata.topics.get(topic.name)
        name = topic.name if known is None else known.name
        may_read = context.may(Operation.READ, Resource.TOPIC, name)
        for p, partition in enumerate(topic.partitions):
            if not may_read and not (by_id and known is None):
                refusals[t, p] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            if known is None or not 0 <= partition.partition_index < known.partition_count:
                unknown = (
                    ErrorCode.UNKNOWN_TOPIC_ID if by_id and known is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                refusals[t, p] = unknown
                continue
            places.append((t, p))
            offsets.append(
                OffsetToCommit(
                    known.name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    known.topic_id,
                )
            )
    commit = requests.OffsetCommitRequest(
        group_id=request.group_id,
        offsets=tuple(offsets),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms,
        understands_group_id_not_found=context.api_version >= _GROUP_ID_NOT_FOUND_VERSION,
    )
    answer = broker.groups.run(
        request.group_id,
        lambda shard, reply, now_ms: shard.commit_offsets(commit, reply, now_ms),
        lambda error: OffsetCommitResult(
            partitions=tuple(PartitionError(entry.topic, entry.partition, error) for entry in offsets)
        ),
    )

    def respond(result: OffsetCommitResult) -> OffsetCommitResponse:
        codes = dict(refusals)
        codes.update((place, entry.error) for place, entry in zip(places, result.partitions, strict=True))
        return _response(request, codes)

    return answer.map(respond)


def _places(request: OffsetCommitRequest) -> list[tuple[int, int]]:
    return [(t, p) for t, topic in enumerate(request.topics) for p in range(len(topic.partitions))]


def _response(request: OffsetCommitRequest, codes: dict[tuple[int, int], ErrorCode]) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_topic(t, topic, codes) for t, topic in enumerate(request.topics)])


def _topic(
    t: int, topic: OffsetCommitRequestTopic, codes: dict[tuple[int, int], ErrorCode]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=codes[t, p])
            for p, partition in enumerate(topic.partitions)
        ],
    )
