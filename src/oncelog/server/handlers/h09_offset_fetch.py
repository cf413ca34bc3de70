"""OffsetFetch (9), v1-10: one group up to v7, several from v8 on; topics by id from v10 on.

An unknown group or partition is not an error: its offset is -1. With require_stable (v7+), an offset that an open
transaction is about to change is UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
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
from oncelog.server.turns import ITEM_BYTES, Steps, in_steps

_SEVERAL_GROUPS_VERSION = 8
_TOPIC_ID_VERSION = 10
_TOP_LEVEL_ERROR_VERSION = 2
_PARTITIONS_PER_STEP = 500
_WANTED_BYTES = 50
"""Memory of a partition among those that are wanted."""

Wanted = dict[str | UUID, dict[int, None]]
"""The partitions of each topic, by its name or its id."""


def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Steps[OffsetFetchResponse]:
    version = context.api_version
    by_id = version >= _TOPIC_ID_VERSION
    # A small request must not get a huge answer by asking for the same group or topic again and again.
    once: dict[str, Wanted | None] = {}
    if version < _SEVERAL_GROUPS_VERSION:
        yield from _note(once, request.group_id, request.topics, by_id)
    for asked in request.groups:
        yield from _note(once, asked.group_id, asked.topics, by_id)
    fetched: list[OffsetFetchResponseGroup] = []
    for group_id, wanted in once.items():
        if fetched:
            yield ITEM_BYTES
        fetched.append((yield from _fetch_group(broker, context, group_id, wanted, request.require_stable, by_id)))
    if version < _SEVERAL_GROUPS_VERSION:
        return (yield from _as_single(fetched[0], once[request.group_id] or {}, version))
    return OffsetFetchResponse(groups=fetched)


def _note(
    once: dict[str, Wanted | None],
    group_id: str,
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    by_id: bool,
) -> Steps[None]:
    """Whoever asks for all of a group and for some of it gets all of it."""
    wanted = once.setdefault(group_id, {})
    yield
    if topics is None or wanted is None:
        once[group_id] = None
        return
    for topic in topics:
        key = topic.topic_id if by_id and isinstance(topic, OffsetFetchRequestTopics) else topic.name
        wanted.setdefault(key, {}).update(dict.fromkeys(topic.partition_indexes))
        yield ITEM_BYTES + len(topic.partition_indexes) * _WANTED_BYTES


def _as_single(fetched: OffsetFetchResponseGroup, wanted: Wanted, version: int) -> Steps[OffsetFetchResponse]:
    if fetched.error_code and version < _TOP_LEVEL_ERROR_VERSION:
        # Version 1 has no place for an error of the group: every partition carries it.
        for name, indexes in wanted.items():
            failed = yield from in_steps(_failed(index, fetched.error_code) for index in indexes)
            fetched.topics.append(OffsetFetchResponseTopics(name=str(name), partitions=failed))
    response = OffsetFetchResponse(error_code=fetched.error_code)
    for topic in fetched.topics:
        partitions = yield from in_steps(
            OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
            for partition in topic.partitions
        )
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        yield
    return response


def _fetch_group(
    broker: Broker, context: RequestContext, group_id: str, wanted: Wanted | None, require_stable: bool, by_id: bool
) -> Steps[OffsetFetchResponseGroup]:
    if not context.permits(Operation.DESCRIBE, Resource.GROUP, group_id):
        return OffsetFetchResponseGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        return (yield from _offsets_of(broker, context, group_id, wanted, require_stable, by_id))
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error.code)


def _offsets_of(
    broker: Broker, context: RequestContext, group_id: str, wanted: Wanted | None, require_stable: bool, by_id: bool
) -> Steps[OffsetFetchResponseGroup]:
    """The shard is found anew for each part: one that this broker has given up meanwhile would know of no offsets."""
    committed = broker.groups.shard_of(group_id).commits.committed_partitions
    if wanted is None:
        wanted = yield from _everything(broker, context, committed(group_id), by_id)
    answer = OffsetFetchResponseGroup(group_id=group_id)
    for key, among in wanted.items():
        found = (
            OffsetFetchResponseTopics(topic_id=key) if isinstance(key, UUID) else OffsetFetchResponseTopics(name=key)
        )
        refusal = _name(broker, context, found, by_id)
        indexes = list(among)
        if answer.topics:
            yield ITEM_BYTES
        for first in range(0, len(indexes), _PARTITIONS_PER_STEP):
            if first:
                yield _PARTITIONS_PER_STEP * ITEM_BYTES
            part = indexes[first : first + _PARTITIONS_PER_STEP]
            fetch = broker.groups.shard_of(group_id).commits.fetch
            found.partitions += (
                [_failed(index, refusal) for index in part]
                if refusal
                else fetch(group_id, found.name, found.topic_id, part, require_stable=require_stable)
            )
        answer.topics.append(found)
    return answer


def _everything(broker: Broker, context: RequestContext, committed: list[TopicPartition], by_id: bool) -> Steps[Wanted]:
    """Topics that the client may see and, where it names them by id, that still have one."""
    by_topic: dict[str, list[int]] = {}
    for number, (topic, index) in enumerate(committed):
        by_topic.setdefault(topic, []).append(index)
        if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
    wanted: Wanted = {}
    ids = broker.metadata.ids_of(by_topic)
    for name in sorted(by_topic):
        if context.may(Operation.DESCRIBE, Resource.TOPIC, name) and (name in ids or not by_id):
            wanted[ids[name] if by_id else name] = dict.fromkeys(sorted(by_topic[name]))
        yield
    return wanted


def _name(broker: Broker, context: RequestContext, topic: OffsetFetchResponseTopics, by_id: bool) -> ErrorCode:
    """Give a topic its name, and its id if it exists. Returns the error that refuses it, if any."""
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
