"""Followers of one leader: what is fetched from it for many partitions, and what its answers do. No sockets, no clock.

The owner calls `poll` when the time `wake_ms` has come, sends the request to the leader, and passes the response
(`on_fetch`, `on_offsets`) or the failure (`on_failure`) back. One request is under way at a time.

A partition is followed in one leader epoch, in one of these states:

    FETCHING --OFFSET_OUT_OF_RANGE--> ASKING_END --its end is not below ours--> ASKING_START
       ^                                  |                                          |
       +------------log cut---------------+----------log emptied, or nothing---------+

    HALTED: the epoch is over, or the log has failed. Only a new epoch (`follow`) goes on.

- A fetch names the offset where the own log ends and the epoch of its last batch. If the leader has written something
  else there, it answers with a DivergingEpoch: the largest epoch that is not above, and where that ends in its log. The
  own log is cut to where both agree for certain, and the next fetch asks again. From such an answer nothing else is
  taken: its high watermark is about records that the own log does not have.
- Otherwise the batches are appended, without a last one that is cut off. Then the high watermark moves to that of the
  answer or to the own end, if that is lower, and then the log start offset follows.
- An answer counts only for partitions that are as they were when the request was sent: same offset, same epoch.
- A leader that keeps fetch sessions is told only what changed (`cluster.follower_session`). A partition that waits, for
  whatever reason, is taken out of the session: the leader would send it again and again what is not taken.
- With `oncelog.acks.fsync` a partition is fetched only when all of its log is on disk: a fetch acknowledges.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final, Protocol

from oncelog.cluster.cluster_config import FetchLimits
from oncelog.cluster.exchange import Exchange
from oncelog.cluster.follower_session import FollowedPartition, FollowerSession, Position
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import whole_batches
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetSpec,
)
from oncelog.storage.leader_epochs import EpochEnd

logger = logging.getLogger("oncelog.server")


FLUSH_WAIT_MS: Final = 5
"""How long a fetch waits for news while another partition waits for the disk and is to be acknowledged after that."""


class EpochLog(Protocol):
    @property
    def log_end_offset(self) -> int: ...
    def end_offset_for_epoch(self, epoch: int) -> EpochEnd: ...


class FollowedLog(EpochLog, Protocol):
    """The replica that follows; see `cluster.partition.Partition`."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """Of the last batch; -1 if there is none."""

    @property
    def is_flushed(self) -> bool:
        """Whether everything that a fetch would acknowledge is as safe as it has to be."""

    @property
    def is_broken(self) -> bool:
        """Only a restart can tell what its disk is worth."""

    def append_as_follower(self, data: bytes | memoryview, leader_epoch: int, now_ms: int) -> None: ...
    def truncate_to(self, offset: int, now_ms: int) -> None: ...
    def start_over_at(self, offset: int, now_ms: int) -> None: ...
    def follow_leader(self, high_watermark: int, log_start_offset: int) -> None:
        """What the leader's answer says, after its batches were appended."""


class Throttle(Protocol):
    """What may be fetched of replicas that are being moved."""

    def hold_ms(self, topic: str, partition: int) -> int:
        """For how long a replica that is behind is not fetched; 0: not at all."""

    def record(self, topic: str, partition: int, size_bytes: int) -> None: ...


class State(Enum):
    FETCHING = auto()
    ASKING_END = auto()
    ASKING_START = auto()
    HALTED = auto()


class FetchReaction(Enum):
    TAKE = auto()
    ASK_OFFSETS = auto()
    BACK_OFF = auto()
    HALT = auto()


REACTIONS: Final[dict[int, FetchReaction]] = {
    ErrorCode.NONE: FetchReaction.TAKE,
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchReaction.ASK_OFFSETS,
    # The answer is to a fetch in the epoch that is followed, so the epoch is over.
    ErrorCode.FENCED_LEADER_EPOCH: FetchReaction.HALT,
}
"""After any other error the partition is fetched again later: metadata travels at different speeds."""


class SendToLeader(NamedTuple):
    number: int
    request: FetchRequest | ListOffsetsRequest


class _Followed:
    __slots__ = ("due_ms", "halted", "lag", "leader_epoch", "log", "state")

    def __init__(self, log: FollowedLog, leader_epoch: int) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.state = State.FETCHING
        self.due_ms: int | None = None
        """None means now."""
        self.halted = ""
        """Why nothing is fetched, if so."""
        self.lag: int | None = None
        """How many committed records it did not have at the last answer; None before that."""

    @property
    def asked(self) -> Position:
        log = self.log
        return Position(log.log_end_offset, self.leader_epoch, log.last_epoch, log.log_start_offset)

    def is_due(self, now_ms: int) -> bool:
        return self.state is not State.HALTED and (self.due_ms is None or now_ms >= self.due_ms) and self.log.is_flushed

    @property
    def waits_for_disk(self) -> bool:
        return self.state is State.FETCHING and not self.log.is_flushed and not self.log.is_broken

    def halt(self, reason: str) -> None:
        self.state, self.halted = State.HALTED, reason

    def end_epoch(self) -> None:
        self.halt(f"leader epoch {self.leader_epoch} is over")

    def take(self, data: PartitionData, now_ms: int) -> None:
        """The answer to a fetch without an error."""
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            offset = meeting_point(EpochEnd(diverging.epoch, diverging.end_offset), self.log)
            self.log.truncate_to(offset, now_ms)
            return
        if data.records:
            records = memoryview(data.records)
            # Java cuts an answer at the limit that it was given, in the middle of a batch. What has no whole batch at
            # all is left to the log to complain about.
            whole = memoryview(whole_batches(records))
            self.log.append_as_follower(whole or records, self.leader_epoch, now_ms)
        self.log.follow_leader(data.high_watermark, data.log_start_offset)
        self.lag = max(0, data.high_watermark - self.log.log_end_offset)

    def take_offset(self, offset: int, now_ms: int) -> bool:
        """The end or the start of the leader's log. Returns whether there is something to ask for now."""
        end_offset = self.log.log_end_offset
        if self.state is State.ASKING_END and offset >= end_offset:
            self.state = State.ASKING_START
            return True
        if self.state is State.ASKING_END:
            self.log.truncate_to(offset, now_ms)
        elif offset > end_offset:
            self.log.start_over_at(offset, now_ms)
        self.state = State.FETCHING
        return self.log.log_end_offset != end_offset


def meeting_point(leader: EpochEnd, log: EpochLog) -> int:
    """Where to cut a log that diverges, by the leader's largest epoch that is not above ours and where that ends.

    If the own log does not know that epoch, it is cut to the end of the one before, and the next fetch asks again
    (KIP-279). If it knows no epoch at all, the leader's word has to do.
    """
    own = log.end_offset_for_epoch(leader.epoch)
    if own.epoch < 0:
        return min(leader.end_offset, log.log_end_offset)
    if own.epoch != leader.epoch:
        return min(own.end_offset, log.log_end_offset)
    return min(leader.end_offset, own.end_offset, log.log_end_offset)


class LeaderFetcher:
    def __init__(
        self,
        node_id: NodeId,
        limits: FetchLimits = FetchLimits(),  # noqa: B008  it is immutable
        throttle: Throttle | None = None,
    ) -> None:
        self._node_id = node_id
        self._throttle = throttle
        self._limits = limits
        self._exchange = Exchange(limits.socket_timeout_ms)
        self._followed: dict[FollowedPartition, _Followed] = {}
        """In the order in which they are asked for: what has got data goes to the end."""
        self._asked: dict[FollowedPartition, Position] = {}
        """Of the current request."""
        self._session = FollowerSession()

    # Which partitions

    def follow(self, key: FollowedPartition, log: FollowedLog, leader_epoch: int) -> None:
        """The metadata says so. Nothing changes if the partition is followed in this epoch already."""
        followed = self._followed.get(key)
        if followed is None or followed.leader_epoch != leader_epoch or followed.log is not log:
            self._followed[key] = _Followed(log, leader_epoch)
            if key in self._session:
                # What the leader has told of it was taken by its predecessor, if at all.
                self._session.end()

    def forget(self, key: FollowedPartition) -> None:
        self._followed.pop(key, None)

    def __contains__(self, key: FollowedPartition) -> bool:
        return key in self._followed

    def __len__(self) -> int:
        return len(self._followed)

    def halted(self) -> dict[FollowedPartition, str]:
        """Partitions that are not fetched any more in this epoch, with the reason."""
        return {key: followed.halted for key, followed in self._followed.items() if followed.halted}

    @property
    def lag_max(self) -> int:
        """Of the partition that is furthest behind, as far as it is known."""
        return max((followed.lag or 0 for followed in self._followed.values()), default=0)

    # What is sent

    def wake_ms(self, now_ms: int) -> int | None:
        """When to call `poll` next if no response arrives before; None if nothing has to be asked for."""
        if self._exchange.has_timed_out(now_ms):
            return now_ms
        exchange_ms = self._exchange.wake_ms
        if self._asked:
            return exchange_ms
        dues = [
            now_ms if followed.due_ms is None else followed.due_ms
            for followed in self._followed.values()
            if followed.state is not State.HALTED and followed.log.is_flushed
        ]
        return max(now_ms, min(dues), exchange_ms or 0) if dues else None

    def poll(self, now_ms: int, broker_epoch: int) -> SendToLeader | None:
        if self._exchange.has_timed_out(now_ms):
            self._exchange.give_up()
            self._session.end()
            self._asked = {}
        if not self._exchange.is_due(now_ms):
            return None
        due = {
            key: followed
            for key, followed in self._followed.items()
            if followed.is_due(now_ms) and not self._is_held(key, followed, now_ms)
        }
        asking = {key: followed for key, followed in due.items() if followed.state is not State.FETCHING}
        if not due:
            return None
        # Offsets first: until they are known these partitions stand still.
        self._asked = {key: followed.asked for key, followed in (asking or due).items()}
        request = self._list_offsets(asking) if asking else self._fetch(broker_epoch)
        return SendToLeader(self._exchange.sent(now_ms), request)

    def _is_held(self, key: FollowedPartition, followed: _Followed, now_ms: int) -> bool:
        if self._throttle is None or followed.lag == 0:
            return False
        hold_ms = self._throttle.hold_ms(key.topic, key.partition)
        if hold_ms:
            followed.due_ms = now_ms + hold_ms
        return hold_ms > 0

    def _fetch(self, broker_epoch: int) -> FetchRequest:
        limits = self._limits
        is_flushing = any(followed.waits_for_disk for followed in self._followed.values())
        request = FetchRequest(
            replica_id=self._node_id,
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=min(FLUSH_WAIT_MS, limits.wait_max_ms) if is_flushing else limits.wait_max_ms,
            min_bytes=limits.response_min_bytes,
            max_bytes=limits.response_max_bytes,
        )
        self._session.name(request, self._asked, limits.max_bytes)
        return request

    def _list_offsets(self, asking: dict[FollowedPartition, _Followed]) -> ListOffsetsRequest:
        """As a replica: the latest offset is the end of the leader's log, not its high watermark."""
        topics: dict[str, ListOffsetsTopic] = {}
        for key, followed in asking.items():
            spec = OffsetSpec.LATEST if followed.state is State.ASKING_END else OffsetSpec.EARLIEST
            topics.setdefault(key.topic, ListOffsetsTopic(name=key.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=key.partition, current_leader_epoch=followed.leader_epoch, timestamp=spec
                )
            )
        return ListOffsetsRequest(replica_id=self._node_id, topics=list(topics.values()))

    # What comes back

    def on_failure(self, number: int, now_ms: int) -> None:
        if self._exchange.accept(number):
            self._asked = {}
            self._session.end()
            self._exchange.delay(now_ms, self._limits.backoff_ms)

    def on_fetch(self, number: int, response: FetchResponse, now_ms: int, time_of_day_ms: int) -> None:
        """`now_ms` is of the clock of `poll`, `time_of_day_ms` is what the log notes of its appends."""
        if not self._exchange.accept(number):
            return
        asked, self._asked = self._asked, {}
        if response.error_code != ErrorCode.NONE:
            if not self._session.on_error(response.error_code):
                self._exchange.delay(now_ms, self._limits.backoff_ms)
            return
        self._session.on_answer(response.session_id)
        keys = {(key.topic_id, key.partition): key for key in asked} if response.responses else {}
        for topic in response.responses:
            for data in topic.partitions:
                key = keys.get((topic.topic_id, data.partition_index))
                followed = None if key is None else self._still(key, asked[key])
                if key is None or followed is None or followed.state is not State.FETCHING:
                    self._session.end()
                    continue
                self._on_partition(key, followed, data, now_ms, time_of_day_ms)

    def on_offsets(self, number: int, response: ListOffsetsResponse, now_ms: int, time_of_day_ms: int) -> None:
        if not self._exchange.accept(number):
            return
        asked, self._asked = self._asked, {}
        keys = {(key.topic, key.partition): key for key in asked}
        for topic in response.topics:
            for answer in topic.partitions:
                key = keys.get((topic.name, answer.partition_index))
                followed = None if key is None else self._still(key, asked[key])
                if key is not None and followed is not None:
                    self._on_offset(key, followed, answer, now_ms, time_of_day_ms)

    def _still(self, key: FollowedPartition, asked: Position) -> _Followed | None:
        """The partition, if it is what it was when the request was sent."""
        followed = self._followed.get(key)
        return followed if followed is not None and followed.asked == asked else None

    def _on_partition(
        self, key: FollowedPartition, followed: _Followed, data: PartitionData, now_ms: int, time_of_day_ms: int
    ) -> None:
        reaction = REACTIONS.get(data.error_code, FetchReaction.BACK_OFF)
        followed.due_ms = None
        if reaction is FetchReaction.BACK_OFF:
            followed.due_ms = now_ms + self._limits.backoff_ms
        elif reaction is FetchReaction.HALT:
            followed.end_epoch()
        elif reaction is FetchReaction.ASK_OFFSETS:
            followed.state = State.ASKING_END
        else:
            if data.diverging_epoch.epoch >= 0:
                self._session.end()
            with self._guard(key, followed, now_ms):
                followed.take(data, time_of_day_ms)
            if data.records:
                self._followed[key] = self._followed.pop(key)
                if self._throttle is not None:
                    self._throttle.record(key.topic, key.partition, len(data.records))

    def _on_offset(
        self,
        key: FollowedPartition,
        followed: _Followed,
        answer: ListOffsetsPartitionResponse,
        now_ms: int,
        time_of_day_ms: int,
    ) -> None:
        followed.due_ms = None
        if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            followed.end_epoch()
        elif answer.error_code != ErrorCode.NONE or answer.offset < 0:
            followed.due_ms = now_ms + self._limits.backoff_ms
        else:
            with self._guard(key, followed, now_ms):
                if not followed.take_offset(answer.offset, time_of_day_ms):
                    # The log is as it was, and the leader may well say the same again.
                    followed.due_ms = now_ms + self._limits.backoff_ms

    @contextmanager
    def _guard(self, key: FollowedPartition, followed: _Followed, now_ms: int) -> Iterator[None]:
        """What goes wrong with one log must not keep the others from their turn.

        A damaged batch may arrive intact the next time, and a full disk may have room again. What nobody has foreseen
        would only happen again.
        """
        try:
            yield
        except Exception as error:
            is_foreseen = isinstance(error, KafkaError | OSError)
            self._session.end()
            followed.due_ms = now_ms + self._limits.backoff_ms
            if followed.log.is_broken or not is_foreseen:
                followed.halt(repr(error))
            goes_on = "stays behind" if followed.halted else "will be fetched again"
            logger.log(
                logging.WARNING if is_foreseen else logging.ERROR,
                "%s-%d cannot take what was fetched and %s: %s",
                *(key.topic, key.partition, goes_on, error),
                exc_info=None if is_foreseen else error,
            )
