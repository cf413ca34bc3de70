"""A partition: its log, its high watermark, who waits for either to move, and the role that this broker has in it.

The high watermark is the end of what is committed and may be read. A leader computes it from what its followers and its
own log have (`cluster.replicas`); how much of the own log counts is a policy: all of it, or with `oncelog.acks.fsync`
what is on disk. A follower takes over the leader's. Everything that must wait for an append to be safe waits for
`committed(offset)`.

The metadata gives the role (`become`). A leader appends what producers send, under its leader epoch. A follower appends
what its leader sends and cuts off what the leader does not have: see `cluster.follower`, whose `FollowedLog` this is.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol

from oncelog.cluster.partition_state import PartitionState, Role
from oncelog.cluster.replicas import ReplicaFetch, ReplicaRules, Replicas
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId, TopicPartition
from oncelog.core.invariant import InvariantError, invariant
from oncelog.core.promise import Promise
from oncelog.protocol.batch import build_control_batch
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.leader_epochs import EpochEnd
from oncelog.storage.log import Log
from oncelog.storage.producer_state import Origin
from oncelog.storage.record_examination import Examination
from oncelog.storage.verification_guards import VerificationGuard

logger = logging.getLogger("oncelog.server")


_COMMITTED: Final[Promise[KafkaError | None]] = Promise.resolved(None)
ALL_IN_SYNC: Final = -1
"""As `acks` of a producer: an append that counts only when all replicas in sync have it."""
watch_tokens: Final = itertools.count(1)
"""Tokens of watchers: one number for each, over all partitions."""
FOLLOWER_TOKEN: Final = 0
"""Of whoever fetches for a follower from its leader."""
ALONE: Final = ReplicaRules(lambda broker: None)
"""Of a broker without others."""


class CommitPolicy(Protocol):
    """How much of a log counts as written on this replica. What all replicas in sync have is committed."""

    def stored_end(self, log: Log) -> int:
        """The end of what counts as stored on this broker."""

    def on_append(self, partition: Partition) -> None:
        """There is more in the log: sees to it that `partition.update_high_watermark` is called, now or later."""


class EndOfLog:
    """What is in the log counts at once."""

    def stored_end(self, log: Log) -> int:
        return log.log_end_offset

    def on_append(self, partition: Partition) -> None:
        partition.update_high_watermark()


class Partition:
    __slots__ = (
        "_commit_policy",
        "_commit_waiters",
        "_deletion_waiters",
        "_has_followers",
        "_rules",
        "_sequence",
        "_watchers",
        "closed",
        "disk_refusals",
        "high_watermark",
        "is_leader",
        "leader_epoch",
        "log",
        "node_id",
        "replicas",
        "state",
        "topic_partition",
    )

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        node_id: NodeId,
        commit_policy: CommitPolicy,
        *,
        checkpointed: int = 0,
        rules: ReplicaRules = ALONE,
        now_ms: int = 0,
    ) -> None:
        """`checkpointed` is the high watermark that was last written down: it is the least that is committed.

        Of a partition with one replica everything is committed that is found. `now_ms` is of a clock that is never set.
        """
        self.log = log
        self.node_id = node_id
        self._commit_policy = commit_policy
        self._rules = rules
        self.topic_partition: TopicPartition = log.topic_partition
        self._commit_waiters: list[tuple[int, int, Promise[KafkaError | None]]] = []
        self._deletion_waiters: list[tuple[int, Promise[KafkaError | None]]] = []
        self._sequence = 0
        self.closed = False
        self._watchers: dict[int, Callable[[], None]] = {}
        is_alone = state.replicas == (node_id,)
        log.load()
        known = log.log_end_offset if is_alone else max(checkpointed, log.log_start_offset)
        self.high_watermark: int = min(known, log.log_end_offset)
        log.producer_state.on_high_watermark(self.high_watermark)
        self.state = state
        self.leader_epoch: LeaderEpoch = state.leader_epoch
        self.is_leader = False
        self.replicas: Replicas | None = None
        """What a leader knows of the replicas; None on a follower."""
        self.disk_refusals = 0
        """How many appends in a row the log has refused because of the disk."""
        self._has_followers = False
        """Whether others have a say in what is committed. On one node nobody has, and nobody is asked."""
        self._tell_if_newer_than_metadata()
        self.become(state, now_ms)

    def _tell_if_newer_than_metadata(self) -> None:
        """An epoch is in the metadata before a log has it. If not, controllers go on from an older copy, which may name
        replicas as in sync that are not any more, and give epochs out again that replicas are compared by."""
        if len(self.state.replicas) > 1 and self.last_epoch > self.leader_epoch:
            logger.error(
                "%s: this log has leader epoch %d, and the metadata %d: it is an older copy. Acknowledged records may "
                "be lost: see docs/cluster.md",
                self.topic_partition,
                self.last_epoch,
                self.leader_epoch,
            )

    # The role

    @property
    def role(self) -> Role:
        return self.state.role_of(self.node_id)

    def become(self, state: PartitionState, now_ms: int) -> None:
        """The metadata has changed. Whoever waits for a broker that no longer leads is told to look for the leader.

        A broker that cannot note its epoch does not lead: KafkaError, and everything is as before.
        """
        invariant(state.leader_epoch >= self.leader_epoch, "%s: its leader epoch went back", self.topic_partition)
        leads = state.leader == self.node_id
        if leads and len(state.replicas) > 1:
            self.log.begin_epoch(state.leader_epoch)
        is_new_epoch = state.leader_epoch != self.leader_epoch
        self.state, self.leader_epoch, self.is_leader = state, state.leader_epoch, leads
        if not leads:
            self.replicas = None
            self.give_up_waiting()
        elif self.replicas is None or is_new_epoch:
            start_offset = self.log.leader_epochs.start_offset_from(state.leader_epoch, self.log.log_end_offset)
            self.replicas = Replicas(self.node_id, state, self._rules, epoch_start_offset=start_offset, now_ms=now_ms)
        else:
            self.replicas.on_state(state, now_ms)
        self._has_followers = self.replicas is not None and bool(self.replicas.followers)
        self._follow_log()
        self._follow_deletions()

    @property
    def has_followers(self) -> bool:
        return self._has_followers

    @property
    def could_be_led_by_others(self) -> bool:
        return self.replicas is not None and len(self.replicas.state.in_sync) > 1

    @property
    def last_valid_offset(self) -> int:
        """Up to where a reader may ask. A high watermark may be behind what the reader has seen elsewhere, on a new
        leader and on every follower: then it waits."""
        is_alone = self.is_leader and not self._has_followers
        return self.high_watermark if is_alone else self.log.log_end_offset

    @property
    def knows_committed(self) -> bool:
        """A new leader's high watermark may be behind the one that consumers have seen, until its followers fetch."""
        replicas = self.replicas if self._has_followers else None
        return replicas is None or self.high_watermark >= replicas.epoch_start_offset

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
        required_acks: int = ALL_IN_SYNC,
        examination: Examination = Examination.IN_PLACE,
    ) -> AppendInfo:
        if self.closed or not self.is_leader:
            self._check_open()
            self.check_leads()
        if self._has_followers and required_acks == ALL_IN_SYNC and self.is_under_min_isr:
            raise self._not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            info = self.log.append(
                data,
                leader_epoch=self.leader_epoch,
                origin=origin,
                now_ms=now_ms,
                guard=guard,
                marker_tv=marker_tv,
                examination=examination,
            )
        except KafkaError as error:
            self.disk_refusals += error.code is ErrorCode.KAFKA_STORAGE_ERROR
            raise
        else:
            self.disk_refusals = 0
            return info
        finally:
            # Also when it was refused or is a duplicate: it may have repaired the log, and then there is more of it.
            self._follow_log()

    def repair_log(self) -> None:
        """After an append that failed half way. Raises KafkaError if that is not possible yet."""
        self.log.repair()
        self._follow_log()

    def _follow_log(self) -> None:
        if self.log.has_failed:
            return
        if self.log.log_end_offset > self.high_watermark or not self.is_flushed:
            self._commit_policy.on_append(self)
            if self._has_followers:
                # Followers read up to the end of the log, and what they have not read is not committed.
                self._wake_watchers()

    def _check_open(self) -> None:
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} was deleted")

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

    # As a follower

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_epoch(self) -> int:
        return self.log.leader_epochs.latest_epoch

    @property
    def is_flushed(self) -> bool:
        return self._commit_policy.stored_end(self.log) >= self.log.log_end_offset

    @property
    def is_broken(self) -> bool:
        return self.log.has_failed and not self.log.can_be_repaired

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.log.end_offset_for_epoch(epoch)

    def append_as_follower(self, data: bytes | memoryview, leader_epoch: int, now_ms: int) -> None:
        self._check_follows()
        self.log.append_as_follower(data, leader_epoch=leader_epoch, now_ms=now_ms)
        self._follow_log()

    def truncate_to(self, offset: int, now_ms: int) -> None:
        self._check_follows()
        end_offset = self.log.truncate_to(offset, now_ms=now_ms)
        if end_offset < self.high_watermark:
            logger.warning(
                "%s: records from offset %d on were committed, but leader epoch %d does not have them and they are cut "
                "off: a leader was elected that was not in sync, or replicas have lost what was not on disk",
                self.topic_partition,
                end_offset,
                self.leader_epoch,
            )
            self.high_watermark = end_offset

    def start_over_at(self, offset: int, now_ms: int) -> None:
        """Everything up to there is deleted on the leader."""
        self._check_follows()
        self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        self.high_watermark = offset
        self.log.producer_state.on_high_watermark(offset)

    def follow_leader(self, high_watermark: int, log_start_offset: int) -> None:
        """What the leader's answer says, after its batches were appended. Neither goes back.

        A new leader may not know yet what its followers have learned to be committed.
        """
        self._check_follows()
        self.advance_high_watermark(min(high_watermark, self.log.log_end_offset))
        if log_start_offset > self.log.log_start_offset:
            self.log.delete_records(min(log_start_offset, self.high_watermark))

    def _check_follows(self) -> None:
        self._check_open()
        invariant(not self.is_leader, "%s: its leader follows another", self.topic_partition)

    # The high watermark

    def on_replica_fetch(self, replica: NodeId, fetch: ReplicaFetch, now_ms: int) -> None:
        """A follower has everything below the offset of its fetch."""
        if self.replicas is None:
            raise self._not_leader()
        self.replicas.on_fetch(replica, fetch, self.log.log_end_offset, now_ms)
        self.update_high_watermark()

    @property
    def is_under_min_isr(self) -> bool:
        return self.replicas is not None and self.replicas.is_under_min(self.log.config.min_insync_replicas)

    @property
    def is_at_min_isr(self) -> bool:
        return self.replicas is not None and self.replicas.is_at_min(self.log.config.min_insync_replicas)

    def _not_enough_replicas(self, code: ErrorCode) -> KafkaError:
        in_sync = len(self.replicas.state.in_sync) if self.replicas is not None else 0
        return KafkaError(
            code,
            f"{self.topic_partition} has {in_sync} of {len(self.state.replicas)} replicas in sync, "
            f"min.insync.replicas asks for {self.log.config.min_insync_replicas}",
        )

    def update_high_watermark(self) -> None:
        """After an append, a fetch of a follower, a change of the ISR or of `min.insync.replicas`."""
        if self.replicas is None:
            follower = self._watchers.get(FOLLOWER_TOKEN)
            if follower is not None:
                # It may have waited for the disk before it fetches on.
                self._call(follower)
            return
        log = self.log
        end_offset = self._commit_policy.stored_end(log)
        if self._has_followers:
            minimum = log.config.min_insync_replicas
            end_offset = self.replicas.high_watermark(end_offset, log.log_end_offset, minimum)
        self.advance_high_watermark(end_offset)
        if self._deletion_waiters:
            self._follow_deletions()

    def advance_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        log = self.log
        if offset > log.log_end_offset:
            raise InvariantError(f"{self.topic_partition}: committed beyond the end of the log")
        self.high_watermark = offset
        log.producer_state.on_high_watermark(offset)
        waiters = self._commit_waiters
        while waiters and waiters[0][0] < offset:
            self._resolve(heapq.heappop(waiters)[2], None)
        if self._watchers:
            self._wake_watchers()

    def committed(self, offset: int) -> Promise[KafkaError | None]:
        """Promises that `offset` is below the high watermark, or the reason why it never will be."""
        if offset < self.high_watermark and self.is_leader:
            if self._has_followers and self.is_under_min_isr:
                return Promise.resolved(self._not_enough_replicas(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
            return _COMMITTED
        if self.closed or self.log.has_failed or not self.is_leader:
            return Promise.resolved(self._not_committed(offset))
        self._sequence += 1
        promise: Promise[KafkaError | None] = Promise()
        heapq.heappush(self._commit_waiters, (offset, self._sequence, promise))
        return promise

    def delete_records(self, offset: int) -> int:
        """Returns where the log begins now. Followers are told at once."""
        self.check_leads()
        log_start_offset = self.log.delete_records(offset)
        self._wake_watchers()
        return log_start_offset

    def deleted_by_followers(self, offset: int) -> Promise[KafkaError | None]:
        """Promises that no follower that is there has records below `offset`, or why that cannot be told any more.

        Whoever does not want to wait any longer resolves the promise.
        """
        promise: Promise[KafkaError | None] = Promise()
        self._deletion_waiters.append((offset, promise))
        self._follow_deletions()
        return promise

    def _follow_deletions(self) -> None:
        waiters, self._deletion_waiters = self._deletion_waiters, []
        for offset, promise in waiters:
            if promise.done:
                continue
            if self.closed or self.replicas is None:
                self._resolve(promise, self._not_committed(offset))
            elif self.replicas.have_deleted(offset):
                self._resolve(promise, None)
            else:
                self._deletion_waiters.append((offset, promise))

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
        self._follow_deletions()
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for wake in list(self._watchers.values()):
            self._call(wake)

    def _resolve(self, promise: Promise[KafkaError | None], error: KafkaError | None) -> None:
        self._call(lambda: promise.resolve(error))

    def _call(self, callback: Callable[[], None]) -> None:
        """A callback that fails must neither keep others waiting, nor fail the request that happened to wake it."""
        try:
            callback()
        except Exception:
            logger.exception("%s: what waited for the high watermark failed", self.topic_partition)

    def watch(self, token: int, wake: Callable[[], None]) -> None:
        """`wake` is called whenever there may be more to read, until `unwatch(token)`."""
        self._watchers[token] = wake

    def unwatch(self, token: int) -> None:
        self._watchers.pop(token, None)
