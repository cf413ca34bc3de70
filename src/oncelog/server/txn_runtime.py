"""The transaction coordinator of this broker: `coordinator_runtime` with parking, markers and recurring scans.

A request that meets a transaction on its way from one state to the next is parked and run again when the id has
settled, so that clients do not have to back off and retry. Parked requests are bounded in number and time; beyond the
bound they get the CONCURRENT_TRANSACTIONS that Kafka would have answered at once.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.clock import Timer
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.features import TRANSACTION_VERSION
from oncelog.core.ids import (
    TRANSACTION_STATE_TOPIC,
    CoordinatorEpoch,
    NodeId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from oncelog.core.promise import Promise
from oncelog.server.coordinator_runtime import CoordinatorRuntime, LiveShard
from oncelog.server.markers import RETRY_MS
from oncelog.server.turns import Steps

if TYPE_CHECKING:
    from oncelog.coordinator.txn.effects import SendMarkers
    from oncelog.coordinator.txn.listing import TransactionFilter
    from oncelog.coordinator.txn.machine import TxnShard
    from oncelog.coordinator.txn.outcome import TxnOutcome
    from oncelog.coordinator.txn.recovery import MissingMarker
    from oncelog.coordinator.txn.results import IdResult, PartitionsResult, Result
    from oncelog.protocol.messages.list_transactions import TransactionState as ListedTransaction
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.transactions")

PARTITION_BYTES: Final = 150
"""Memory of a partition of a transaction."""

R = TypeVar("R", bound="Result")


@dataclass(slots=True, eq=False)
class _Parked:
    """A request that waits for its id to settle. `answer` is what it gets if that takes too long."""

    operation: Callable[[TxnShard], TxnOutcome[Any]]
    promise: Promise[Any]
    answer: Result
    timer: Timer


class TxnRuntime:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config = broker.settings.bind(TxnConfig)
        self.shards: CoordinatorRuntime[TxnShard, SendMarkers] = CoordinatorRuntime(
            broker,
            TRANSACTION_STATE_TOPIC,
            log,
            failpoints="txn",
            new_shard=self._new_shard,
            on_loaded=self._on_loaded,
            on_resigned=self._on_resigned,
            carry_out=self._send_in_next_turn,
        )
        survey = broker.log_survey
        self._producer_epochs = {} if survey is None else survey.producer_epochs
        self._open_transactions = [] if survey is None else survey.open_transactions
        """Transactions open on partitions at a start after a crash, which no shard has claimed yet."""
        self._unloaded: set[int] = set()
        """Shards with data that have not been loaded since the start."""
        self._parked: dict[str, deque[_Parked]] = {}
        self._waking: set[str] = set()
        self.parked_count = 0
        self._parked_max = broker.settings.integer("oncelog.parked.requests.max")
        self._ids_max = broker.settings.integer("oncelog.transactional.ids.max")
        self._id_bytes_max = broker.settings.integer("oncelog.transactional.ids.max.bytes")
        self._park_ms = broker.settings.integer("oncelog.parked.request.ms")
        broker.markers.is_wanted = self._is_wanted
        broker.markers.on_acknowledged = self._markers_acknowledged
        broker.markers.on_given_up = self._markers_given_up

    # Shards

    def start(self) -> None:
        self._unloaded = self.shards.with_data()
        self.shards.start()
        self._abort_unknown_transactions()
        settings = self._broker.settings
        self._every(
            "transaction time-outs",
            settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            lambda shard: shard.abort_timed_out(self._broker.steady_ms()),
        )
        self._every(
            "expiry of transactional ids",
            settings.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
            lambda shard: shard.expire_ids(min(self._broker.steady_ms(), self._broker.now_ms())),
        )

    def stop(self) -> None:
        for waiting in list(self._parked.values()):
            for parked in list(waiting):
                self._give_up_waiting(parked)

    def follow_features(self, levels: Mapping[str, int]) -> None:
        """In a cluster controllers decide which protocol is spoken, also while brokers run."""
        version = TransactionVersion(levels.get(TRANSACTION_VERSION, 0))
        if version is self._config.transaction_version:
            return
        log.info("transaction.version is %d", version)
        self._config = replace(self._config, transaction_version=version)
        for live in self.shards:
            live.shard.config = self._config

    def partition_of(self, transactional_id: str) -> int:
        return self.shards.index_of(transactional_id)

    def _new_shard(self, index: int) -> TxnShard:
        from oncelog.coordinator.txn.machine import TxnShard  # which no start on an empty folder has to wait for

        shard = TxnShard(index, self._config, self._broker.producer_ids.take)
        shard.check_room = self._check_partitions_room
        return shard

    def _find(self, transactional_id: str) -> LiveShard[TxnShard] | TxnShard:
        """The shard of an id. If its partition cannot be used, a shard that is never loaded and refuses everything."""
        index = self.partition_of(transactional_id)
        try:
            return self.shards.live(index)
        except KafkaError as error:
            shard = self._new_shard(index)
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                shard.refusal = ErrorCode.NOT_COORDINATOR
            else:
                log.error(
                    "%s-%d cannot be opened, and its ids are not served: %s", TRANSACTION_STATE_TOPIC, index, error
                )
            return shard

    def shard_of(self, transactional_id: str) -> TxnShard:
        """The shard of an id, to be read. An empty one as long as the topic does not exist."""
        if not self.shards.has_topic:
            shard = self._new_shard(self.partition_of(transactional_id))
            shard.on_loaded(CoordinatorEpoch(0), self._broker.steady_ms())
            return shard
        found = self._find(transactional_id)
        return found.shard if isinstance(found, LiveShard) else found

    def _on_loaded(self, live: LiveShard[TxnShard]) -> None:
        broker, shard = self._broker, live.shard
        broker.producer_ids.skip_above(shard.highest_producer_id)
        recovered = shard.recover(self._producer_epochs, self._open_transactions, self._doubtful_below_offset(live))
        self._open_transactions = recovered.unknown
        epoch = CoordinatorEpoch(live.epoch)
        effects = shard.on_loaded(epoch, broker.steady_ms())
        # First of all: what is open beside the transaction that a marker is for must not be ended by it.
        for missing in recovered.missing:
            self._write_missing(missing, epoch)
        for effect in effects:
            log.info(
                "%r (producer %d, epoch %d) was %s when this coordinator stopped: its markers are sent again",
                effect.transactional_id, effect.producer_id, effect.producer_epoch,
                "committing" if effect.commit else "aborting",
            )  # fmt: skip
            broker.markers.send(effect)
        for outcome in shard.abort_doubtful(broker.steady_ms()):
            log.warning("%s", outcome.response.reason)
            if outcome.records:
                self._write(live, outcome, _log_failure)
        self._unloaded.discard(live.index)
        self._abort_unknown_transactions()

    def _doubtful_below_offset(self, live: LiveShard[TxnShard]) -> int:
        """Where the log ended when the machine last went down under a broker that did not wait for the disk."""
        broker = self._broker
        epoch = broker.metadata.doubtful_epoch
        if broker.acks_fsync or epoch <= 0:
            return 0
        return live.partition.log.leader_epochs.start_offset_from(epoch, live.partition.log.log_end_offset)

    def _abort_unknown_transactions(self) -> None:
        """Abort transactions that are open on a partition and known to no shard: nothing else would ever end them."""
        if self._unloaded or not self._open_transactions:
            return
        from oncelog.coordinator.txn.recovery import MissingMarker

        unknown, self._open_transactions = self._open_transactions, []
        for transaction in unknown:
            self._write_missing(MissingMarker(transaction, "", commit=False), CoordinatorEpoch(0))

    def _write_missing(self, missing: MissingMarker, coordinator_epoch: CoordinatorEpoch) -> None:
        log.warning(
            "%s: a transaction of producer %d is open that %s; it is %s",
            missing.open.partition, missing.open.producer_id,
            f"{missing.transactional_id!r} does not have open" if missing.transactional_id else "no coordinator knows",
            "committed, as was decided" if missing.commit else "aborted",
        )  # fmt: skip
        self._broker.markers.send(missing.order(coordinator_epoch))

    def _on_resigned(self, live: LiveShard[TxnShard]) -> None:
        self._broker.markers.withdraw(
            lambda order: bool(order.transactional_id) and self.partition_of(order.transactional_id) == live.index
        )
        for transactional_id in [each for each in self._parked if self.partition_of(each) == live.index]:
            waiting = self._parked.pop(transactional_id)
            while waiting:  # emptied, since whoever runs them again may be at it
                self._give_up_waiting(waiting.popleft())

    def _every(self, name: str, interval_ms: int, scan: Callable[[TxnShard], list[TxnOutcome[IdResult]]]) -> None:
        def run() -> None:
            for live in self.shards:
                for outcome in scan(live.shard):
                    log.info("%s", outcome.response.reason)
                    if outcome.records:
                        self._write(live, outcome, _log_failure)

        self._broker.recurring.every(name, interval_ms, run)

    # Operations

    def run(
        self, transactional_id: str, operation: Callable[[TxnShard], TxnOutcome[R]], *, parks: bool = True
    ) -> Promise[R]:
        """Runs an operation on the shard of an id, logs and applies what it decides, and promises its answer.

        One that may not be parked is answered at once: over its connection requests for other ids come as well.
        """
        ids = self._broker.producer_ids
        return (
            self.shards.available()
            .chain(lambda _: ids.available())
            .chain(lambda _: self._run(transactional_id, operation if parks else _unparked(operation)))
        )

    def _run(self, transactional_id: str, operation: Callable[[TxnShard], TxnOutcome[R]]) -> Promise[R]:
        live = self._find(transactional_id)
        if not isinstance(live, LiveShard):
            return Promise.resolved(operation(live).response)
        promise: Promise[R] = Promise()
        self._attempt(live, operation, promise)
        return promise

    def _attempt(
        self, live: LiveShard[TxnShard], operation: Callable[[TxnShard], TxnOutcome[R]], promise: Promise[R]
    ) -> None:
        outcome = operation(live.shard)
        if not outcome.records:
            if outcome.wait_for is None or not self._park(outcome.wait_for, operation, promise, outcome.response):
                promise.resolve(outcome.response)
            return

        def answer(response: R) -> None:
            if response is not outcome.response or outcome.wait_for is None:
                promise.resolve(response)

        self._write(live, outcome, answer)
        if outcome.wait_for is not None and not promise.done:
            # The records make the id settle (a fencing abort): what the caller would get on its retry, it gets now.
            if live.shard.is_settled(outcome.wait_for):
                self._attempt(live, operation, promise)
            elif not self._park(outcome.wait_for, operation, promise, outcome.response):
                promise.resolve(outcome.response)

    def _write(self, live: LiveShard[TxnShard], outcome: TxnOutcome[R], answer: Callable[[R], None]) -> None:
        outcome.reply(answer, outcome.response)
        self.shards.write(live, outcome, settled=lambda: self._wake(live, outcome.transactional_id or ""))

    def _send_in_next_turn(self, order: SendMarkers) -> None:
        """In the next turn of the loop, so that the answer leaves before the markers are written."""
        self._broker.scheduler.call_later_ms(0, lambda: self._send_markers(order))

    def _send_markers(self, order: SendMarkers) -> None:
        if not self._broker.stopped:  # else the next start finds the decision in the log
            self._broker.markers.send(order)

    # Parking

    def _park(
        self, transactional_id: str, operation: Callable[[TxnShard], TxnOutcome[R]], promise: Promise[R], answer: R
    ) -> bool:
        if self.parked_count >= self._parked_max or self._park_ms == 0 or self._broker.stopped:
            return False
        timer = self._broker.scheduler.call_later_ms(
            self._park_ms, lambda: self._expire_parked(transactional_id, parked)
        )
        parked = _Parked(operation, promise, answer, timer)
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

    def _wake(self, live: LiveShard[TxnShard], transactional_id: str) -> None:
        """Runs parked requests again, in their order, for as long as the id stays settled.

        Running one can settle the id once more before it returns; the loop that is at it already goes on then, so
        that many requests parked on one id do not pile up on the stack.
        """
        waiting = self._parked.get(transactional_id)
        if not waiting or transactional_id in self._waking:
            return
        self._waking.add(transactional_id)
        try:
            while waiting and live.shard.is_settled(transactional_id):
                parked = waiting.popleft()
                self.parked_count -= 1
                parked.timer.cancel()
                self._attempt(live, parked.operation, parked.promise)
                if not parked.promise.done and live.shard.is_settled(transactional_id):
                    break  # it parked itself again although nothing is pending: its time limit will answer it
        finally:
            self._waking.discard(transactional_id)
        if not waiting and self._parked.get(transactional_id) is waiting:
            del self._parked[transactional_id]

    # Markers

    def _is_wanted(self, order: SendMarkers) -> bool:
        """Not if its shard was given up. The next load sends markers of its own, in the same epoch if there is no other
        leader, and one that came behind those would end the next transaction.
        """
        if not order.transactional_id:
            return True
        live = self.shards.held(self.partition_of(order.transactional_id))
        return live is not None and live.shard.waits_for(order)

    def _markers_acknowledged(self, order: SendMarkers, partitions: frozenset[TopicPartition]) -> None:
        if not order.transactional_id:
            return  # nobody waits for the end of a transaction that is known to no shard
        live = self._find(order.transactional_id)
        if not isinstance(live, LiveShard):
            return  # the next load of the shard sends the same markers
        outcome = live.shard.markers_acknowledged(order, partitions, self._broker.steady_ms())
        if not outcome.records:
            return

        def logged(result: IdResult) -> None:
            if result.error is not ErrorCode.NONE and not self._broker.stopped:
                # The transaction is decided and marked; only its last record is missing. It is tried until it is in.
                self._broker.scheduler.call_later_ms(RETRY_MS, lambda: self._markers_acknowledged(order, frozenset()))

        self._write(live, outcome, logged)

    def _markers_given_up(self, order: SendMarkers, code: ErrorCode) -> None:
        if not order.transactional_id:
            return
        log.warning("%s", self.shard_of(order.transactional_id).markers_given_up(order, code))

    # What other parts of the broker ask for

    def enlist(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        add: bool,
    ) -> Promise[dict[TopicPartition, KafkaError]]:
        """Adds partitions to a transaction (TV2) or verifies that they were added; promises what was refused."""
        wanted = list(partitions)
        coordinator = self._coordinator_of(transactional_id)
        if self._broker.is_in_cluster and coordinator != self._broker.node_id:
            from oncelog.server.remote_transactions import enlist

            return enlist(self._broker, coordinator, transactional_id, producer, wanted, add=add)

        def operation(shard: TxnShard) -> TxnOutcome[PartitionsResult]:
            if add:
                now_ms = self._broker.steady_ms()
                return shard.add_partitions(transactional_id, producer, wanted, TransactionVersion.TV2, now_ms)
            return shard.verify_partitions(transactional_id, producer, wanted)

        def refusals(result: PartitionsResult) -> dict[TopicPartition, KafkaError]:
            return {
                partition: KafkaError(code, result.reason)
                for partition, code in result.partitions.items()
                if code is not ErrorCode.NONE
            }

        return self.run(transactional_id, operation).map(refusals)

    def _coordinator_of(self, transactional_id: str) -> NodeId:
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, self.partition_of(transactional_id))
        leader = self._broker.metadata.leader_of(partition)
        return NodeId(-1) if leader is None else leader

    def list_transactions(self, wanted: TransactionFilter) -> Steps[list[ListedTransaction]]:
        from oncelog.coordinator.txn.listing import listing_of

        now_ms = self._broker.steady_ms()
        found: list[ListedTransaction] = []
        for live in self.shards.listed():
            for entry in live.shard.entries():
                if wanted.includes(entry, now_ms):
                    found.append(listing_of(entry))
                yield
        return found

    def _size_bytes(self) -> int:
        """An estimate, of ids and of the partitions of their transactions."""
        return sum([live.shard.id_bytes + PARTITION_BYTES * live.shard.enlisted for live in self.shards])

    def _check_partitions_room(self, count: int) -> None:
        if count and self._size_bytes() + PARTITION_BYTES * count > self._id_bytes_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                "transactional ids and the partitions of their transactions would exceed "
                f"oncelog.transactional.ids.max.bytes, {self._id_bytes_max}, at {PARTITION_BYTES} bytes a partition",
            )

    def check_room(self, transactional_id: str) -> None:
        """Raises POLICY_VIOLATION if one id more would be too many, or too long."""
        shards = [live.shard for live in self.shards]
        if any(shard.knows(transactional_id) for shard in shards):
            return
        if sum(shard.id_count for shard in shards) >= self._ids_max:
            reason = f"there are {self._ids_max} transactional ids, as many as oncelog.transactional.ids.max allows"
        elif self._size_bytes() + len(transactional_id) > self._id_bytes_max:
            reason = f"all transactional ids would exceed oncelog.transactional.ids.max.bytes, {self._id_bytes_max}"
        else:
            return
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{reason}; those that nobody uses are forgotten after transactional.id.expiration.ms",
        )

    def count_by_state(self) -> Steps[Counter[str]]:
        total: Counter[str] = Counter()
        for live in self.shards:
            if live.shard.is_loaded:
                total.update(live.shard.count_by_state())
                yield
        return total


def _unparked(operation: Callable[[TxnShard], TxnOutcome[R]]) -> Callable[[TxnShard], TxnOutcome[R]]:
    def run(shard: TxnShard) -> TxnOutcome[R]:
        outcome = operation(shard)
        outcome.wait_for = None
        return outcome

    return run


def _log_failure(result: IdResult) -> None:
    if result.error is not ErrorCode.NONE:
        log.warning("%r: %s %s", result.transactional_id, result.error.name, result.reason)
