"""OffsetFetch (9), v1-10: one group up to v7, several from v8 on; topics by id from v10 on.

An unknown group or partition is not an error: its offset is -1. With require_stable (v7+), an offset that an open
transaction is about to change is UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NULL_UUID
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps

_SEVERAL_GROUPS_VERSION = 8
_TOPIC_ID_VERSION = 10
_TOP_LEVEL_ERROR_VERSION = 2
_PARTITIONS_PER_STEP = 500


def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Steps[OffsetFetchResponse]:
    version = context.api_version
    if version >= _SEVERAL_GROUPS_VERSION:
        by_id = version >= _TOPIC_ID_VERSION
        response = OffsetFetchResponse()
        for asked in request.groups:
            response.groups.append((yield from _fetch_group(broker, context, asked, request.require_stable, by_id)))
        return response
    topics = request.topics
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None if topics is None else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics
        ],
    )  # fmt: skip
    fetched = yield from _fetch_group(broker, context, group, request.require_stable, by_id=False)
    return _as_single(fetched, group, version)


def _as_single(fetched: OffsetFetchResponseGroup, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponse:
    if fetched.error_code and version < _TOP_LEVEL_ERROR_VERSION:
        # Version 1 has no place for an error of the group: every partition carries it.
        fetched.topics = [
            OffsetFetchResponseTopics(
                name=topic.name, partitions=[_failed(index, fetched.error_code) for index in topic.partition_indexes]
            )
            for topic in group.topics or []
        ]
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in fetched.topics
        ],
    )


def _fetch_group(
    broker: Broker, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool, by_id: bool
) -> Steps[OffsetFetchResponseGroup]:
    if not context.permits(Operation.DESCRIBE, Resource.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        shard = broker.groups.shard_of(group.group_id)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    wanted = group.topics
    if wanted is None:
        wanted = _everything(broker, context, shard.commits.committed_partitions(group.group_id), by_id)
    answer = OffsetFetchResponseGroup(group_id=group.group_id)
    for topic in wanted:
        refusal = _name(broker, context, topic, by_id)
        found = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        indexes = list(dict.fromkeys(topic.partition_indexes))
        for first in range(0, len(indexes), _PARTITIONS_PER_STEP):
            part = indexes[first : first + _PARTITIONS_PER_STEP]
            found.partitions += (
                [_failed(index, refusal) for index in part]
                if refusal
                else shard.commits.fetch(
                    group.group_id, topic.name, topic.topic_id, part, require_stable=require_stable
                )
            )
            yield
        answer.topics.append(found)
        yield
    return answer


def _everything(
    broker: Broker, context: RequestContext, committed: dict[str, list[int]], by_id: bool
) -> list[OffsetFetchRequestTopics]:
    """Topics that the client may see and, where it names them by id, that still have one."""
    ids = broker.metadata.ids_of(committed)
    return [
        OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, NULL_UUID), partition_indexes=indexes)
        for name, indexes in committed.items()
        if context.may(Operation.DESCRIBE, Resource.TOPIC, name) and (name in ids or not by_id)
    ]


def _name(broker: Broker, context: RequestContext, topic: OffsetFetchRequestTopics, by_id: bool) -> ErrorCode:
    """From here on a topic has its name, and its id if it exists. Returns what refuses it."""
    topics = broker.metadata.topics
    known = broker.metadata.topics_by_id.get(topic.topic_id) if by_id else topics.get(topic.name)
    if known is not None:
        topic.name, topic.topic_id = known.name, known.topic_id
    elif by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    may_see = context.permits(Operation.DESCRIBE, Resource.TOPIC, topic.name)
    return ErrorCode.NONE if may_see else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _failed(index: int, code: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=code)
