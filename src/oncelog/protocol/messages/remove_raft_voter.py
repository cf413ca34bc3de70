"""RemoveRaftVoter (81): a controller loses its vote in the quorum of the metadata log."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, int16, int32, string, uuid


class RemoveRaftVoterRequest(Message, api=ApiKey.REMOVE_RAFT_VOTER):
    cluster_id: str | None = string(nullable=True, default=None)
    voter_id: int = int32()
    voter_directory_id: UUID = uuid()


class RemoveRaftVoterResponse(Message, api=ApiKey.REMOVE_RAFT_VOTER):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
