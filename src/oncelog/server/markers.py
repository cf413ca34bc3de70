"""Writing transaction markers: per destination, retried until done or pointless.

The coordinator's decision is in its log when `send` is called, so nothing here may lose it: a partition whose leader
cannot be reached stays in the queue and is tried again. The queue is kept by broker, with a place for partitions
whose leader is unknown. Markers for partitions that this broker leads go through the same append path as everybody's
batches. Another broker gets everything that waits for it in one WriteTxnMarkers, one of them at a time.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Never

from oncelog.cluster.partition import Partition
from oncelog.coordinator.txn.markers import MarkerReaction, reaction_to
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.failpoints import hit
from oncelog.core.ids import GROUP_METADATA_TOPIC, NodeId, TopicPartition
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.turns import SLICE_MS

if TYPE_CHECKING:
    from oncelog.coordinator.txn.effects import SendMarkers
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.transactions")

RETRY_MS: Final = 100
MARKERS_PER_STEP: Final = 5
_UNKNOWN_LEADER: Final = NodeId(-1)

Acknowledge = Callable[["SendMarkers", frozenset[TopicPartition]], None]
GiveUp = Callable[["SendMarkers", ErrorCode], None]


class MarkerSender:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[NodeId, dict[SendMarkers, set[TopicPartition]]] = {}
        self._sent: dict[NodeId, dict[SendMarkers, set[TopicPartition]]] = {}
        """On their way to other brokers."""
        self._retry_pending = False
        self._drain_pending = False
        self._errors = RepeatedErrors(log, logging.WARNING)
        self.is_wanted: Callable[[SendMarkers], bool] = _not_connected
        """Asked of an order that goes into a queue: it may have been in none when its like were withdrawn."""
        self.on_acknowledged: Acknowledge = _not_connected
        self.on_given_up: GiveUp = _not_connected

    @property
    def queued_count(self) -> int:
        queues = [*self._queues.values(), *self._sent.values()]
        return sum(len(partitions) for queue in queues for partitions in queue.values())

    def send(self, order: SendMarkers) -> None:
        if not order.partitions:
            self.on_acknowledged(order, frozenset())
            return
        self._enqueue(order, order.partitions)
        self._drain()

    def withdraw(self, is_withdrawn: Callable[[SendMarkers], bool]) -> None:
        """Forget markers that wait to be sent: the next load of their transactions sends them again."""
        for queue in [*self._queues.values(), *self._sent.values()]:
            for order in [order for order in queue if is_withdrawn(order)]:
                del queue[order]

    def _enqueue(self, order: SendMarkers, partitions: Iterable[TopicPartition]) -> None:
        if not self.is_wanted(order):
            return
        gone: set[TopicPartition] = set()
        for partition in partitions:
            leader = self._broker.metadata.leader_of(partition)
            if leader is None:
                # The topic was deleted: there is nothing to write to, and the transaction may complete.
                gone.add(partition)
            else:
                self._queues.setdefault(leader, {}).setdefault(order, set()).add(partition)
        if gone:
            log.info(
                "transaction of %r (producer %d): %s no longer exist, no marker is needed there",
                order.transactional_id, order.producer_id, ", ".join(map(str, sorted(gone))),
            )  # fmt: skip
            self.on_acknowledged(order, frozenset(gone))

    def _drain(self) -> None:
        for node, queue in list(self._queues.items()):
            if queue and node not in (self._broker.node_id, _UNKNOWN_LEADER) and node not in self._sent:
                self._send_remote(node, queue)
        if self._queues.get(_UNKNOWN_LEADER):
            self._retry_later()
        self._drain_local()

    def _drain_local(self) -> None:
        scheduler = self._broker.scheduler
        end_ms = scheduler.monotonic_ms() + SLICE_MS
        local = self._queues.get(self._broker.node_id)
        while local:
            if scheduler.monotonic_ms() >= end_ms:
                self._drain_later()
                return
            order = next(iter(local))
            partitions = local.pop(order)
            self._write_local(order, partitions)
            if partitions and self.is_wanted(order):
                local.setdefault(order, set()).update(partitions)

    def _drain_later(self) -> None:
        if not self._drain_pending:
            self._drain_pending = True
            self._broker.later(0, self._go_on_draining)

    def _go_on_draining(self) -> None:
        self._drain_pending = False
        self._drain_local()

    def _write_local(self, order: SendMarkers, partitions: set[TopicPartition]) -> None:
        """Some of the partitions, which are taken out."""
        for partition in sorted(itertools.islice(partitions, MARKERS_PER_STEP)):
            partitions.discard(partition)
            hit("txn.marker.before_write")
            self.write(order, partition, lambda code, where=partition: self._settle(order, where, code))  # type: ignore[misc]

    def _send_remote(self, node: NodeId, queue: dict[SendMarkers, set[TopicPartition]]) -> None:
        """One order per producer id: answers are told apart by it."""
        from oncelog.server.remote_transactions import write_markers

        chosen = {order.producer_id: order for order in reversed(queue)}
        sent = self._sent[node] = {order: queue.pop(order) for order in chosen.values()}
        write_markers(self._broker, node, sent).then(lambda answer: self._on_answer(node, answer))

    def _on_answer(self, node: NodeId, answer: Mapping[tuple[int, TopicPartition], ErrorCode] | KafkaError) -> None:
        sent = self._sent.pop(node)
        if isinstance(answer, KafkaError):
            self._errors.report(node, "markers could not be sent to broker %d and are sent again: %s", node, answer)
            answer = {}
        else:
            self._errors.clear(node)
        for order, partitions in sent.items():
            for partition in sorted(partitions):
                code = answer.get((order.producer_id, partition), ErrorCode.NETWORK_EXCEPTION)
                self._settle(order, partition, code)
        self._drain()

    def _settle(self, order: SendMarkers, partition: TopicPartition, code: ErrorCode) -> None:
        match reaction_to(code):
            case MarkerReaction.ACKNOWLEDGE | MarkerReaction.DROP:
                self.on_acknowledged(order, frozenset({partition}))
            case MarkerReaction.GIVE_UP:
                log.warning(
                    "the marker of %r (producer %d, epoch %d) for %s is given up: %s",
                    order.transactional_id, order.producer_id, order.producer_epoch, partition, code.name,
                )  # fmt: skip
                self.on_given_up(order, code)
            case MarkerReaction.RETRY | MarkerReaction.BUG:
                # Kafka stops after a bug, and its readers wait until somebody restarts the coordinator.
                self._queues.setdefault(_UNKNOWN_LEADER, {}).setdefault(order, set()).add(partition)
                self._retry_later()

    def _retry_later(self) -> None:
        if not self._retry_pending:
            self._retry_pending = True
            self._broker.scheduler.call_later_ms(RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._retry_pending = False
        if self._broker.stopped:
            return
        waiting = self._queues.pop(_UNKNOWN_LEADER, {})
        for order, partitions in waiting.items():
            self._enqueue(order, partitions)
        self._drain()

    def write(self, order: SendMarkers, where: TopicPartition, done: Callable[[ErrorCode], None]) -> None:
        """Appends the marker to a partition of this broker and calls `done` with its error code once it is committed.

        Also serves WriteTxnMarkers.
        """
        try:
            partition, offset = self._append(order, where)
        except KafkaError as error:
            self._errors.report(where, "a marker for %s is refused: %s", where, error)
            done(error.code)
            return
        except Exception:  # noqa: BLE001  whatever it is concerns this partition only, others wait for their markers
            self._errors.report(where, "a marker for %s could not be written", where, exc_info=True)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._errors.clear(where)

        def committed(error: KafkaError | None) -> None:
            if error is None and where.topic == GROUP_METADATA_TOPIC:
                self._broker.groups.complete_transaction(where.partition, order.producer_id, commit=order.commit)
            done(ErrorCode.NONE if error is None else error.code)

        partition.committed(offset).then(committed)

    def _append(self, order: SendMarkers, where: TopicPartition) -> tuple[Partition, int]:
        broker = self._broker
        partition = broker.partitions.get(where.topic, where.partition)
        if where.topic == GROUP_METADATA_TOPIC and not broker.groups.is_ready(where.partition):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its groups are being loaded")
        info = partition.append_marker(
            commit=order.commit,
            producer_id=order.producer_id,
            producer_epoch=order.producer_epoch,
            coordinator_epoch=order.coordinator_epoch,
            transaction_version=order.transaction_version,
            now_ms=broker.now_ms(),
        )
        return partition, info.last_offset


def _not_connected(*_: object) -> Never:
    raise RuntimeError("the marker sender was used before a transaction coordinator was connected to it")
