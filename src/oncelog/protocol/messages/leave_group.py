"""LeaveGroup (13): members leave a classic group; from v3 several at once, named by instance id too."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class MemberIdentity(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True, default=None)
    reason: str | None = string(since=5, nullable=True, default=None)


class LeaveGroupRequest(Message, api=ApiKey.LEAVE_GROUP):
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True)
    error_code: int = int16()


class LeaveGroupResponse(Message, api=ApiKey.LEAVE_GROUP):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
