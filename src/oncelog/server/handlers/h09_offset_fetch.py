"""OffsetFetch (9), v1-10: one group up to v7, several from v8 on; topics by id from v10 on.

An unknown group or partition is not an error: its offset is -1. With require_stable (v7+), an offset that an open
transaction is about to change is UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from oncelog.coordinator.group.requests import FetchedOffset, PartitionToFetch
from oncelog.coordinator.group.requests import OffsetFetchRequest as FetchRequest
from oncelog.core.errors import ErrorCode, KafkaError
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

_SEVERAL_GROUPS_VERSION = 8
_TOPIC_ID_VERSION = 10
_TOP_LEVEL_ERROR_VERSION = 2


def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    version = context.api_version
    if version >= _SEVERAL_GROUPS_VERSION:
        by_id = version >= _TOPIC_ID_VERSION
        fetched = [_fetch_group(broker, context, group, request.require_stable, by_id) for group in request.groups]
        return OffsetFetchResponse(groups=fetched)
    topics = request.topics
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None if topics is None else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics
        ],
    )  # fmt: skip
    return _as_single(_fetch_group(broker, context, group, request.require_stable, by_id=False), group, version)


def _as_single(fetched: OffsetFetchResponseGroup, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponse:
    if fetched.error_code and version < _TOP_LEVEL_ERROR_VERSION:
        # Version 1 has no place for an error of the group: every partition carries it.
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=index, committed_offset=-1, metadata="", error_code=fetched.error_code
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in group.topics or []
            ]
        )
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
) -> OffsetFetchResponseGroup:
    if not context.may(Operation.DESCRIBE, Resource.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused: list[OffsetFetchResponseTopics] = []
    wanted: list[PartitionToFetch] | None = None
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            known = (
                broker.metadata.topics_by_id.get(topic.topic_id) if by_id else broker.metadata.topics.get(topic.name)
            )
            if known is None and by_id:
                refused.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            name = known.name if known is not None else topic.name
            if not context.may(Operation.DESCRIBE, Resource.TOPIC, name):
                refused.append(_refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            topic_id = known.topic_id if known is not None else topic.topic_id
            wanted += [PartitionToFetch(name, index, topic_id) for index in topic.partition_indexes]
    fetch = FetchRequest(
        group_id=group.group_id,
        partitions=None if wanted is None else tuple(wanted),
        require_stable=require_stable,
    )

    try:
        result = broker.groups.shard_of(group.group_id).fetch_offsets(fetch)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    offsets = [each for each in result.offsets if context.may(Operation.DESCRIBE, Resource.TOPIC, each.topic)]
    topics = _by_topic(broker, offsets, by_id)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=[*topics, *refused])


def _refused(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )


def _by_topic(broker: Broker, offsets: list[FetchedOffset], by_id: bool) -> list[OffsetFetchResponseTopics]:
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for fetched in offsets:
        topic = topics.get(fetched.topic)
        if topic is None:
            known = broker.metadata.topics.get(fetched.topic)
            if known is None and by_id:
                continue
            topic = topics[fetched.topic] = OffsetFetchResponseTopics(name=fetched.topic)
            if known is not None:
                topic.topic_id = known.topic_id
        topic.partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=fetched.partition,
                committed_offset=fetched.offset,
                committed_leader_epoch=fetched.leader_epoch,
                metadata=fetched.metadata,
                error_code=fetched.error,
            )
        )
    return list(topics.values())
