"""AlterPartition (56): what leaders tell of who is in sync.

The checks come in Kafka's order, since leaders act on the codes: after INELIGIBLE_REPLICA a leader goes back to the
committed ISR, after the others it waits for the metadata or asks again.
"""

from __future__ import annotations

from oncelog.controller.decision import Deciding, Decision, Requester
from oncelog.controller.partition_image import NO_LEADER_CHANGE, PartitionImage
from oncelog.controller.view import Place, View
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ChangedPartition,
    ChangedTopic,
    PartitionChange,
)
from oncelog.protocol.schema import Message

_WITH_EPOCHS = 3
"""The first version that names the epochs of brokers."""
_RECOVERED, _RECOVERING = 0, 1


def alter_partitions(view: View, request: AlterPartitionRequest, who: Requester) -> Deciding:
    view.check_epoch(request.broker_id, request.broker_epoch)
    records: list[Message] = []
    answer = AlterPartitionResponse()
    for wanted in request.topics:
        topic = view.image.topics.get(wanted.topic_id)
        answered = ChangedTopic(topic_id=wanted.topic_id)
        answer.topics.append(answered)
        for change in wanted.partitions:
            yield
            if who.api_version < _WITH_EPOCHS:
                change.new_isr_with_epochs = [BrokerState(broker_id=member) for member in change.new_isr]
            partition = None if topic is None else topic.partitions.get(change.partition_index)
            if topic is None or partition is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answered.partitions.append(_refused(change, code))
                continue
            refusal = _refusal(view, request.broker_id, partition, change)
            if refusal is not None:
                answered.partitions.append(_refused(change, refusal))
            else:
                place = Place(topic, change.partition_index, partition)
                answered.partitions.append(_alter(view, request.broker_id, place, change, records))
    return Decision(records, answer)


def _alter(
    view: View, broker_id: int, place: Place, wanted: PartitionChange, records: list[Message]
) -> ChangedPartition:
    change = view.change_by_settings(place)
    change.isr = [member.broker_id for member in wanted.new_isr_with_epochs]
    change.is_recovering = wanted.leader_recovery_state == _RECOVERING
    record = change.record(place.topic.topic_id, place.partition_index)
    partition = place.partition
    if record is not None:
        records.append(record)
        partition = partition.merged(record)
        if record.leader not in (broker_id, NO_LEADER_CHANGE):
            return _refused(wanted, ErrorCode.NEW_LEADER_ELECTED)
    return ChangedPartition(
        partition_index=place.partition_index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=int(partition.is_recovering),
        partition_epoch=partition.partition_epoch,
    )


def _refused(change: PartitionChange, code: ErrorCode) -> ChangedPartition:
    return ChangedPartition(partition_index=change.partition_index, error_code=code)


def _refusal(view: View, broker_id: int, partition: PartitionImage, change: PartitionChange) -> ErrorCode | None:
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member.broker_id for member in change.new_isr_with_epochs]
    is_possible = bool(isr) and len(set(isr)) == len(isr) and set(isr) <= set(partition.replicas)
    if not is_possible or partition.leader not in isr:
        return ErrorCode.INVALID_REQUEST
    state = change.leader_recovery_state
    if state not in (_RECOVERED, _RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if state == _RECOVERING and (len(isr) > 1 or not partition.is_recovering):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(view, member) for member in change.new_isr_with_epochs):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _is_eligible(view: View, member: BrokerState) -> bool:
    broker = view.broker(member.broker_id)
    if broker is None or not view.is_active(member.broker_id):
        return False
    return member.broker_epoch in (-1, broker.epoch)
