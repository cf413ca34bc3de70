"""DeleteGroups (42): delete empty groups with their offsets."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string


class DeleteGroupsRequest(Message, api=ApiKey.DELETE_GROUPS):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api=ApiKey.DELETE_GROUPS):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
