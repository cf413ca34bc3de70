"""CreateAcls (30): add access rules."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class AclCreation(Message):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Message, api=ApiKey.CREATE_ACLS):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class CreateAclsResponse(Message, api=ApiKey.CREATE_ACLS):
    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)
