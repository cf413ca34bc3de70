"""Fetch sessions (KIP-227): a client or a follower names its partitions once and afterwards only what changed.

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
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field

from oncelog.core.config import INT_MAX
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.messages.fetch import FetchRequest, PartitionData
from oncelog.server.turns import Steps, in_steps

EVICTION_IDLE_MS = 120_000
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_PARTITIONS_PER_STEP = 200

PartitionKey = tuple[str | int, int]
"""The topic's name, or the number that is its id when the client goes by ids, and the partition."""


def _topic_key(topic: str, topic_id: uuid.UUID) -> str | int:
    return topic_id.int or topic


@dataclass(slots=True)
class FetchTarget:
    """One partition of a fetch: what the client wants and, in a session, what the last answer said (`last_*`)."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    """Of a follower's log; -1 from consumers."""
    last_high_watermark: int = -1
    last_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        return _topic_key(self.topic, self.topic_id), self.partition

    def is_news(self, data: PartitionData) -> bool:
        """Whether an answer has something that the last one did not say."""
        return (
            bool(data.records)
            or data.error_code != 0
            or data.preferred_read_replica >= 0
            or data.diverging_epoch.epoch >= 0
            or data.high_watermark != self.last_high_watermark
            or data.log_start_offset != self.last_log_start_offset
        )

    def note(self, data: PartitionData) -> None:
        """A follower that is told where its log diverges takes nothing else from that answer."""
        is_taken = data.diverging_epoch.epoch < 0
        self.last_high_watermark = data.high_watermark if is_taken else -1
        self.last_log_start_offset = data.log_start_offset


@dataclass(slots=True)
class FetchSession:
    session_id: int
    epoch: int
    last_used_ms: int
    targets: dict[PartitionKey, FetchTarget] = field(default_factory=dict)


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

    def begin(self, request: FetchRequest, now_ms: int) -> Steps[tuple[FetchSession | None, list[FetchTarget], bool]]:
        """The session if there is one, the partitions to read, and whether the answer is incremental."""
        session_id, epoch = request.session_id, request.session_epoch
        targets = (yield from _targets(request)) if request.topics else {}
        forgotten = (yield from in_steps(_forgotten(request))) if request.forgotten_topics_data else ()
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id:
                self._forget(session_id)
            session = self._make(targets, now_ms) if epoch == INITIAL_EPOCH and targets else None
            return session, list(targets.values()), False
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
        if targets or forgotten:
            yield from self._update(session, targets, forgotten)
        if self._partitions > self._partitions_max:
            self._forget(session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} has grown too large")
        return session, list(session.targets.values()), True

    def _update(
        self, session: FetchSession, targets: Mapping[PartitionKey, FetchTarget], forgotten: Collection[PartitionKey]
    ) -> Steps[None]:
        for number, (key, target) in enumerate(targets.items()):
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield from self._pause(session)
            known = session.targets.get(key)
            if known is None:
                session.targets[key] = target
                self._partitions += 1
            else:
                known.fetch_offset, known.log_start_offset = target.fetch_offset, target.log_start_offset
                known.partition_max_bytes = target.partition_max_bytes
                known.current_leader_epoch = target.current_leader_epoch
                known.last_fetched_epoch = target.last_fetched_epoch
        for number, key in enumerate(forgotten):
            if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield from self._pause(session)
            self._partitions -= session.targets.pop(key, None) is not None

    def _pause(self, session: FetchSession) -> Steps[None]:
        """Others have their turn, and may take the place of the session."""
        yield
        if self._sessions.get(session.session_id) is not session:
            number = session.session_id
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {number} has ended meanwhile")

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        self._partitions -= 0 if session is None else len(session.targets)

    def _make(self, targets: dict[PartitionKey, FetchTarget], now_ms: int) -> FetchSession | None:
        while len(self._sessions) >= self._slots or self._partitions + len(targets) > self._partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < EVICTION_IDLE_MS:
                return None
            self._forget(oldest.session_id)
        session_id = self._new_id()
        while session_id == 0 or session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, 1, now_ms, targets)
        self._sessions[session_id] = session
        self._partitions += len(session.targets)
        return session

    def rotate(self, session: FetchSession, delivered: list[PartitionKey]) -> None:
        """Partitions that just filled an answer go to the end, so that a size limit starves nobody."""
        for key in delivered:
            target = session.targets.pop(key, None)
            if target is not None:
                session.targets[key] = target


def _targets(request: FetchRequest) -> Steps[dict[PartitionKey, FetchTarget]]:
    """A partition that is named several times counts as named last, as in Kafka."""
    targets: dict[PartitionKey, FetchTarget] = {}
    number = 0
    for topic in request.topics:
        key = _topic_key(topic.topic, topic.topic_id)
        for wanted in topic.partitions:
            targets[key, wanted.partition] = FetchTarget(
                topic.topic,
                topic.topic_id,
                wanted.partition,
                wanted.fetch_offset,
                wanted.partition_max_bytes,
                wanted.current_leader_epoch,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
            )
            number += 1
            if number % _PARTITIONS_PER_STEP == 0:
                yield
    return targets


def _forgotten(request: FetchRequest) -> Iterator[PartitionKey]:
    for topic in request.forgotten_topics_data:
        key = _topic_key(topic.topic, topic.topic_id)
        for index in topic.partitions:
            yield key, index
