"""DescribeGroups (15): state and members of classic groups. v6 has an error for unknown groups."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, byte_string, int16, int32, string


class DescribeGroupsRequest(Message, api=ApiKey.DESCRIBE_GROUPS):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable=True, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = byte_string()
    member_assignment: bytes = byte_string()


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(since=6, nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-(2**31))


class DescribeGroupsResponse(Message, api=ApiKey.DESCRIBE_GROUPS):
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)
