"""CreateTopics (19), CreatePartitions (37) and DeleteTopics (20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from uuid import UUID

from oncelog.controller.assignments import check_assignment, new_partition, usable_brokers
from oncelog.controller.config_changes import new_topic_configs
from oncelog.controller.decision import Deciding, Decision, Requester
from oncelog.controller.image import TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.placement import Below, Placement
from oncelog.controller.topic_rules import PARTITIONS_PER_REQUEST_MAX, check_name, metric_name, unknown_topic
from oncelog.controller.view import View
from oncelog.core.config import format_value
from oncelog.core.config_resources import ConfigSource
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, NULL_UUID
from oncelog.core.topic_config import TOPIC_CONFIG
from oncelog.protocol.messages.cluster_metadata import RemoveTopicRecord, TopicRecord
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from oncelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from oncelog.protocol.schema import Message
from oncelog.security.acl import Operation, Resource

Partitions = Generator[None, None, list[PartitionImage]]
_DISABLED_SINCE = 3
"""The first version of DeleteTopics that has a code for it."""


class TopicChanges:
    """`new_uuid` and `below` are where random values come from. `is_alone`: there is one broker, for good."""

    def __init__(
        self, view: View, who: Requester, new_uuid: Callable[[], UUID], below: Below, *, is_alone: bool = False
    ) -> None:
        self._view = view
        self._who = who
        self._new_uuid = new_uuid
        self._below = below
        self._is_alone = is_alone
        self._added_in_all = 0
        self._descriptions: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}
        self._new_names: dict[str, str] = {}
        """Of this request, by their metric names."""

    # CreateTopics

    def create(self, request: CreateTopicsRequest) -> Deciding:
        self._check_total(request)
        counts = Counter(topic.name for topic in request.topics)
        records: list[Message] = []
        answer = CreateTopicsResponse()
        for name, wanted in {topic.name: topic for topic in request.topics}.items():
            try:
                if counts[name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                answer.topics.append((yield from self._create(wanted, records, is_counted=not request.validate_only)))
            except KafkaError as error:
                answer.topics.append(
                    CreatableTopicResult(name=name, error_code=error.code, error_message=error.message or None)
                )
            yield
        return Decision([] if request.validate_only else records, answer)

    def _check_total(self, request: CreateTopicsRequest) -> None:
        default = self._view.static.integer("num.partitions")
        counts = (
            len(topic.assignments) or (default if topic.num_partitions == -1 else max(0, topic.num_partitions))
            for topic in request.topics
        )
        if sum(counts) > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")

    def _create(
        self, wanted: CreatableTopic, records: list[Message], *, is_counted: bool
    ) -> Generator[None, None, CreatableTopicResult]:
        name = wanted.name
        if not self._who.may(Operation.CREATE, Resource.CLUSTER):
            self._who.require(Operation.CREATE, Resource.TOPIC, name)
        self._check_new(name)
        topic_id = self._new_uuid()
        configs = new_topic_configs(self._view, wanted)
        assignments = yield from self._assigned(wanted) if wanted.assignments else self._placed(wanted)
        if name not in INTERNAL_TOPICS:
            self._check_room(len(assignments))
        if is_counted:
            self._who.take_mutations(len(assignments))
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records += configs.records
        for index, partition in enumerate(assignments):
            records.append(partition.to_record(topic_id, index))
            yield
        self._new_names[metric_name(name)] = name
        result = CreatableTopicResult(name=name, topic_id=topic_id, error_message=None)
        if self._who.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            result.num_partitions, result.replication_factor = len(assignments), len(assignments[0].replicas)
            result.configs = self._described(configs.values)
        else:
            result.configs, result.topic_config_error_code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result

    def _check_new(self, name: str) -> None:
        if name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        check_name(name)
        if name in self._view.image.topic_ids:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        shared = metric_name(name)
        others = self._view.image.similar_names.get(shared, ())
        other = self._new_names.get(shared, others[-1] if others else None)
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _assigned(self, wanted: CreatableTopic) -> Partitions:
        if wanted.replication_factor != -1:
            raise _invalid("A manual partition assignment was specified, but replication factor was not set to -1.")
        if wanted.num_partitions != -1:
            raise _invalid("A manual partition assignment was specified, but numPartitions was not set to -1.")
        made: dict[int, PartitionImage] = {}
        factor: int | None = None
        for given in wanted.assignments:
            if given.partition_index in made:
                raise _impossible(f"Found multiple manual partition assignments for partition {given.partition_index}")
            check_assignment(self._view, given.broker_ids, factor)
            factor = len(given.broker_ids)
            made[given.partition_index] = self._new_assigned(given.partition_index, given.broker_ids)
            yield
        if sorted(made) != list(range(len(made))):
            raise _impossible("partitions should be a consecutive 0-based integer sequence")
        return [made[index] for index in range(len(made))]

    def _new_assigned(self, index: int, replicas: Sequence[int]) -> PartitionImage:
        partition = new_partition(self._view, replicas)
        if partition is None:
            raise _impossible(
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown."
            )
        return partition

    def _placed(self, wanted: CreatableTopic) -> Partitions:
        if wanted.replication_factor < -1 or wanted.replication_factor == 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if wanted.num_partitions < -1 or wanted.num_partitions == 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        static = self._view.static
        count = static.integer("num.partitions") if wanted.num_partitions == -1 else wanted.num_partitions
        factor = wanted.replication_factor
        return (yield from self._place(count, static.integer("default.replication.factor") if factor == -1 else factor))

    def _place(self, count: int, factor: int) -> Partitions:
        prefix = f"Unable to replicate the partition {factor} time(s):"
        try:
            placed = Placement(usable_brokers(self._view), self._below).place(count, factor)
        except KafkaError as error:
            raise KafkaError(error.code, f"{prefix} {error.message}") from error
        made: list[PartitionImage] = []
        for replicas in placed:
            partition = new_partition(self._view, replicas)
            made += [] if partition is None else [partition]
            yield
        if len(made) < count:
            text = f"{prefix} All brokers are currently fenced or in controlled shutdown."
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        return made

    def _described(self, configs: dict[str, str]) -> list[CreatableTopicConfigs]:
        """Made once for all topics that are given the same, as most of a request are."""
        given = tuple(configs.items())
        if given not in self._descriptions:
            self._descriptions[given] = self._new_description(configs)
        return self._descriptions[given]

    def _new_description(self, configs: dict[str, str]) -> list[CreatableTopicConfigs]:
        settings = self._view.settings.topic_settings(configs)
        described = []
        for key in sorted((key for key in TOPIC_CONFIG if not key.internal), key=lambda key: key.name):
            synonyms = self._view.settings.topic_synonyms(key, configs)
            described.append(
                CreatableTopicConfigs(
                    name=key.name,
                    value=format_value(settings.get(key.name)),
                    config_source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
                )
            )
        return described

    # CreatePartitions

    def grow(self, request: CreatePartitionsRequest) -> Deciding:
        self._check_growth(request)
        counts = Counter(topic.name for topic in request.topics)
        records: list[Message] = []
        answer = CreatePartitionsResponse()
        for name, wanted in {topic.name: topic for topic in request.topics}.items():
            result = CreatePartitionsTopicResult(name=name)
            try:
                if counts[name] > 1:
                    raise _invalid("Duplicate topic name.")
                self._who.require(Operation.ALTER, Resource.TOPIC, name)
                yield from self._grow(wanted, records, is_counted=not request.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message or None
            answer.results.append(result)
            yield
        return Decision([] if request.validate_only else records, answer)

    def _check_growth(self, request: CreatePartitionsRequest) -> None:
        """Check the number of partitions of all topics of a request together. One topic alone is checked with its own
        answer."""
        known = ((wanted.count, self._view.image.topic(wanted.name)) for wanted in request.topics)
        added = [max(0, count - len(topic.partitions)) for count, topic in known if topic is not None]
        if len(added) > 1 and sum(added) > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")

    def _grow(
        self, wanted: CreatePartitionsTopic, records: list[Message], *, is_counted: bool
    ) -> Generator[None, None, None]:
        topic = self._view.image.topic(wanted.name)
        if topic is None:
            raise unknown_topic()
        present = len(topic.partitions)
        if wanted.count == present:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
        if wanted.count < present:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {wanted.name} currently has {present} partition(s); {wanted.count} would not be an "
                "increase.",
            )
        if self._is_alone and wanted.name in INTERNAL_TOPICS:
            text = "cannot grow: the partition of a group or transactional id depends on the count."
            raise _invalid(f"{wanted.name} {text}")
        added = wanted.count - present
        if added > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        factor = len(next(iter(topic.partitions.values())).replicas)
        if wanted.assignments is None:
            partitions = yield from self._place(added, factor)
        else:
            given = [assignment.broker_ids for assignment in wanted.assignments]
            partitions = yield from self._added(present, added, given, factor)
        self._check_room(added)
        if is_counted:
            self._who.take_mutations(added)
        for number, partition in enumerate(partitions):
            records.append(partition.to_record(topic.topic_id, present + number))
            yield

    def _check_room(self, added: int) -> None:
        """All partitions of a node that is alone are on it."""
        if not self._is_alone:
            return
        total = self._added_in_all + self._present_in_all
        limit = self._view.static.integer("oncelog.partitions.max")
        if total + added > limit:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"There are {total} partitions, and {added} more would exceed oncelog.partitions.max, which is "
                f"{limit}.",
            )
        self._added_in_all += added

    @cached_property
    def _present_in_all(self) -> int:
        return sum(len(topic.partitions) for topic in self._view.image.topics.values())

    def _added(self, present: int, added: int, given: list[list[int]], factor: int) -> Partitions:
        if len(given) != added:
            raise _impossible(
                f"Attempted to add {added} additional partition(s), but only {len(given)} assignment(s) were specified."
            )
        for replicas in given:
            check_assignment(self._view, replicas, factor)
            yield
        made = []
        for number, replicas in enumerate(given):
            made.append(self._new_assigned(present + number, replicas))
            yield
        return made

    # DeleteTopics

    def delete(self, request: DeleteTopicsRequest) -> Deciding:
        if not self._view.static.boolean("delete.topic.enable"):
            is_known = self._who.api_version >= _DISABLED_SINCE
            code = ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST
            raise KafkaError(code, "Topic deletion is disabled.")
        counts: Counter[tuple[str | None, UUID]] = Counter()
        for asked in request.topic_names if not request.topics else ():
            counts[asked, NULL_UUID] += 1
            yield
        for state in request.topics:
            counts[state.name, state.topic_id] += 1
            yield
        found: list[tuple[DeletableTopicResult, TopicImage | None]] = []
        for (name, topic_id), count in counts.items():
            result = DeletableTopicResult(name=name, topic_id=topic_id)
            topic: TopicImage | None = None
            try:
                if count > 1:
                    raise _invalid(f"Duplicate topic {'id' if name is None else 'name'}.")
                topic = self._deletable(name, topic_id)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message or None
            found.append((result, topic))
            yield
        by_name = {topic.topic_id for result, topic in found if topic is not None and result.name is not None}
        in_both_ways = by_name & {topic_id for name, topic_id in counts if name is None}
        gone: list[Message] = []
        answer = DeleteTopicsResponse()
        for result, topic in found:
            is_in_both_ways = topic is not None and topic.topic_id in in_both_ways
            if is_in_both_ways and result.name is None:
                continue  # the answer to the name has its id
            if topic is not None:
                result.name, result.topic_id = topic.name, topic.topic_id
                try:
                    if is_in_both_ways:
                        raise _invalid("The provided topic name maps to an ID that was already supplied.")
                    self._who.take_mutations(len(topic.partitions))
                    gone.append(RemoveTopicRecord(topic_id=topic.topic_id))
                except KafkaError as error:
                    result.error_code, result.error_message = error.code, error.message or None
            answer.responses.append(result)
            yield
        return Decision(gone, answer)

    def _deletable(self, name: str | None, topic_id: UUID) -> TopicImage:
        topic = self._named(name, topic_id)
        if self._is_alone and topic.name in INTERNAL_TOPICS:
            raise _invalid(f"{topic.name} holds all groups or transactions and stays.")
        return topic

    def _named(self, name: str | None, topic_id: UUID) -> TopicImage:
        if topic_id == NULL_UUID:
            if name is None:
                raise _invalid("Neither topic name nor id were specified.")
            self._authorize_delete(name, describe=True)
            topic = self._view.image.topic(name)
            if topic is None:
                raise unknown_topic()
            return topic
        if name is not None:
            raise _invalid("You may not specify both topic name and topic id.")
        found = self._view.image.topics.get(topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        self._authorize_delete(found.name)
        return found

    def _authorize_delete(self, name: str, *, describe: bool = False) -> None:
        if self._who.may(Operation.DELETE, Resource.CLUSTER):
            return
        self._who.require(Operation.DELETE, Resource.TOPIC, name)
        if describe:
            # Whether the name exists would show, which is for those who may describe it.
            self._who.require(Operation.DESCRIBE, Resource.TOPIC, name)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _impossible(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
