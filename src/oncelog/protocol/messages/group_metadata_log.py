"""What `__consumer_offsets` holds: committed offsets and the state of groups, null to delete.

Keys and values go through `encode_versioned`. The int16 before a key is the type of the record, written here as the
version of the key's class; the int16 before a value is the version of its schema. Types 3-8 and 16 are the consumer
groups of KIP-848; 4 is no longer written since Kafka 4.1.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from oncelog.protocol.compiler import decode_versioned, read_version
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message, array, byte_string, int8, int32, int64, string, struct, uuid


class OffsetCommitKey(Message, versions=(0, 1)):
    """Version 0 is the legacy form of the same."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1)
    topic_id: UUID = uuid(since=4, tag=0)


class GroupMetadataKey(Message, versions=(2, 2)):
    group: str = string()


class MemberMetadata(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=True, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1)
    session_timeout: int = int32()
    subscription: bytes = byte_string()
    assignment: bytes = byte_string()


class GroupMetadataValue(Message, versions=(0, 4), flexible=4):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=True)
    leader: str | None = string(nullable=True)
    current_state_timestamp: int = int64(since=2, default=-1)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataKey(Message, versions=(3, 3)):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions=(4, 4)):
    group_id: str = string()


class PartitionMetadata(Message):
    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Message):
    topic_id: UUID = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible=0):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Message, versions=(5, 5)):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Message):
    name: str = string()
    metadata: bytes = byte_string()


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    instance_id: str | None = string(nullable=True)
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable=True)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable=True)
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, nullable=True, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(6, 6)):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(7, 7)):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Message):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartition] = array(TopicPartition)


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(8, 8)):
    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Message):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = array(int32, nullable=True, default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    """States: 0 stable, 1 unrevoked partitions, 2 unreleased partitions."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupRegularExpressionKey(Message, versions=(16, 16)):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible=0):
    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


RECORD_TYPES: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
"""By the int16 a key starts with: the classes of the key and of the value."""


def decode_record(key: Readable, value: Readable | None) -> tuple[Message, Message | None] | None:
    """Key and value of a record, or None if its type is unknown, as those of share and streams groups are."""
    classes = RECORD_TYPES.get(read_version(key))
    if classes is None:
        return None
    key_class, value_class = classes
    return decode_versioned(key_class, key), None if value is None else decode_versioned(value_class, value)
