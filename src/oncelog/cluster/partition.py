"""A partition: its log, its high watermark, who waits for either to move, and whether this broker leads it.

The high watermark is the end of what is committed and may be read. What it follows is a policy: the end of the log, or
with `oncelog.acks.fsync` the disk. Everything that must wait for an append to be safe waits for `committed(offset)`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from typing import Final, Protocol

from oncelog.cluster.partition_state import PartitionState
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise
from oncelog.protocol.batch import build_control_batch
from oncelog.storage.log import AppendInfo, Log
from oncelog.storage.producer_state import Origin
from oncelog.storage.verification import VerificationGuard

logger = logging.getLogger("oncelog.server")


_COMMITTED: Final[Promise[KafkaError | None]] = Promise.resolved(None)


class CommitPolicy(Protocol):
    """What must be true of an append before the high watermark may pass it."""

    def on_append(self, partition: Partition) -> None:
        """There is more in the log: sees to it that `partition.advance_high_watermark` is called, now or later."""


class EndOfLog:
    """An append is committed at once."""

    def on_append(self, partition: Partition) -> None:
        partition.advance_high_watermark(partition.log.log_end_offset)


class Partition:
    __slots__ = (
        "_commit_policy",
        "_commit_waiters",
        "_sequence",
        "_watchers",
        "closed",
        "high_watermark",
        "is_leader",
        "leader_epoch",
        "log",
        "node_id",
        "state",
        "topic_partition",
    )

    def __init__(self, log: Log, state: PartitionState, node_id: NodeId, commit_policy: CommitPolicy) -> None:
        self.log = log
        self.node_id = node_id
        self._commit_policy = commit_policy
        self.topic_partition: TopicPartition = log.topic_partition
        self.state = state
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.is_leader = state.leader == node_id
        self.high_watermark: int = log.log_end_offset
        log.producer_state.on_high_watermark(self.high_watermark)
        self._commit_waiters: list[tuple[int, int, Promise[KafkaError | None]]] = []
        self._sequence = 0
        self.closed = False
        self._watchers: dict[int, Callable[[], None]] = {}

    def become(self, state: PartitionState) -> None:
        """The metadata has changed. Whoever waits for a broker that no longer leads is told to look for the leader."""
        invariant(state.leader_epoch >= self.leader_epoch, "%s: its leader epoch went back", self.topic_partition)
        led = self.is_leader
        self.state, self.leader_epoch, self.is_leader = state, state.leader_epoch, state.leader == self.node_id
        if led and not self.is_leader:
            self.give_up_waiting()

    def check_leads(self) -> None:
        if not self.is_leader:
            raise self._not_leader()

    def _not_leader(self) -> KafkaError:
        message = f"{self.topic_partition} is led by broker {self.state.leader}"
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.log.producer_state.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        stable = max(unstable, self.log.log_start_offset)
        invariant(stable <= self.high_watermark, "%s: stable beyond what is committed", self.topic_partition)
        return stable

    def readable_end(self, read_committed: bool) -> int:
        return self.last_stable_offset if read_committed else self.high_watermark

    def check_leader_epoch(self, requested: int) -> None:
        """A client that names an epoch must name ours: an older one missed a change, a newer one we missed."""
        if requested < 0 or requested == self.leader_epoch:
            return
        if requested < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{self.topic_partition} is at epoch {self.leader_epoch}")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{self.topic_partition} is at epoch {self.leader_epoch}")

    def append_as_leader(
        self,
        data: bytes | memoryview,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: VerificationGuard | None = None,
        marker_tv: int = 0,
    ) -> AppendInfo:
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} was deleted")
        self.check_leads()
        try:
            return self.log.append(
                data, leader_epoch=self.leader_epoch, origin=origin, now_ms=now_ms, guard=guard, marker_tv=marker_tv
            )
        finally:
            # Also when it was refused or is a duplicate: it may have repaired the log, and then there is more of it.
            self._follow_log()

    def repair_log(self) -> None:
        """After an append that failed half way. Raises KafkaError if that is not possible yet."""
        self.log.repair()
        self._follow_log()

    def _follow_log(self) -> None:
        if self.log.log_end_offset > self.high_watermark and not self.log.has_failed:
            self._commit_policy.on_append(self)

    def append_marker(
        self,
        *,
        commit: bool,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> AppendInfo:
        batch = build_control_batch(
            commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append_as_leader(batch, now_ms=now_ms, origin=Origin.COORDINATOR, marker_tv=transaction_version)

    def advance_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        invariant(offset <= self.log.log_end_offset, "%s: committed beyond the end of the log", self.topic_partition)
        self.high_watermark = offset
        self.log.producer_state.on_high_watermark(offset)
        waiters = self._commit_waiters
        while waiters and waiters[0][0] < offset:
            self._resolve(heapq.heappop(waiters)[2], None)
        if self._watchers:
            self._wake_watchers()

    def committed(self, offset: int) -> Promise[KafkaError | None]:
        """Promises that `offset` is below the high watermark, or the reason why it never will be."""
        if offset < self.high_watermark:
            return _COMMITTED
        if self.closed or self.log.has_failed or not self.is_leader:
            return Promise.resolved(self._not_committed(offset))
        self._sequence += 1
        promise: Promise[KafkaError | None] = Promise()
        heapq.heappush(self._commit_waiters, (offset, self._sequence, promise))
        return promise

    def _not_committed(self, offset: int) -> KafkaError:
        if self.closed:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} was deleted")
        if not self.is_leader:
            return self._not_leader()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: offset {offset} is not on disk")

    def close(self) -> None:
        """The topic is gone, and whoever waits here is told."""
        self.closed = True
        self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """What is not committed now never will be."""
        waiters, self._commit_waiters = self._commit_waiters, []
        for offset, _, promise in waiters:
            self._resolve(promise, self._not_committed(offset))
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for wake in list(self._watchers.values()):
            self._call(wake)

    def _resolve(self, promise: Promise[KafkaError | None], error: KafkaError | None) -> None:
        self._call(lambda: promise.resolve(error))

    def _call(self, callback: Callable[[], None]) -> None:
        """One who fails must not keep those behind waiting, nor fail the request that only happened to wake it."""
        try:
            callback()
        except Exception:
            logger.exception("%s: what waited for the high watermark failed", self.topic_partition)

    def watch(self, token: int, wake: Callable[[], None]) -> None:
        """`wake` is called whenever there may be more to read, until `unwatch(token)`."""
        self._watchers[token] = wake

    def unwatch(self, token: int) -> None:
        self._watchers.pop(token, None)
