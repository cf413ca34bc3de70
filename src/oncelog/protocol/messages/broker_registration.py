"""BrokerRegistration (62): a broker that starts tells the controller who it is, and is given its epoch.

v1 is for migrations from ZooKeeper, v2 adds log directories, v3 the epoch before a clean shutdown, and v4 lets features
begin with level 0.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string, uint16, uuid


class Listener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Message):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class BrokerRegistrationRequest(Message, api=ApiKey.BROKER_REGISTRATION):
    broker_id: int = int32()
    cluster_id: str = string()
    incarnation_id: UUID = uuid()
    listeners: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable=True)
    is_migrating_zk_broker: bool = boolean(since=1)
    log_dirs: list[UUID] = array(uuid, since=2)
    previous_broker_epoch: int = int64(since=3, default=-1)


class BrokerRegistrationResponse(Message, api=ApiKey.BROKER_REGISTRATION):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    broker_epoch: int = int64(default=-1)
