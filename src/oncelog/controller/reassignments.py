"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): replicas move to other brokers.

A reassignment adds the new replicas first and keeps the old ones. `partition_change` ends it when the new ones are in
sync. To cancel one is to go back to the replicas from before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oncelog.controller.assignments import check_assignment
from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.image import TopicImage
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.view import Place, View
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord
from oncelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from oncelog.protocol.schema import Message


def alter_reassignments(view: View, request: AlterPartitionReassignmentsRequest) -> Deciding:
    records: list[Message] = []
    may_change = request.allow_replication_factor_change
    answer = AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change, error_message=None)
    counts = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    for topic in request.topics:
        answered = ReassignableTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            yield
            result = ReassignablePartitionResponse(partition_index=wanted.partition_index, error_message=None)
            try:
                if counts[topic.name, wanted.partition_index] > 1:
                    # Each change would be made from the replicas of now, and both together be none that was wanted.
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is named more than once.")
                record = _altered(view, _place(view, topic.name, wanted.partition_index), wanted, may_change)
                records += [] if record is None else [record]
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            answered.partitions.append(result)
        answer.responses.append(answered)
    return Decision(records, answer)


def _place(view: View, name: str, index: int) -> Place:
    topic = view.image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return Place(topic, index, partition)


def _altered(view: View, place: Place, wanted: ReassignablePartition, may_change: bool) -> PartitionChangeRecord | None:
    if wanted.replicas is None:
        return _cancelled(view, place)
    check_assignment(view, wanted.replicas)
    if not may_change:
        _check_same_factor(place.partition, wanted.replicas)
    return _moved(view, place, wanted.replicas)


def _moved(view: View, place: Place, target: Sequence[int]) -> PartitionChangeRecord | None:
    present = place.partition.replicas
    removing, adding = sorted(set(present) - set(target)), sorted(set(target) - set(present))
    change = view.change(place)
    change.replicas = [*target, *removing]
    change.removing = removing or None
    change.adding = adding or None
    return change.record(place.topic.topic_id, place.partition_index)


def _cancelled(view: View, place: Place) -> PartitionChangeRecord | None:
    partition, name = place.partition, place.topic.name
    if not _is_moving(partition):
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    change = view.change_by_settings(place)
    change.replicas = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    change.isr = [member for member in partition.isr if member not in partition.adding_replicas]
    change.removing, change.adding = (), ()
    if not change.replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    if not change.isr:
        if not view.allows_unclean(name):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {name}:{place.partition_index} because it would require "
                "an unclean leader election.",
            )
        change.isr = change.replicas[:1]
    return change.record(place.topic.topic_id, place.partition_index)


def _check_same_factor(partition: PartitionImage, target: Sequence[int]) -> None:
    present = {*partition.replicas, *partition.adding_replicas} - set(partition.removing_replicas)
    if len(present) != len(target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(present)} to {len(target)}",
        )


def list_reassignments(view: View, request: ListPartitionReassignmentsRequest) -> Decision:
    asked: list[tuple[TopicImage, Sequence[int]]] = []
    if request.topics is None:
        asked += [(topic, list(topic.partitions)) for topic in view.image.topics.values()]
    else:
        known = ((view.image.topic(each.name), each.partition_indexes) for each in request.topics)
        asked += [(topic, indexes) for topic, indexes in known if topic is not None]
    ongoing = [
        OngoingTopicReassignment(name=topic.name, partitions=moving)
        for topic, indexes in asked
        if (moving := [_ongoing(index, found) for index in indexes if (found := _moving(topic, index)) is not None])
    ]
    return Decision([], ListPartitionReassignmentsResponse(error_message=None, topics=ongoing))


def _moving(topic: TopicImage, index: int) -> PartitionImage | None:
    partition = topic.partitions.get(index)
    return partition if partition is not None and _is_moving(partition) else None


def _is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def _ongoing(index: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding_replicas),
        removing_replicas=list(partition.removing_replicas),
    )
