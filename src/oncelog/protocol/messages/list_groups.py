"""ListGroups (16): all groups of a broker; v4 filters by state, v5 by type."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class ListGroupsRequest(Message, api=ApiKey.LIST_GROUPS):
    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


class ListedGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class ListGroupsResponse(Message, api=ApiKey.LIST_GROUPS):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
