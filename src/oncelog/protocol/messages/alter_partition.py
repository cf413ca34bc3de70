"""AlterPartition (56): the leader of a partition asks the controller to change who is in sync.

v3 names the broker epoch of every member, so that a broker that has restarted since is not taken for in sync.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int8, int16, int32, int64, uuid


class BrokerState(Message):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class PartitionChange(Message):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, until=2)
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, since=3)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicChange(Message):
    topic_id: UUID = uuid()
    partitions: list[PartitionChange] = array(PartitionChange)


class AlterPartitionRequest(Message, api=ApiKey.ALTER_PARTITION):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[TopicChange] = array(TopicChange)


class ChangedPartition(Message):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class ChangedTopic(Message):
    topic_id: UUID = uuid()
    partitions: list[ChangedPartition] = array(ChangedPartition)


class AlterPartitionResponse(Message, api=ApiKey.ALTER_PARTITION):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[ChangedTopic] = array(ChangedTopic)
