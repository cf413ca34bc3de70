"""DeleteGroups (42): delete empty groups with their offsets."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class DeleteGroupsRequest(Message, api=42, versions=(0, 2), flexible=2):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api=42, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
