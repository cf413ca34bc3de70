"""DescribeClientQuotas (48): the quotas of users, client ids and addresses that match a filter."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, float64, int8, int16, int32, string


class ComponentData(Message):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable=True)


class DescribeClientQuotasRequest(Message, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class ValueData(Message):
    key: str = string()
    value: float = float64()


class EntryData(Message):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Message, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    entries: list[EntryData] | None = array(EntryData, nullable=True)
