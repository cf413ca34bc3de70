"""Runs the transaction coordinator's shards: appends what they decide, applies what is committed, carries out effects.

A request that meets a transaction on its way from one state to the next is parked and run again when the id has
settled, so that clients do not have to back off and retry. Parked requests are bounded in number and time; beyond the
bound they get the CONCURRENT_TRANSACTIONS that Kafka would have answered at once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import Outcome
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.listing import TransactionFilter
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.results import IdResult, PartitionsResult, Result, TransactionListing
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.failpoints import hit
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import (
    TRANSACTION_STATE_TOPIC,
    CoordinatorEpoch,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from oncelog.core.promise import Promise
from oncelog.protocol.batch import BatchHeader, ControlMarker
from oncelog.server.markers import RETRY_MS
from oncelog.server.shard_log import Replayer, append_records, load_shard

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.transactions")

R = TypeVar("R", bound=Result)


@dataclass(slots=True, eq=False)
class _Parked:
    """A request that waits for its id to settle. `answer` is what it gets if that takes too long."""

    operation: Callable[[TxnShard], Outcome[Any]]
    promise: Promise[Any]
    answer: Result
    timer: Timer


class TxnRuntime:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self._config = TxnConfig(
            transaction_version=TransactionVersion(settings.integer("transaction.version")),
            max_timeout_ms=settings.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=settings.integer("transactional.id.expiration.ms"),
            two_phase_commit_enable=settings.boolean("transaction.two.phase.commit.enable"),
        )
        self._shards: dict[int, TxnShard] = {}
        self._parked: dict[str, deque[_Parked]] = {}
        self._waking: set[str] = set()
        self.parked_count = 0
        self._parked_max = settings.integer("oncelog.parked.requests.max")
        self._park_ms = settings.integer("oncelog.parked.request.ms")
        broker.markers.on_acknowledged = self._markers_acknowledged
        broker.markers.on_given_up = self._markers_given_up

    # -- shards

    def start(self) -> None:
        topic = self._broker.metadata.topics.get(TRANSACTION_STATE_TOPIC)
        for index in range(topic.partition_count if topic is not None else 0):
            if self._broker.partitions.has_data(TRANSACTION_STATE_TOPIC, index):
                self._shard(index)
        settings = self._broker.settings
        self._every(
            "transaction time-outs",
            settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            lambda shard: shard.abort_timed_out(self._broker.now_ms()),
        )
        self._every(
            "expiry of transactional ids",
            settings.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
            lambda shard: shard.expire_ids(self._broker.now_ms()),
        )

    def stop(self) -> None:
        for waiting in list(self._parked.values()):
            for parked in list(waiting):
                self._give_up_waiting(parked)

    def partition_of(self, transactional_id: str) -> int:
        topic = self._broker.internal_topic(TRANSACTION_STATE_TOPIC)
        return coordinator_partition(transactional_id, topic.partition_count)

    def _shard(self, index: int) -> TxnShard:
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        try:
            return self._load(index)
        except KafkaError as error:
            # The next request tries again. This one is told by a shard that is never loaded to come back.
            log.error("ids of %s-%d are not served before it opens: %s", TRANSACTION_STATE_TOPIC, index, error)
            return self._new_shard(index)

    def _new_shard(self, index: int) -> TxnShard:
        return TxnShard(index, self._config, self._broker.metadata.next_producer_id)

    def _load(self, index: int) -> TxnShard:
        partition = self._log_of(index)
        shard = self._new_shard(index)
        self._shards[index] = shard
        broker = self._broker

        def begin() -> Replayer:
            shard.unload()
            return _TxnReplayer(shard)

        def done() -> None:
            effects = shard.on_loaded(CoordinatorEpoch(partition.leader_epoch), broker.now_ms())
            for effect in effects:
                log.info(
                    "%r (producer %d, epoch %d) was %s when this coordinator stopped: its markers are sent again",
                    effect.transactional_id, effect.producer_id, effect.producer_epoch,
                    "committing" if effect.commit else "aborting",
                )  # fmt: skip
                broker.markers.send(effect)

        load_shard(partition, broker.later, begin, done)
        return shard

    def _log_of(self, index: int) -> Partition:
        return self._broker.partitions.get(TRANSACTION_STATE_TOPIC, index)

    def _every(self, name: str, interval_ms: int, scan: Callable[[TxnShard], list[Outcome[IdResult]]]) -> None:
        def run() -> None:
            for shard in list(self._shards.values()):
                for outcome in scan(shard):
                    log.info("%s", outcome.response.reason)
                    if outcome.records:
                        self._append(shard, outcome, _log_failure)

        self._broker.recurring.every(name, interval_ms, run)

    # -- operations

    def run(self, transactional_id: str, operation: Callable[[TxnShard], Outcome[R]]) -> Promise[R]:
        """Runs an operation on the shard of an id, logs and applies what it decides, and promises its answer."""
        promise: Promise[R] = Promise()
        shard = self._shard(self.partition_of(transactional_id))
        self._attempt(shard, operation, promise)
        return promise

    def _attempt(self, shard: TxnShard, operation: Callable[[TxnShard], Outcome[R]], promise: Promise[R]) -> None:
        outcome = operation(shard)
        if not outcome.records:
            if outcome.wait_for is None or not self._park(outcome.wait_for, operation, promise, outcome.response):
                promise.resolve(outcome.response)
            return

        def logged(response: R) -> None:
            if response is not outcome.response or outcome.wait_for is None:
                promise.resolve(response)

        self._append(shard, outcome, logged)
        if outcome.wait_for is not None and not promise.done:
            # The records make the id settle (a fencing abort): what the caller would get on its retry, it gets now.
            if shard.is_settled(outcome.wait_for):
                self._attempt(shard, operation, promise)
            elif not self._park(outcome.wait_for, operation, promise, outcome.response):
                promise.resolve(outcome.response)

    def _append(self, shard: TxnShard, outcome: Outcome[R], done: Callable[[R], None]) -> None:
        transactional_id = outcome.transactional_id or ""
        partition = self._log_of(shard.partition)

        def failed(error: KafkaError) -> None:
            code = shard.append_failed(transactional_id, error.code)
            log.warning("%s: a record for %r was not written: %s", partition.topic_partition, transactional_id, error)
            done(outcome.response.but(code, error.message))
            self._wake(shard, transactional_id)

        hit("txn.record.before_append")
        try:
            info = append_records(partition, outcome.records, now_ms=self._broker.now_ms())
        except KafkaError as error:
            failed(error)
            return
        except Exception as error:
            # The id must not stay pending for ever, nor other ids wait that were to be settled in the same turn.
            log.exception("%s: a record for %r was not written", partition.topic_partition, transactional_id)
            failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            return
        hit("txn.record.after_append")

        def settled(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
                return
            applied = shard.append_committed(outcome)
            if applied.error is not ErrorCode.NONE:
                done(outcome.response.but(applied.error, applied.reason))
            else:
                done(outcome.response)
                hit("txn.record.after_apply")
                if applied.effects:
                    # In the next turn of the loop: the answer leaves first, nobody waits for the markers to get it.
                    self._broker.scheduler.call_later_ms(0, lambda: self._send_markers(applied.effects))
            self._wake(shard, transactional_id)

        partition.committed(info.last_offset).then(settled)

    def _send_markers(self, effects: Iterable[SendMarkers]) -> None:
        if self._broker.stopped:
            return  # the next start finds the decision in the log
        for effect in effects:
            self._broker.markers.send(effect)

    # -- parking

    def _park(
        self, transactional_id: str, operation: Callable[[TxnShard], Outcome[R]], promise: Promise[R], answer: R
    ) -> bool:
        if self.parked_count >= self._parked_max or self._park_ms == 0 or self._broker.stopped:
            return False
        parked = _Parked(operation, promise, answer, _NO_TIMER)
        parked.timer = self._broker.scheduler.call_later_ms(
            self._park_ms, lambda: self._expire_parked(transactional_id, parked)
        )
        self._parked.setdefault(transactional_id, deque()).append(parked)
        self.parked_count += 1
        return True

    def _expire_parked(self, transactional_id: str, parked: _Parked) -> None:
        waiting = self._parked.get(transactional_id)
        if waiting is None or parked not in waiting:
            return
        waiting.remove(parked)
        if not waiting:
            del self._parked[transactional_id]
        self._give_up_waiting(parked)

    def _give_up_waiting(self, parked: _Parked) -> None:
        self.parked_count -= 1
        parked.timer.cancel()
        if not parked.promise.done:
            parked.promise.resolve(parked.answer)

    def _wake(self, shard: TxnShard, transactional_id: str) -> None:
        """Runs parked requests again, in their order, for as long as the id stays settled.

        Running one can settle the id once more before it returns; the loop that is at it already goes on then, so
        that many requests parked on one id do not pile up on the stack.
        """
        waiting = self._parked.get(transactional_id)
        if not waiting or transactional_id in self._waking:
            return
        self._waking.add(transactional_id)
        try:
            while waiting and shard.is_settled(transactional_id):
                parked = waiting.popleft()
                self.parked_count -= 1
                parked.timer.cancel()
                self._attempt(shard, parked.operation, parked.promise)
                if not parked.promise.done and shard.is_settled(transactional_id):
                    break  # it parked itself again although nothing is pending: its time limit will answer it
        finally:
            self._waking.discard(transactional_id)
        if not waiting and self._parked.get(transactional_id) is waiting:
            del self._parked[transactional_id]

    # -- markers

    def _markers_acknowledged(self, order: SendMarkers, partitions: frozenset[TopicPartition]) -> None:
        shard = self._shard(self.partition_of(order.transactional_id))
        outcome = shard.markers_acknowledged(order, partitions, self._broker.now_ms())
        if not outcome.records:
            return

        def logged(result: IdResult) -> None:
            if result.error is not ErrorCode.NONE and not self._broker.stopped:
                # The transaction is decided and marked; only its last record is missing. It is tried until it is in.
                self._broker.scheduler.call_later_ms(RETRY_MS, lambda: self._markers_acknowledged(order, frozenset()))

        self._append(shard, outcome, logged)

    def _markers_given_up(self, order: SendMarkers, code: ErrorCode) -> None:
        shard = self._shard(self.partition_of(order.transactional_id))
        log.warning("%s", shard.markers_given_up(order, code))

    # -- what other parts of the broker ask for

    def enlist(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        add: bool,
    ) -> Promise[dict[TopicPartition, KafkaError]]:
        """Adds partitions to a transaction (TV2) or verifies that they were added; promises what was refused."""
        wanted = list(partitions)
        pid, epoch = ProducerId(producer_id), ProducerEpoch(producer_epoch)

        def operation(shard: TxnShard) -> Outcome[PartitionsResult]:
            if add:
                now_ms = self._broker.now_ms()
                return shard.add_partitions(transactional_id, pid, epoch, wanted, TransactionVersion.TV2, now_ms)
            return shard.verify_partitions(transactional_id, pid, epoch, wanted)

        def refusals(result: PartitionsResult) -> dict[TopicPartition, KafkaError]:
            return {
                partition: KafkaError(code, result.reason)
                for partition, code in result.partitions.items()
                if code is not ErrorCode.NONE
            }

        return self.run(transactional_id, operation).map(refusals)

    def shard_of(self, transactional_id: str) -> TxnShard:
        return self._shard(self.partition_of(transactional_id))

    def list_transactions(self, wanted: TransactionFilter) -> list[TransactionListing]:
        now_ms = self._broker.now_ms()
        return [entry for shard in list(self._shards.values()) for entry in shard.list_transactions(wanted, now_ms)]

    def count_by_state(self) -> Counter[str]:
        everything = TransactionFilter.of()
        now_ms = self._broker.now_ms()
        loaded = [shard for shard in list(self._shards.values()) if shard.is_loaded]
        return Counter(entry.state for shard in loaded for entry in shard.list_transactions(everything, now_ms))


class _TxnReplayer:
    def __init__(self, shard: TxnShard) -> None:
        self._shard = shard

    def on_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        try:
            warning = self._shard.replay(key, value).warning
        except ValueError as error:
            warning = f"a record that makes no sense is skipped: {error}"
        if warning is not None:
            log.warning("%s-%d offset %d: %s", TRANSACTION_STATE_TOPIC, self._shard.partition, offset, warning)

    def on_marker(self, header: BatchHeader, marker: ControlMarker) -> None:
        log.warning(
            "%s-%d holds a transaction marker, which is ignored", TRANSACTION_STATE_TOPIC, self._shard.partition
        )


class _NoTimer:
    def cancel(self) -> None:
        pass


_NO_TIMER = _NoTimer()


def _log_failure(result: IdResult) -> None:
    if result.error is not ErrorCode.NONE:
        log.warning("%r: %s %s", result.transactional_id, result.error.name, result.reason)
