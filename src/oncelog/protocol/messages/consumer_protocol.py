"""What consumers put into the opaque `metadata` and `assignment` bytes of JoinGroup and SyncGroup.

Both start with an int16 version. New versions only append fields, so one from the future is read as the newest known.
"""

from __future__ import annotations

from typing import TypeVar

from oncelog.protocol.compiler import decode, read_version
from oncelog.protocol.primitives import MalformedRequest, Readable
from oncelog.protocol.schema import Message, array, byte_string, int32, string

M = TypeVar("M", bound=Message)


class TopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[str] = array(string)
    user_data: bytes | None = byte_string(nullable=True, default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, since=1)
    generation_id: int = int32(since=2, default=-1)
    rack_id: str | None = string(since=3, nullable=True, default=None)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = byte_string(nullable=True, default=None)


def decode_subscription(data: Readable) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: Readable) -> ConsumerProtocolAssignment:
    return _decode(ConsumerProtocolAssignment, data)


def _decode(cls: type[M], data: Readable) -> M:
    version = read_version(data)
    if version < 0:
        raise MalformedRequest(f"{cls.__name__} cannot have version {version}")
    return decode(cls, min(version, cls.VERSIONS[1]), data, 2)
