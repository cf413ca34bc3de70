"""Topics, partitions and offsets of logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.client.admin_base import AdminBase, raise_first
from oncelog.client.arguments import list_of, setting_text, to_partition
from oncelog.client.attempts import Attempts
from oncelog.client.cluster import TopicInfo
from oncelog.client.errors import ErrorCode
from oncelog.client.offsets import topic_structs
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

CONSUMER_REPLICA_ID = -1


class NewTopic(NamedTuple):
    """-1 leaves a count to the broker; `assignment` (replicas by partition) takes the place of both counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | float] = {}
    assignment: Mapping[int, list[int]] = {}


class OffsetResult(NamedTuple):
    """-1 when no record is at or after the timestamp asked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class TopicAdmin(AdminBase):
    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, if_not_exists: bool = False
    ) -> list[str]:
        """Create topics. Raises KafkaError for the first that was refused; `if_not_exists` lets existing ones pass.

        Returns the names of those that were not there before.
        """
        given = list_of("topics", topics)
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in given]
        before: set[str] = set()
        if if_not_exists:
            await self.cluster.refresh([topic.name for topic in wanted], self._deadline())
            before = {topic.name for topic in wanted if topic.name in self.cluster.topics}
        attempts = Attempts()
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=self.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        response = await self._ask_controller(
            request, CreateTopicsResponse, lambda answer: [topic.error_code for topic in answer.topics], attempts
        )
        passing = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else ErrorCode.NONE
        raise_first(
            (
                (
                    0 if topic.error_code == passing else topic.error_code,
                    f"creating topic {topic.name}",
                    topic.error_message,
                )
                for topic in response.topics
            ),
            attempts,
        )
        made_now = {topic.name for topic in response.topics if not topic.error_code or attempts.in_doubt}
        return [topic.name for topic in wanted if topic.name in made_now - before]

    async def ensure_topic(self, topic: NewTopic | str) -> TopicInfo:
        """Create a topic unless it is there. Returns it when brokers know of it, which may be a little later."""
        wanted = NewTopic(topic) if isinstance(topic, str) else topic
        await self.cluster.refresh([wanted.name], self._deadline())
        if wanted.name not in self.cluster.topics:
            await self.create_topics([wanted], if_not_exists=True)
        return await self.cluster.topic(wanted.name, self._deadline())

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all that is in them. Raises KafkaError for the first that was refused."""
        wanted = list_of("topics", names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=self.cluster.config.request_timeout_ms,
        )
        attempts = Attempts()
        response = await self._ask_controller(
            request, DeleteTopicsResponse, lambda answer: [topic.error_code for topic in answer.responses], attempts
        )
        for name in wanted:
            self.cluster.topics.pop(name, None)
        raise_first(
            ((t.error_code, f"deleting topic {t.name}", t.error_message) for t in response.responses),
            attempts,
        )

    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Let topics grow to the given numbers of partitions. Keys move to other partitions by that."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in totals.items()],
            timeout_ms=self.cluster.config.request_timeout_ms,
            validate_only=validate_only,
        )
        attempts = Attempts()
        response = await self._ask_controller(
            request, CreatePartitionsResponse, lambda answer: [topic.error_code for topic in answer.results], attempts
        )
        raise_first(
            ((t.error_code, f"growing topic {t.name}", t.error_message) for t in response.results),
            attempts,
        )

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """All topics this client may see, by name."""
        self.cluster.topics.clear()
        await self.cluster.refresh(None, self._deadline())
        return {name: info for name, info in self.cluster.topics.items() if internal or not info.is_internal}

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Partitions and their leaders. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION without creating anything."""
        wanted = list_of("topics", names)
        await self.cluster.refresh(wanted, self._deadline())
        missing = [name for name in wanted if name not in self.cluster.topics]
        raise_first((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}", "it is not there") for name in missing)
        return {name: self.cluster.topics[name] for name in wanted}

    async def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetResult]:
        """The offset for an `OffsetSpec` or a timestamp in milliseconds, per partition.

        LATEST is the last stable offset for read_committed and the high watermark otherwise.
        """
        wanted = {to_partition(partition): int(spec) for partition, spec in specs.items()}

        def request(partitions: list[TopicPartition]) -> ListOffsetsRequest:
            return ListOffsetsRequest(
                replica_id=CONSUMER_REPLICA_ID,
                isolation_level=isolation,
                timeout_ms=self.cluster.config.request_timeout_ms,
                topics=topic_structs(
                    partitions,
                    ListOffsetsTopic,
                    lambda p: ListOffsetsPartition(partition_index=p.partition, timestamp=wanted[p]),
                ),
            )

        found = await self._ask_leaders(wanted, request, ListOffsetsResponse, lambda answer: answer.topics, "offsets")
        return {
            partition: OffsetResult(found[partition].offset, found[partition].timestamp, found[partition].leader_epoch)
            for partition in wanted
        }

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop everything below the given offsets (-1: up to the high watermark). Returns the new log starts."""
        wanted = {to_partition(partition): offset for partition, offset in before.items()}

        def request(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
            return DeleteRecordsRequest(
                timeout_ms=self.cluster.config.request_timeout_ms,
                topics=topic_structs(
                    partitions,
                    DeleteRecordsTopic,
                    lambda p: DeleteRecordsPartition(partition_index=p.partition, offset=wanted[p]),
                ),
            )

        found = await self._ask_leaders(
            wanted, request, DeleteRecordsResponse, lambda answer: answer.topics, "deleting records", Attempts()
        )
        return {partition: result.low_watermark for partition, result in found.items()}


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignment else topic.num_partitions,
        replication_factor=-1 if topic.assignment else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
            for number, replicas in topic.assignment.items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=setting_text(name, value)) for name, value in topic.configs.items()
        ],
    )
