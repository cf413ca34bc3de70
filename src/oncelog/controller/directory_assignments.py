"""AssignReplicasToDirs (73): where brokers with several log directories have put their replicas.

A replica in a directory that has failed meanwhile is out of sync, as if it had been there before.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.controller.broker_changes import without
from oncelog.controller.decision import Deciding, Decision
from oncelog.controller.view import Place, View
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryResult,
    PartitionResult,
    TopicResult,
)
from oncelog.protocol.messages.cluster_metadata import PartitionChangeRecord
from oncelog.protocol.schema import Message


def assign_replicas(view: View, request: AssignReplicasToDirsRequest) -> Deciding:
    broker = view.check_epoch(request.broker_id, request.broker_epoch)
    records: list[Message] = []
    offline: list[Place] = []
    answer = AssignReplicasToDirsResponse()
    for directory in request.directories:
        results = []
        for topic in directory.topics:
            codes = []
            for each in topic.partitions:
                yield
                place = _place(view, broker.broker_id, topic.topic_id, each.partition_index)
                if isinstance(place, Place):
                    record = _assigned(view, place, broker.broker_id, directory.id_)
                    records += [] if record is None else [record]
                    offline += [] if directory.id_ in broker.directories else [place]
                code = ErrorCode.NONE if isinstance(place, Place) else place
                codes.append(PartitionResult(partition_index=each.partition_index, error_code=code))
            results.append(TopicResult(topic_id=topic.topic_id, partitions=codes))
        answer.directories.append(DirectoryResult(id_=directory.id_, topics=results))
    return Decision([*records, *without(view, broker.broker_id, offline)], answer)


def _place(view: View, broker_id: int, topic_id: UUID, index: int) -> Place | ErrorCode:
    topic = view.image.topics.get(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = topic.partitions.get(index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Place(topic, index, partition) if broker_id in partition.replicas else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _assigned(view: View, place: Place, broker_id: int, directory: UUID) -> PartitionChangeRecord | None:
    change = view.change(place)
    change.moved = {broker_id: directory}
    return change.record(place.topic.topic_id, place.partition_index)
