"""DescribeConfigs (32): settings of topics and brokers, where they come from, what they mean."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Message):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable=True)


class DescribeConfigsRequest(Message, api=ApiKey.DESCRIBE_CONFIGS):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Message):
    name: str = string()
    value: str | None = string(nullable=True)
    source: int = int8()


class DescribeConfigsResourceResult(Message):
    name: str = string()
    value: str | None = string(nullable=True)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable=True)


class DescribeConfigsResult(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


class DescribeConfigsResponse(Message, api=ApiKey.DESCRIBE_CONFIGS):
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)
