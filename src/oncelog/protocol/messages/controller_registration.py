"""ControllerRegistration (70): a controller that starts tells the active one who it is."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.broker_registration import Feature, Listener
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, uuid


class ControllerRegistrationRequest(Message, api=ApiKey.CONTROLLER_REGISTRATION):
    controller_id: int = int32()
    incarnation_id: UUID = uuid()
    zk_migration_ready: bool = boolean()
    listeners: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)


class ControllerRegistrationResponse(Message, api=ApiKey.CONTROLLER_REGISTRATION):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
