"""SyncGroup (14): the leader of a classic group hands in the assignment, every member gets its part."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, byte_string, int16, int32, string


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = byte_string()


class SyncGroupRequest(Message, api=ApiKey.SYNC_GROUP):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=True, default=None)
    protocol_type: str | None = string(since=5, nullable=True, default=None)
    protocol_name: str | None = string(since=5, nullable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api=ApiKey.SYNC_GROUP):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=True, default=None)
    protocol_name: str | None = string(since=5, nullable=True, default=None)
    assignment: bytes = byte_string()
