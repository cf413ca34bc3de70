"""IncrementalAlterConfigs (44): set (0), delete (1), append (2) or subtract (3) single settings."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class AlterableConfig(Message):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable=True)


class AlterConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Message, api=ApiKey.INCREMENTAL_ALTER_CONFIGS):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Message, api=ApiKey.INCREMENTAL_ALTER_CONFIGS):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
