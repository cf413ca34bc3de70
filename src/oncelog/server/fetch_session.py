"""Fetch sessions (KIP-227): a client names its partitions once and afterwards only what changed.

A session belongs to one client and holds, per partition, what the client asked for and what the last answer said. A
request carries the session's id and the next epoch:

| session id | epoch | meaning |
| --- | --- | --- |
| 0 | -1 | full fetch, no session |
| any | 0 | full fetch, make a session (an old one of that id is dropped) |
| s | -1 | full fetch, drop session s |
| s | n > 0 | only changes; n must be the one after the last answered |

An incremental answer leaves out partitions about which nothing is new. When there is no room for one more session, or
for its partitions, the longest unused ones go that have been idle for a while; otherwise the client is served without a
session. One that grows beyond the room is forgotten, and its client begins anew.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from oncelog.core.config import INT_MAX
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NULL_UUID

EVICTION_IDLE_MS = 120_000
FINAL_EPOCH = -1
INITIAL_EPOCH = 0

PartitionKey = tuple[str, uuid.UUID, int]
"""Topic name ("" when the client goes by ids), topic id, partition."""


def partition_key(topic: str, topic_id: uuid.UUID, partition: int) -> PartitionKey:
    return (topic if topic_id == NULL_UUID else "", topic_id, partition)


@dataclass(slots=True)
class FetchTarget:
    """One partition of a fetch: what the client wants and, in a session, what the last answer said (`last_*`)."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    last_high_watermark: int = -1
    last_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        return partition_key(self.topic, self.topic_id, self.partition)


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int
    last_used_ms: int
    targets: OrderedDict[PartitionKey, FetchTarget] = field(default_factory=OrderedDict)


class FetchSessionCache:
    def __init__(self, slots: int, partitions_max: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        self._partitions = 0
        """Of all sessions."""
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        targets: list[FetchTarget],
        forgotten: list[PartitionKey],
        now_ms: int,
    ) -> tuple[FetchSession | None, list[FetchTarget], bool]:
        """The session if there is one, the partitions to read, and whether the answer is incremental."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id:
                self._forget(session_id)
            session = self._make(targets, now_ms) if epoch == INITIAL_EPOCH and targets else None
            return session, targets, False
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        session.epoch = 1 if epoch == INT_MAX else epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        self._update(session, targets, forgotten)
        if self._partitions > self._partitions_max:
            self._forget(session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} has grown too large")
        return session, list(session.targets.values()), True

    def _update(self, session: FetchSession, targets: list[FetchTarget], forgotten: list[PartitionKey]) -> None:
        for target in targets:
            known = session.targets.get(target.key)
            if known is None:
                session.targets[target.key] = target
                self._partitions += 1
            else:
                known.fetch_offset, known.max_bytes = target.fetch_offset, target.max_bytes
                known.current_leader_epoch = target.current_leader_epoch
                known.last_fetched_epoch = target.last_fetched_epoch
        for key in forgotten:
            self._partitions -= session.targets.pop(key, None) is not None

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        self._partitions -= 0 if session is None else len(session.targets)

    def _make(self, targets: list[FetchTarget], now_ms: int) -> FetchSession | None:
        while len(self._sessions) >= self._slots or self._partitions + len(targets) > self._partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < EVICTION_IDLE_MS:
                return None
            self._forget(oldest.session_id)
        session_id = self._new_id()
        while session_id == 0 or session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, 1, now_ms, OrderedDict((target.key, target) for target in targets))
        self._sessions[session_id] = session
        self._partitions += len(session.targets)
        return session

    def rotate(self, session: FetchSession, delivered: list[PartitionKey]) -> None:
        """Partitions that just filled an answer go to the end, so that a size limit starves nobody."""
        for key in delivered:
            if key in session.targets:
                session.targets.move_to_end(key)
