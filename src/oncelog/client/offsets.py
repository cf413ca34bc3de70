"""Committed positions of groups: reading them, and committing them outside of transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from oncelog.client.arguments import to_offset, to_partition
from oncelog.client.attempts import Attempts, explained
from oncelog.client.cluster import Cluster, CoordinatorKind
from oncelog.client.deadline import Deadline
from oncelog.client.errors import error_of
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)


class OffsetAndMetadata(NamedTuple):
    """The next offset to read (last processed + 1), and a note that is stored with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Who commits: a consumer gives its own, so that a member that was replaced cannot commit."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


T = TypeVar("T")
Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]

_RETRY_COMMIT: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_RETRY_FETCH: Final = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        grouped[topic].append(partition)
    return dict(grouped)


def topic_structs(
    partitions: Iterable[TopicPartition], topic_type: Callable[..., T], struct_of: Callable[[TopicPartition], object]
) -> list[T]:
    """The `topics` of a request: a struct for each topic, which holds one for each of its partitions."""
    return [
        topic_type(name=topic, partitions=[struct_of(TopicPartition(topic, number)) for number in numbers])
        for topic, numbers in by_topic(partitions).items()
    ]


def offset_structs(offsets: Offsets, topic_type: Callable[..., T], partition_type: Callable[..., object]) -> list[T]:
    """The `topics` of a commit, inside or outside of a transaction."""
    full = {to_partition(partition): full_offset(value) for partition, value in offsets.items()}

    def struct_of(partition: TopicPartition) -> object:
        return partition_type(
            partition_index=partition.partition,
            committed_offset=full[partition].offset,
            committed_leader_epoch=full[partition].leader_epoch,
            committed_metadata=full[partition].metadata,
        )

    return topic_structs(full, topic_type, struct_of)


def full_offset(value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    full = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    return full._replace(offset=to_offset(full.offset))


async def fetch_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    deadline: Deadline,
    *,
    require_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of a group, of all partitions for None. Partitions without one are left out.

    With `require_stable` the call waits, up to the deadline, for open transactions that carry offsets of the group.
    """
    named = None if partitions is None else by_topic(partitions)
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=None
        if named is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in named.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                topics=None
                if named is None
                else [
                    OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in named.items()
                ],
            )
        ],
        require_stable=require_stable,
    )
    response = await cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group_id,
        request,
        OffsetFetchResponse,
        codes=_fetch_codes,
        deadline=deadline,
        retry=_RETRY_FETCH,
    )
    for code in _fetch_codes(response):
        if code:
            raise error_of(code, f"reading the offsets of group {group_id}")
    topics = response.groups[0].topics if response.groups else response.topics
    return {
        TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
            p.committed_offset, p.metadata or "", p.committed_leader_epoch
        )
        for topic in topics
        for p in topic.partitions
        if p.committed_offset >= 0
    }


def _fetch_codes(response: OffsetFetchResponse) -> list[int]:
    codes = [response.error_code, *(group.error_code for group in response.groups)]
    for topic in response.topics:
        codes += [partition.error_code for partition in topic.partitions]
    for group in response.groups:
        for named in group.topics:
            codes += [partition.error_code for partition in named.partitions]
    return codes


async def commit_offsets(cluster: Cluster, group: GroupMetadata, offsets: Offsets, deadline: Deadline) -> None:
    """Commit outside of a transaction. Raises KafkaError with the first code that is not retriable."""
    request = OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=offset_structs(offsets, OffsetCommitRequestTopic, OffsetCommitRequestPartition),
    )
    attempts = Attempts()
    with explained(attempts):
        response = await cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            group.group_id,
            request,
            OffsetCommitResponse,
            codes=lambda answer: [p.error_code for topic in answer.topics for p in topic.partitions],
            deadline=deadline,
            retry=_RETRY_COMMIT,
            attempts=attempts,
        )
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    raise error_of(
                        partition.error_code,
                        f"committing {topic.name}-{partition.partition_index} for group {group.group_id}",
                    )
