"""Heartbeat (12): a member of a classic group is alive, and learns that a rebalance goes on."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, int16, int32, string


class HeartbeatRequest(Message, api=ApiKey.HEARTBEAT):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=True, default=None)


class HeartbeatResponse(Message, api=ApiKey.HEARTBEAT):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
