"""Runs the shards of a coordinator: loads them, appends what they decide, applies what is committed, lets them go.

Both coordinators run on this. A shard's life follows the leadership of its partition: it is loaded from the log when it
is first needed, under the partition's leader epoch, and unloaded when this broker resigns. It serves when everything
that was read is committed. `coordinator.outcome` has the contract between the two.

After an append that failed half way nobody knows whether its records are in the log. The shard is given up, and loaded
again once the log has been repaired. Until then it neither writes nor answers: both could contradict the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from oncelog.cluster.internal_topics import internal_partition_count
from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, Replayed, Reply, Shard
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.failpoints import hit
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import NO_PRODUCER_ID, LeaderEpoch, TopicPartition
from oncelog.core.invariant import invariant
from oncelog.core.promise import Promise
from oncelog.protocol.batch import BatchHeader, ControlMarker
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.shard_log import LOAD_RETRY_MS, Replayer, append_records, load_shard
from oncelog.storage.append_info import AppendInfo
from oncelog.storage.verification_guards import VerificationGuard

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

OPEN_RETRY_MS: Final = 1_000
REPAIRED_CHECK_MS: Final = 1_000
"""Between looks whether a log that has failed is repaired."""
REPLIES_AT_ONCE: Final = 500
"""A round of a group that ends has an answer for each member. Others have their turn in between."""

E = TypeVar("E")
S = TypeVar("S", bound=Shard[object])


class LiveShard(Generic[S]):
    """A shard with the partition behind it and the epoch under which this broker leads it."""

    __slots__ = ("epoch", "index", "partition", "replay_offset", "shard")

    def __init__(self, index: int, shard: S, partition: Partition) -> None:
        self.index = index
        self.shard = shard
        self.partition = partition
        self.epoch: LeaderEpoch = partition.leader_epoch
        self.replay_offset = 0
        """The offset of the last record that was replayed while loading."""

    @property
    def leads_still(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.epoch


class CoordinatorRuntime(Generic[S, E]):
    def __init__(
        self,
        broker: Broker,
        topic: str,
        log: logging.Logger,
        *,
        failpoints: str,
        new_shard: Callable[[int], S],
        on_loaded: Callable[[LiveShard[S]], None],
        on_resigned: Callable[[LiveShard[S]], None],
        carry_out: Callable[[E], None],
    ) -> None:
        """`failpoints` is how their names begin; `carry_out` is called with each effect of a replay."""
        self._broker = broker
        self._topic = topic
        self._log = log
        self._new_shard = new_shard
        self._on_loaded = on_loaded
        self._on_resigned = on_resigned
        self._carry_out = carry_out
        self._live: dict[int, LiveShard[S]] = {}
        self._errors = RepeatedErrors(log, logging.ERROR)
        self._before_append = f"{failpoints}.record.before_append"
        self._after_append = f"{failpoints}.record.after_append"
        self._after_apply = f"{failpoints}.record.after_apply"

    def __iter__(self) -> Iterator[LiveShard[S]]:
        return iter(list(self._live.values()))

    # Leadership

    def start(self) -> None:
        """Loads partitions with data. Others are loaded at their first use."""
        for index in sorted(self.with_data()):
            self._load_when_it_opens(index)

    def _load_when_it_opens(self, index: int) -> None:
        """What is decided is carried on, also if nobody asks for it."""
        try:
            self.live(index)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return  # of another broker: it is loaded with the role
            self._errors.report(index, "%s-%d is not served before it opens: %s", self._topic, index, error)
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._broker.later(OPEN_RETRY_MS, lambda: self._load_when_it_opens(index))
        else:
            self._errors.clear(index)

    def with_data(self) -> set[int]:
        """The partitions that this broker leads and that have records."""
        topic = self._broker.metadata.topics.get(self._topic)
        indexes = range(topic.partition_count if topic is not None else 0)
        node, leader_of = self._broker.node_id, self._broker.metadata.leader_of
        return {
            index
            for index in indexes
            if self._broker.partitions.has_data(self._topic, index)
            and leader_of(TopicPartition(self._topic, index)) == node
        }

    def follow(self, partition: Partition) -> None:
        """A partition has taken its role: a shard of another epoch is given up, and loaded anew if this broker leads.

        The shard is compared with the partition, not the new role with the former one. The partition may have taken its
        role before, by a request that opened it or half way, and then nobody would carry the transactions on.
        """
        topic, index = partition.topic_partition
        if topic != self._topic:
            return
        live = self._live.get(index)
        if live is not None and live.partition is partition and live.leads_still:
            return
        self._resign(index)
        if partition.is_leader and partition.log.log_end_offset > 0 and index not in self._live:
            self._load(index)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is not kept here any more."""
        if partition.topic == self._topic:
            self._resign(partition.partition)

    def _resign(self, index: int) -> None:
        """What is in flight is answered with NOT_COORDINATOR. A client whose next request was behind it may have the
        shard loaded again by that, so nothing of the former one is left then."""
        live = self._live.pop(index, None)
        if live is not None:
            unloaded = live.shard.unload()
            self._on_resigned(live)
            self.deliver(unloaded)

    @property
    def has_topic(self) -> bool:
        return self._topic in self._broker.metadata.topics

    def index_of(self, key: str) -> int:
        """The partition that holds a group or a transactional id, or will, once the topic is there."""
        topic = self._broker.metadata.topics.get(self._topic)
        count = internal_partition_count(self._topic, self._broker.settings) if topic is None else topic.partition_count
        return coordinator_partition(key, count)

    def available(self) -> Promise[KafkaError | None]:
        """Promises that the topic is there. It is made when it is first needed."""
        return self._broker.internal_topic(self._topic).map(
            lambda topic: topic if isinstance(topic, KafkaError) else None
        )

    def held(self, index: int) -> LiveShard[S] | None:
        """What is there without being asked for."""
        return self._live.get(index)

    def listed(self) -> Iterator[LiveShard[S]]:
        """All that have something to list. Raises KafkaError for one that cannot be asked: a list without it would be
        taken for complete.
        """
        shards = list(self)
        if not self.with_data() <= self._live.keys():
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"a partition of {self._topic} is not open yet")
        for live in shards:
            self._check_listed(live)
        for live in shards:
            self._check_listed(live)  # others had their turn since
            yield live

    def _check_listed(self, live: LiveShard[S]) -> None:
        """Who lists asks all brokers and not a coordinator, and asks again only after the error of a load. So
        NOT_COORDINATOR is for a log that waits for a restart.
        """
        partition, shard = live.partition, live.shard
        if shard.is_loaded and not partition.log.has_failed:
            return
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if partition.is_broken:
            code = ErrorCode.NOT_COORDINATOR
        elif shard.refusal is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            code = shard.refusal
        raise KafkaError(code, f"{partition.topic_partition} cannot be listed now")

    def live(self, index: int) -> LiveShard[S]:
        """Loaded, or being loaded: ask the shard. Raises KafkaError if its partition cannot be opened."""
        live = self._live.get(index)
        if live is not None and live.shard.is_loaded and live.partition.log.has_failed:
            self._resign(index)
            live = self._live.get(index)
        return live if live is not None else self._load(index)

    def _load(self, index: int) -> LiveShard[S]:
        partition = self._broker.partitions.get(self._topic, index)
        live = self._live[index] = LiveShard(index, self._new_shard(index), partition)
        self._read(live)
        return live

    def _read(self, live: LiveShard[S]) -> None:
        partition, index = live.partition, live.index
        if partition.log.has_failed:
            # The repair may bring records that are not there now. It comes also if nobody asks for it: a decision that
            # is in the log has to be carried out.
            live.shard.refusal = ErrorCode.NOT_COORDINATOR
            self._read_later(live, REPAIRED_CHECK_MS)
            return

        def later(delay_ms: int, go_on: Callable[[], None]) -> None:
            # One that was given up meanwhile is not read to its end: nobody may take it for loaded.
            self._broker.later(delay_ms, lambda: go_on() if self._live.get(index) is live else None)

        load_shard(
            partition,
            later,
            begin=lambda: self._new_replayer(live),
            done=lambda: self._on_read(live),
            refuse=lambda error: self._refuse(live, error),
        )

    def _on_read(self, live: LiveShard[S]) -> None:
        """A new leader has read what is not committed as well, and the next one may cut it off again. Until it is
        committed the shard stays loading: markers would end a transaction that was never decided, and answers would
        tell what nobody finds later.
        """
        partition = live.partition
        end_offset = partition.log_end_offset

        def settled(error: KafkaError | None) -> None:
            if self._live.get(live.index) is not live:
                return
            if partition.high_watermark >= end_offset:
                self._on_loaded(live)
            else:
                invariant(error is not None, "%s: committed without being so", partition.topic_partition)
                self._read_later(live, LOAD_RETRY_MS)  # the log has failed, and may be repaired

        if partition.high_watermark >= end_offset:
            self._on_loaded(live)
            return
        self._log.info(
            "%s is served when its records up to offset %d are committed; now they are up to %d",
            partition.topic_partition, end_offset, partition.high_watermark,
        )  # fmt: skip
        partition.committed(end_offset - 1).then(settled)

    def _read_later(self, live: LiveShard[S], delay_ms: int) -> None:
        self._broker.later(delay_ms, lambda: self._read(live) if self._live.get(live.index) is live else None)

    def _new_replayer(self, live: LiveShard[S]) -> Replayer:
        live.shard = self._new_shard(live.index)
        return _ShardReplayer(live, self._broker.steady_ms(), self._log)

    def _refuse(self, live: LiveShard[S], error: Exception) -> None:
        """The shard has a part of its state only. As in Kafka it refuses until the next start or election."""
        live.shard.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._log.error(
            "%s could not be loaded: replaying it failed at or after offset %d. Requests for what it coordinates get "
            "COORDINATOR_NOT_AVAILABLE until this broker is started again. Check the log with `oncelog log verify`; if "
            "it is intact, this is a fault of Oncelog: report it with the trace below. The others are served",
            live.partition.topic_partition, live.replay_offset, exc_info=error,
        )  # fmt: skip

    # Decide, log, apply

    def write(
        self,
        live: LiveShard[S],
        outcome: Outcome,
        guard: VerificationGuard | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Carries an outcome out. `settled` is called when its records were applied or given up."""
        for note in outcome.notes:
            self._log.info("%s", note)
        if not outcome.records:
            self.deliver(outcome)
            settled()
            return
        if live.partition.log.has_failed or self._live.get(live.index) is not live:
            # The append would repair the log and go on behind records that may contradict what is decided here.
            self._fail(live, outcome, KafkaError(ErrorCode.NOT_COORDINATOR, "the shard is to be loaded again"))
            settled()
            return
        hit(self._before_append)
        try:
            info = append_records(
                live.partition, outcome.records, now_ms=self._broker.now_ms(), producer=outcome.producer, guard=guard
            )
        except KafkaError as error:
            self._fail(live, outcome, error)
            settled()
            return
        except Exception as error:  # noqa: BLE001  logged; nothing may stay pending for ever, nor keep others waiting
            self._log.exception("%s: records were not written", live.partition.topic_partition)
            self._fail(live, outcome, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            settled()
            return
        hit(self._after_append)

        def committed(error: KafkaError | None) -> None:
            if error is not None:
                self._fail(live, outcome, error)
            elif self._live.get(live.index) is not live:
                self._fail(live, outcome, KafkaError(ErrorCode.NOT_COORDINATOR, f"decided under epoch {live.epoch}"))
            else:
                self._apply(live, outcome, info)
            settled()

        live.partition.committed(info.last_offset).then(committed)

    def deliver(self, outcome: Outcome) -> None:
        self._deliver(outcome.replies)

    def _deliver(self, replies: list[Reply]) -> None:
        """Give the answers. One that fails is logged, and the others are given all the same."""
        for reply in replies[:REPLIES_AT_ONCE]:
            try:
                reply.reply_to(reply.response)
            except Exception:  # noqa: BLE001  logged
                self._log.exception("%s: an answer could not be given", self._topic)
        if rest := replies[REPLIES_AT_ONCE:]:
            self._broker.later(0, lambda: self._deliver(rest))

    def _apply(self, live: LiveShard[S], outcome: Outcome, info: AppendInfo) -> None:
        producer_id = NO_PRODUCER_ID if outcome.producer is None else outcome.producer.producer_id
        now_ms = self._broker.steady_ms()
        effects: list[E] = []
        for number, record in enumerate(outcome.records):
            replayed: Replayed[E] = live.shard.replay(  # type: ignore[assignment]  # the effects of S are E
                record, offset=info.first_offset + number, producer_id=producer_id, now_ms=now_ms
            )
            effects += replayed.effects
        self.deliver(outcome)
        hit(self._after_apply)
        for effect in effects:
            self._carry_out(effect)

    def _fail(self, live: LiveShard[S], outcome: Outcome, error: KafkaError) -> None:
        # When another broker takes over, all that is in flight ends here, and clients go to the next coordinator.
        level = logging.WARNING if live.leads_still else logging.DEBUG
        self._log.log(level, "%s: records were not written: %s", live.partition.topic_partition, error)
        instead = live.shard.append_failed(outcome, error.code, error.message, self._broker.steady_ms())
        if live.partition.log.has_failed and self._live.get(live.index) is live:
            self._resign(live.index)
            self._load_when_it_opens(live.index)
        self.write(live, instead)


class _ShardReplayer:
    """Feeds what a log holds to a shard that is being loaded."""

    def __init__(self, live: LiveShard[S], now_ms: int, log: logging.Logger) -> None:
        self._live = live
        self._shard = live.shard
        self._partition = live.partition.topic_partition
        self._now_ms = now_ms
        self._log = log

    def on_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        record = CoordinatorRecord(key, value)
        self._live.replay_offset = offset
        try:
            replayed = self._shard.replay(
                record,
                offset=offset,
                producer_id=producer_id,
                now_ms=self._now_ms,
                written_ms=header.max_timestamp,
            )
            warning = replayed.warning
        except ValueError as error:
            warning = f"an invalid record is skipped: {error}"
        self._warn(offset, warning)

    def on_marker(self, header: BatchHeader, marker: ControlMarker) -> None:
        if marker.is_commit or marker.is_abort:
            self._warn(
                header.base_offset, self._shard.replay_marker(header.producer_id, commit=marker.is_commit).warning
            )

    def _warn(self, offset: int, warning: str | None) -> None:
        if warning is not None:
            self._log.warning("%s offset %d: %s", self._partition, offset, warning)
