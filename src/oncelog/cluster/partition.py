"""A partition this broker leads: its log, its high watermark, and who waits for either to move.

The high watermark is the end of what may be read: with one replica it follows the end of the log at once, unless the
broker was asked to fsync before it acknowledges; then, as with replicas, it follows later. Everything that must wait
for an append to be safe waits for the high watermark, so there is one place to wait for.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, TopicPartition
from oncelog.protocol.batch import build_control_batch
from oncelog.storage.log import AppendInfo, Log
from oncelog.storage.producer_state import Origin
from oncelog.storage.verification import VerificationGuard

logger = logging.getLogger("oncelog.server")


class Partition:
    __slots__ = (
        "_commit_waiters",
        "_on_append",
        "_sequence",
        "_watchers",
        "closed",
        "high_watermark",
        "leader_epoch",
        "log",
        "topic_partition",
    )

    def __init__(
        self, log: Log, leader_epoch: LeaderEpoch, on_append: Callable[[Partition], None] | None = None
    ) -> None:
        """`on_append` takes care that the high watermark follows an append; without it, it follows at once."""
        self.log = log
        self._on_append = on_append
        self.topic_partition: TopicPartition = log.topic_partition
        self.leader_epoch = leader_epoch
        self.high_watermark: int = log.log_end_offset
        log.producer_state.on_high_watermark(self.high_watermark)
        self._commit_waiters: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.closed = False
        self._watchers: dict[int, Callable[[], None]] = {}

    @property
    def last_stable_offset(self) -> int:
        unstable = self.log.producer_state.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.log_start_offset)

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
        try:
            info = self.log.append(
                data, leader_epoch=self.leader_epoch, origin=origin, now_ms=now_ms, guard=guard, marker_tv=marker_tv
            )
        except KafkaError:
            # It may have repaired the log before it was refused, and then there is more of it.
            self._follow_log()
            raise
        # Of a duplicate, too: what it repeats may have been written by an append that failed half way.
        if self._on_append is None:
            self.advance_high_watermark(self.log.log_end_offset)
        elif info.last_offset >= self.high_watermark:
            self._on_append(self)
        return info

    def repair_log(self) -> None:
        """After an append that failed half way. Raises KafkaError if that is not possible yet."""
        self.log.repair()
        self._follow_log()

    def _follow_log(self) -> None:
        if self.log.has_failed or self.log.log_end_offset <= self.high_watermark:
            return
        if self._on_append is None:
            self.advance_high_watermark(self.log.log_end_offset)
        else:
            self._on_append(self)

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
        self.high_watermark = offset
        self.log.producer_state.on_high_watermark(offset)
        waiters = self._commit_waiters
        while waiters and waiters[0][0] < offset:
            self._call(heapq.heappop(waiters)[2])
        if self._watchers:
            self._wake_watchers()

    def check_committed(self, offset: int) -> None:
        """For those who have waited: raises KafkaError if `offset` was not committed and never will be."""
        if offset < self.high_watermark:
            return
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} was deleted")
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: offset {offset} is not on disk")

    def when_committed(self, offset: int, callback: Callable[[], None]) -> None:
        """Calls back once `offset` is below the high watermark, at once if it is already, or never will be."""
        if offset < self.high_watermark or self.closed or self.log.has_failed:
            callback()
            return
        self._sequence += 1
        heapq.heappush(self._commit_waiters, (offset, self._sequence, callback))

    def close(self) -> None:
        """The topic is gone: whoever waits here looks again and finds that out."""
        self.closed = True
        self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """What is not committed now never will be: whoever waits for it is told to look again."""
        waiters, self._commit_waiters = self._commit_waiters, []
        for _, _, callback in waiters:
            self._call(callback)
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for wake in list(self._watchers.values()):
            self._call(wake)

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
