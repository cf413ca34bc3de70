"""FindCoordinator (10): which broker looks after a group (key type 0) or a transactional id (1).

v4 asks for several keys at once.
"""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class FindCoordinatorRequest(Message, api=ApiKey.FIND_COORDINATOR):
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


class Coordinator(Message):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class FindCoordinatorResponse(Message, api=ApiKey.FIND_COORDINATOR):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)
