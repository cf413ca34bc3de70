"""AddRaftVoter (80): another controller gets a vote in the quorum of the metadata log."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, string, uint16, uuid


class Listener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class AddRaftVoterRequest(Message, api=ApiKey.ADD_RAFT_VOTER):
    cluster_id: str | None = string(nullable=True, default=None)
    timeout_ms: int = int32()
    voter_id: int = int32()
    voter_directory_id: UUID = uuid()
    listeners: list[Listener] = array(Listener)
    ack_when_committed: bool = boolean(since=1, default=True)


class AddRaftVoterResponse(Message, api=ApiKey.ADD_RAFT_VOTER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
