"""DeleteTopics (20): by name, from v6 also by id."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int16, int32, string, uuid


class DeleteTopicState(Message):
    name: str | None = string(nullable=True, default=None)
    topic_id: UUID = uuid()


class DeleteTopicsRequest(Message, api=ApiKey.DELETE_TOPICS):
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5)
    timeout_ms: int = int32()


class DeletableTopicResult(Message):
    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable=True, default=None)


class DeleteTopicsResponse(Message, api=ApiKey.DELETE_TOPICS):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
