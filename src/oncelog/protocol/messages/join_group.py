"""JoinGroup (11): become a member of a classic group and wait for the rebalance.

From v4 a new member first gets an id and must join again with it. v5 brings static membership, v9 `skip_assignment`.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, byte_string, int16, int32, string


class JoinGroupRequestProtocol(Message):
    name: str = string()
    metadata: bytes = byte_string()


class JoinGroupRequest(Message, api=ApiKey.JOIN_GROUP):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=True, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable=True, default=None)


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=True, default=None)
    metadata: bytes = byte_string()


class JoinGroupResponse(Message, api=ApiKey.JOIN_GROUP):
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable=True, default=None)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
