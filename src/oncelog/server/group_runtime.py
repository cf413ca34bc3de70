"""Runs the group coordinator's shards: appends what they decide, replays it, and delivers answers once committed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog.cluster.metadata import Topic
from oncelog.cluster.partition import Partition
from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.group.outcome import Outcome, ReplyHandle, Result
from oncelog.coordinator.group.requests import ListedGroup, PartitionToFetch
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, NO_OFFSET
from oncelog.core.promise import Promise
from oncelog.protocol.batch import BatchHeader, ControlMarker
from oncelog.server.markers import Marker
from oncelog.server.shard_log import Replayer, append_records, load_shard
from oncelog.storage.verification import VerificationGuard

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.groups")

R = TypeVar("R", bound=Result)
T = TypeVar("T")
Operation = Callable[[GroupShard, ReplyHandle, int], Outcome]


class _LiveShard:
    """A shard with the partition behind it and the timer that wakes it."""

    __slots__ = ("deadline_ms", "deleted_topics", "partition", "ready", "shard", "shown_offset", "timer")

    def __init__(self, shard: GroupShard, partition: Partition) -> None:
        self.shard = shard
        self.partition = partition
        self.ready = False
        self.shown_offset: int = NO_OFFSET
        """The last offset of the log that the shard's state has in it."""
        self.deleted_topics: list[PartitionToFetch] = []
        """Deleted while the shard was loading: told to it as soon as it is there."""
        self.timer: Timer | None = None
        self.deadline_ms: int | None = None


class GroupRuntime:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self._config = GroupConfig(
            min_session_timeout_ms=settings.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=settings.integer("group.max.session.timeout.ms"),
            max_size=settings.integer("group.max.size"),
            initial_rebalance_delay_ms=settings.integer("group.initial.rebalance.delay.ms"),
            offset_metadata_max_bytes=settings.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=settings.integer("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=settings.integer("offsets.retention.check.interval.ms"),
        )
        self._shards: dict[int, _LiveShard] = {}

    # -- shards

    def start(self) -> None:
        topic = self._broker.metadata.topics.get(GROUP_METADATA_TOPIC)
        for index in range(topic.partition_count if topic is not None else 0):
            if self._broker.partitions.has_data(GROUP_METADATA_TOPIC, index):
                try:
                    self._load(index)
                except KafkaError as error:
                    log.error("groups of %s-%d are not served before it opens: %s", GROUP_METADATA_TOPIC, index, error)

    def stop(self) -> None:
        for live in self._shards.values():
            if live.timer is not None:
                live.timer.cancel()
            if live.ready:
                live.ready = False
                for reply in live.shard.unload().replies:
                    reply.reply_to(reply.response)

    def partition_of(self, group_id: str) -> int:
        topic = self._broker.internal_topic(GROUP_METADATA_TOPIC)
        return coordinator_partition(group_id, topic.partition_count)

    def is_ready(self, index: int) -> bool:
        return self._live(index).ready

    def _live(self, index: int) -> _LiveShard:
        live = self._shards.get(index)
        return live if live is not None else self._load(index)

    def _load(self, index: int) -> _LiveShard:
        broker = self._broker
        partition = broker.partitions.get(GROUP_METADATA_TOPIC, index)
        live = _LiveShard(self._new_shard(), partition)
        self._shards[index] = live

        def begin() -> Replayer:
            live.shard = self._new_shard()
            return _GroupReplayer(live.shard, partition)

        def done() -> None:
            live.ready = True
            live.shown_offset = partition.log.log_end_offset - 1
            self._settle(live, live.shard.loaded(broker.now_ms()))
            if live.deleted_topics:
                self._settle(live, live.shard.topics_deleted(live.deleted_topics))

        load_shard(partition, broker.later, begin, done)
        return live

    def _new_shard(self) -> GroupShard:
        return GroupShard(self._config, new_member_suffix=self._broker.new_member_suffix)

    # -- operations

    def run(
        self,
        group_id: str,
        operation: Operation,
        refused: Callable[[ErrorCode], R],
        guard: VerificationGuard | None = None,
    ) -> Promise[R]:
        """Runs an operation on the shard of a group and promises its answer, however long that takes."""
        try:
            live = self._live(self.partition_of(group_id))
        except KafkaError as error:
            log.warning("group %s cannot be served: %s", group_id, error)
            return Promise.resolved(refused(error_for_failed_append(error.code)))
        if not live.ready:
            return Promise.resolved(refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        promise: Promise[R] = Promise()
        self._settle(live, operation(live.shard, promise.resolve, self._broker.now_ms()), guard)
        return promise

    def read(self, group_id: str, reading: Callable[[GroupShard], T]) -> Promise[T | KafkaError]:
        """What is read now, promised for when it is committed: nobody is told what a power cut could still undo.

        After a failed fsync that never comes, and until a restart nobody knows what the log holds: an error.
        """
        try:
            seen = reading(self.shard_of(group_id))
        except KafkaError as error:
            return Promise.resolved(KafkaError(error_for_failed_append(error.code), error.message))
        live = self._live(self.partition_of(group_id))

        def answer(error: KafkaError | None) -> T | KafkaError:
            return seen if error is None else KafkaError(error_for_failed_append(error.code), error.message)

        return live.partition.committed(live.shown_offset).map(answer)

    def shard_of(self, group_id: str) -> GroupShard:
        """For reading what need not be committed. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        live = self._live(self.partition_of(group_id))
        if not live.ready:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return live.shard

    def partition_for(self, group_id: str) -> Partition:
        return self._live(self.partition_of(group_id)).partition

    def _settle(self, live: _LiveShard, outcome: Outcome, guard: VerificationGuard | None = None) -> None:
        now_ms = self._broker.now_ms()
        for note in outcome.notes:
            log.info("%s", note)
        if outcome.records:
            try:
                self._append(live, outcome, guard)
            except KafkaError as error:
                log.warning("%s: records were not written: %s", live.partition.topic_partition, error)
                self._settle(live, live.shard.append_failed(outcome, error.code, now_ms))
                return
        if outcome.replies:
            self._deliver(live, outcome)
        self._reschedule(live)

    def _append(self, live: _LiveShard, outcome: Outcome, guard: VerificationGuard | None) -> None:
        info = append_records(
            live.partition, outcome.records, now_ms=self._broker.now_ms(), producer=outcome.producer, guard=guard
        )
        live.shown_offset = info.last_offset
        producer_id = -1 if outcome.producer is None else outcome.producer.producer_id
        for i, record in enumerate(outcome.records):
            live.shard.replay(record.key, record.value, offset=info.first_offset + i, producer_id=producer_id)

    def _deliver(self, live: _LiveShard, outcome: Outcome) -> None:
        def settled(error: KafkaError | None) -> None:
            replies = outcome.replies
            if outcome.records and error is not None:
                log.warning("%s: records were not committed: %s", live.partition.topic_partition, error)
                replies = live.shard.append_failed(outcome, error.code, self._broker.now_ms()).replies
            for reply in replies:
                reply.reply_to(reply.response)

        # Not for the end of the log: what an append left there half way is in no reply.
        live.partition.committed(live.shown_offset).then(settled)

    def _reschedule(self, live: _LiveShard) -> None:
        deadline_ms = live.shard.next_deadline_ms()
        # A timer that fires early finds nothing due and is set anew: heartbeats, which only move deadlines further
        # away, cost no timer.
        if deadline_ms is None or (
            live.timer is not None and live.deadline_ms is not None and live.deadline_ms <= deadline_ms
        ):
            return
        if live.timer is not None:
            live.timer.cancel()
        live.deadline_ms = deadline_ms
        live.timer = self._broker.scheduler.call_later_ms(deadline_ms - self._broker.now_ms(), lambda: self._tick(live))

    def _tick(self, live: _LiveShard) -> None:
        live.timer = None
        live.deadline_ms = None
        if live.ready:
            self._settle(live, live.shard.tick(self._broker.now_ms()))

    # -- what other parts of the broker ask for

    def complete_transaction(self, index: int, marker: Marker, offset: int) -> None:
        live = self._live(index)
        live.shown_offset = offset
        live.shard.complete_transaction(marker.producer_id, marker.producer_epoch, commit=marker.commit)

    def on_topic_deleted(self, topic: Topic) -> None:
        gone = [PartitionToFetch(topic.name, 0, topic.topic_id)]
        for live in list(self._shards.values()):
            if live.ready:
                self._settle(live, live.shard.topics_deleted(gone))
            else:
                live.deleted_topics += gone

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> tuple[ErrorCode, list[ListedGroup]]:
        shards = list(self._shards.values())
        if not all(live.ready for live in shards):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        states, types = list(states), list(types)
        return ErrorCode.NONE, [group for live in shards for group in live.shard.list_groups(states, types)]

    def count_by_state(self) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for live in list(self._shards.values()):
            total.update(live.shard.group_count_by_state())
        return total


class _GroupReplayer:
    def __init__(self, shard: GroupShard, partition: Partition) -> None:
        self._shard = shard
        self._partition = partition

    def on_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        producer_id = header.producer_id if header.is_transactional else -1
        try:
            warning = self._shard.replay(key, value, offset=offset, producer_id=producer_id)
        except ValueError as error:
            warning = f"a record that makes no sense is skipped: {error}"
        if warning is not None:
            log.warning("%s offset %d: %s", self._partition.topic_partition, offset, warning)

    def on_marker(self, header: BatchHeader, marker: ControlMarker) -> None:
        if marker.is_commit or marker.is_abort:
            self._shard.complete_transaction(header.producer_id, header.producer_epoch, commit=marker.is_commit)
