"""The fetch session of a follower with one leader (KIP-227): partitions are named once, afterwards only what changed.

| next request | session id | epoch | names |
| --- | --- | --- | --- |
| full | of the session before, or 0 | 0 | all partitions; the leader ends that session and begins another |
| incremental | s | n > 0 | partitions that are new or not as they were, and those to forget |

The leader serves all partitions of the session each time, and leaves out those about which it has nothing new to tell.
So whatever an answer has told must have been taken: where it was not, the owner calls `end`, and the next request is a
full one. A leader without sessions answers with id 0, and every request is full.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from oncelog.core.config import INT_MAX
from oncelog.core.errors import ErrorCode
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class FollowedPartition(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


class Position(NamedTuple):
    """What a fetch says of one partition."""

    offset: int
    leader_epoch: int
    last_epoch: int
    log_start_offset: int


class FollowerSession:
    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL_EPOCH
        self._named: dict[FollowedPartition, Position] = {}
        """What the leader knows when it has got the last request."""
        self._has_ended = False

    def __contains__(self, key: FollowedPartition) -> bool:
        return key in self._named

    @property
    def is_full(self) -> bool:
        """Whether the last request named all partitions."""
        return self._epoch == FULL_EPOCH

    def name(self, request: FetchRequest, wanted: dict[FollowedPartition, Position], max_bytes: int) -> None:
        """Completes a request that is to fetch the wanted partitions and no others."""
        if self._has_ended:
            self._epoch, self._named, self._has_ended = FULL_EPOCH, {}, False
        request.session_id, request.session_epoch = self._id, self._epoch
        named = self._named
        changed = {key: position for key, position in wanted.items() if named.get(key) != position}
        request.topics = _topics(changed, max_bytes)
        request.forgotten_topics_data = _forgotten(key for key in named if key not in wanted)
        self._named = wanted

    def on_answer(self, session_id: int) -> None:
        if session_id == NO_SESSION or (not self.is_full and session_id != self._id):
            self.end()
        self._id = session_id
        self._epoch = 1 if self._epoch == INT_MAX else self._epoch + 1

    def on_error(self, code: int) -> bool:
        """Returns whether the session is to blame, and not the request: then a full one may be sent at once."""
        is_of_session = code in SESSION_ERRORS and not self.is_full
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self.end()
        return is_of_session

    def end(self) -> None:
        """End the session, because an answer may be lost: the next request is a full one."""
        self._has_ended = True


def _topics(positions: dict[FollowedPartition, Position], max_bytes: int) -> list[FetchTopic]:
    topics: dict[UUID, FetchTopic] = {}
    for key, position in positions.items():
        topics.setdefault(key.topic_id, FetchTopic(topic=key.topic, topic_id=key.topic_id)).partitions.append(
            FetchPartition(
                partition=key.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(keys: Iterable[FollowedPartition]) -> list[ForgottenTopic]:
    topics: dict[UUID, ForgottenTopic] = {}
    for key in keys:
        topic = topics.setdefault(key.topic_id, ForgottenTopic(topic=key.topic, topic_id=key.topic_id))
        topic.partitions.append(key.partition)
    return list(topics.values())
