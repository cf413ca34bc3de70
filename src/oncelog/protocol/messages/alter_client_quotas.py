"""AlterClientQuotas (49): sets and removes quotas of users, client ids and addresses."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, float64, int16, int32, string


class EntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class OpData(Message):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryData(Message):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Message, api=ApiKey.ALTER_CLIENT_QUOTAS):
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class AlteredEntityData(Message):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class AlteredEntryData(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    entity: list[AlteredEntityData] = array(AlteredEntityData)


class AlterClientQuotasResponse(Message, api=ApiKey.ALTER_CLIENT_QUOTAS):
    throttle_time_ms: int = int32()
    entries: list[AlteredEntryData] = array(AlteredEntryData)
