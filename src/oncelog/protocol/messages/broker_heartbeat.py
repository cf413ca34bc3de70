"""BrokerHeartbeat (63): a registered broker is alive, and says what it wants; the controller says what it is.

v1 adds log directories that failed, v2 those that take no new replicas.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, uuid


class BrokerHeartbeatRequest(Message, api=ApiKey.BROKER_HEARTBEAT):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[UUID] = array(uuid, since=1, tag=0)
    cordoned_log_dirs: list[UUID] | None = array(uuid, since=2, nullable=True, default=None, tag=1)


class BrokerHeartbeatResponse(Message, api=ApiKey.BROKER_HEARTBEAT):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()
