"""Making, changing and deleting topics: Kafka's rules for names, counts and settings, one node's for replicas."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from oncelog.cluster.journal import JournalEntry
from oncelog.cluster.metadata import Metadata, topic_subject
from oncelog.cluster.metadata_entries import Topic, delete_entry, partitions_entry, topic_entry
from oncelog.controller.topic_rules import (
    PARTITIONS_PER_REQUEST_MAX,
    check_configs,
    check_name,
    metric_name,
    unknown_topic,
)
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, NULL_UUID, NodeId
from oncelog.core.promise import Promise


class TopicCatalog:
    def __init__(
        self,
        metadata: Metadata,
        node_id: NodeId,
        new_uuid: Callable[[], uuid.UUID],
        partitions_max: int,
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._new_uuid = new_uuid
        self._partitions_max = partitions_max
        self._coming: dict[str, int] = {}
        """Partitions that are decided and not in the image yet, by topic."""
        self._coming_in_all = 0

    def require(self, name: str) -> Topic:
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise unknown_topic()
        return topic

    def check_new(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]],
        configs: Mapping[str, str | None],
    ) -> tuple[int, dict[str, str]]:
        """The partition count and settings a new topic would get; raises what CreateTopics must answer."""
        check_name(name)
        if name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self._metadata.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._check_collision(name)
        if assignments:
            partition_count = self._check_assignments(partition_count, replication_factor, assignments)
        else:
            _check_counts(partition_count, replication_factor)
        return partition_count, check_configs(configs)

    def create(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str | None],
        replication_factor: int = 1,
        assignments: Mapping[int, Sequence[int]] = MappingProxyType({}),
        *,
        validate_only: bool = False,
    ) -> Promise[Topic | KafkaError]:
        """Promises the new topic, or with `validate_only` what it would be: without an id."""
        wanted: list[Topic] = []

        def decide() -> JournalEntry | None:
            count, checked = self.check_new(name, partition_count, replication_factor, assignments, configs)
            self._check_total(name, count, is_coming=not validate_only)
            topic_id = NULL_UUID if validate_only else self._new_uuid()
            wanted.append(Topic(name, topic_id, count, checked, self._metadata.incarnation))
            return None if validate_only else topic_entry(wanted[0])

        return self._propose(name, decide).map(lambda error: error or wanted[0])

    def ensure(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Promise[Topic | KafkaError]:
        """Promises a topic that is made unless it is there."""

        def decide() -> JournalEntry | None:
            if name in self._metadata.topics:
                return None
            if name not in INTERNAL_TOPICS:
                self.check_new(name, partition_count, 1, {}, {})
                self._check_total(name, partition_count)
            new = Topic(name, self._new_uuid(), partition_count, dict(configs), self._metadata.incarnation)
            return topic_entry(new)

        return self._propose(name, decide).map(lambda error: error or self._metadata.topics[name])

    def delete(self, topic: Topic) -> Promise[KafkaError | None]:
        def decide() -> JournalEntry:
            if topic.topic_id not in self._metadata.topics_by_id:
                raise unknown_topic()
            return delete_entry(topic)

        return self._metadata.propose(topic_subject(topic.name), decide)

    def set_partition_count(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Promise[KafkaError | None]:
        def decide() -> JournalEntry | None:
            topic = self.require(name)
            self.check_partition_count(topic, count, assignments)
            self._check_total(name, count - topic.partition_count, is_coming=not validate_only)
            return None if validate_only else partitions_entry(name, count)

        return self._propose(name, decide)

    def _propose(self, name: str, decide: Callable[[], JournalEntry | None]) -> Promise[KafkaError | None]:
        def settled(error: KafkaError | None) -> KafkaError | None:
            self._coming_in_all -= self._coming.pop(name, 0)
            return error

        return self._metadata.propose(topic_subject(name), decide).map(settled)

    def _check_total(self, name: str, added: int, *, is_coming: bool = True) -> None:
        total = self._metadata.partitions_in_all + self._coming_in_all
        if total + added > self._partitions_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"There are {total} partitions, and {added} more would exceed oncelog.partitions.max, which is "
                f"{self._partitions_max}.",
            )
        if is_coming:
            self._coming_in_all += added - self._coming.get(name, 0)
            self._coming[name] = added

    def check_partition_count(self, topic: Topic, count: int, assignments: Sequence[Sequence[int]] | None) -> None:
        if topic.name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name} cannot grow: the partition of a group or transactional id depends on the count.",
            )
        if count <= topic.partition_count:
            relation = "already has" if count == topic.partition_count else "would not be an increase over"
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {topic.partition_count} partitions; {count} {relation} that many.",
            )
        if count - topic.partition_count > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"At most {PARTITIONS_PER_REQUEST_MAX} partitions can be added by one request.",
            )
        if assignments is not None:
            self._check_added_assignments(count - topic.partition_count, assignments)

    def _check_collision(self, name: str) -> None:
        other = self._metadata.metric_names.get(metric_name(name))
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _check_assignments(
        self, partition_count: int, replication_factor: int, assignments: Mapping[int, Sequence[int]]
    ) -> int:
        if partition_count != -1 or replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but partition count or replication factor was not -1.",
            )
        if sorted(assignments) != list(range(len(assignments))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
            )
        self._check_added_assignments(len(assignments), list(assignments.values()))
        return len(assignments)

    def _check_added_assignments(self, added: int, assignments: Sequence[Sequence[int]]) -> None:
        if len(assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified.",
            )
        for replicas in assignments:
            if list(replicas) != [self._node_id]:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment {list(replicas)} is not possible: the only broker is "
                    f"{self._node_id}.",
                )


def _check_counts(partition_count: int, replication_factor: int) -> None:
    if partition_count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if partition_count > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"A topic is made with at most {PARTITIONS_PER_REQUEST_MAX} partitions."
        )
    if replication_factor < 1:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only 1 broker(s) are registered.",
        )
