"""ListConfigResources (74): what has settings. v0 knows only client metrics, v1 any resource type."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class ListConfigResourcesRequest(Message, api=ApiKey.LIST_CONFIG_RESOURCES):
    resource_types: list[int] = array(int8, since=1)


class ConfigResource(Message):
    resource_name: str = string()
    resource_type: int = int8(since=1, default=16)


class ListConfigResourcesResponse(Message, api=ApiKey.LIST_CONFIG_RESOURCES):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
