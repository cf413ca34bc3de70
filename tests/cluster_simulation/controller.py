"""A controller as a script: what Apache Kafka's controllers decide about one partition, with ELR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from oncelog.cluster.partition_state import PartitionState
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ChangedPartition,
    ChangedTopic,
    PartitionChange,
)
from tests.virtual_clock import VirtualScheduler

SESSION_MS = 3000
NO_LEADER = NodeId(-1)


@dataclass(frozen=True)
class Registration:
    epoch: int
    is_fenced: bool = True
    in_controlled_shutdown: bool = False


class _Move(NamedTuple):
    """A reassignment: it is over when those who join are in sync."""

    adding: NodeId
    removing: NodeId | None = None


class Entry(NamedTuple):
    """The metadata after one change."""

    state: PartitionState
    brokers: dict[int, Registration]


class Controller:
    def __init__(
        self,
        clock: VirtualScheduler,
        random: Random,
        replicas: tuple[NodeId, ...],
        min_isr: int,
        watch: Callable[[Controller], None],
    ) -> None:
        """`watch` is called after every event."""
        self._clock = clock
        self._random = random
        self.min_isr = min_isr
        self._watch = watch
        self._heard_ms: dict[int, int] = {}
        self._next_epoch = 10
        self._incarnations: dict[int, tuple[int, int]] = {}
        self.elr: set[NodeId] = set()
        self._all = replicas
        self._moving: _Move | None = None
        first = PartitionState(NO_LEADER, LeaderEpoch(0), replicas, replicas, 0)
        self.log = [Entry(first, {})]
        clock.call_later_ms(500, self._look_for_silence)

    def receive(self, act: Callable[[], None]) -> None:
        act()
        self._watch(self)

    @property
    def state(self) -> PartitionState:
        return self.log[-1].state

    @property
    def brokers(self) -> dict[int, Registration]:
        return self.log[-1].brokers

    def _write(self, state: PartitionState | None = None, **brokers: Registration) -> None:
        changed = {**self.brokers, **{int(key[1:]): value for key, value in brokers.items()}}
        self.log.append(Entry(state or self.state, changed))

    # Brokers

    def register(self, broker: NodeId, incarnation: int, *, is_unclean: bool) -> int:
        """A process that has not got the answer to its registration gets the same again."""
        known, epoch = self._incarnations.get(broker, (-1, -1))
        if incarnation <= known:
            return epoch
        self._next_epoch += 1
        self._incarnations[broker] = incarnation, self._next_epoch
        self._leave(broker, is_unclean=is_unclean)
        self._write(**{f"b{broker}": Registration(self._next_epoch)})
        self._heard_ms[broker] = self._clock.monotonic_ms()
        return self._next_epoch

    def heartbeat(self, broker: NodeId, epoch: int, applied: int) -> None:
        known = self.brokers.get(broker)
        if known is None or known.epoch != epoch:
            return
        self._heard_ms[broker] = self._clock.monotonic_ms()
        registered = next(i for i, e in enumerate(self.log) if broker in e.brokers and e.brokers[broker].epoch == epoch)
        if known.is_fenced and applied >= registered:
            self._write(**{f"b{broker}": replace(known, is_fenced=False)})
            if self.state.leader == NO_LEADER:
                self._elect()

    def shut_down(self, broker: NodeId, epoch: int) -> None:
        """In order: the broker leads nothing any more and is in sync with nobody, but fetches until it is gone."""
        known = self.brokers.get(broker)
        if known is not None and known.epoch == epoch and not known.is_fenced:
            self._write(**{f"b{broker}": replace(known, in_controlled_shutdown=True)})
            self._leave(broker, is_fenced=False)

    def _look_for_silence(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for broker, known in list(self.brokers.items()):
            if not known.is_fenced and now_ms - self._heard_ms[broker] > SESSION_MS:
                self._leave(NodeId(broker))
                self._write(**{f"b{broker}": replace(known, is_fenced=True)})
        self._watch(self)
        self._clock.call_later_ms(500, self._look_for_silence)

    # The partition

    def _change(self, in_sync: tuple[NodeId, ...], leader: NodeId | None = None) -> None:
        """With a leader, even the same one, the leader epoch grows."""
        old = self.state
        if len(in_sync) >= min(self.min_isr, len(old.replicas)):
            self.elr = set()
        else:
            self.elr = (self.elr | set(old.in_sync)) - set(in_sync)
        state = replace(old, in_sync=in_sync, partition_epoch=old.partition_epoch + 1)
        if leader is not None:
            state = replace(state, leader=leader, leader_epoch=LeaderEpoch(old.leader_epoch + 1))
        self._write(state)

    def _leave(self, broker: NodeId, *, is_unclean: bool = False, is_fenced: bool = True) -> None:
        """Out of the ISR; what is known to have lost its end is no candidate for anything either."""
        known = self.brokers.get(broker)
        if known is not None and is_fenced:
            self._write(**{f"b{broker}": replace(known, is_fenced=True)})
        state = self.state
        if broker in state.in_sync:
            self._change(tuple(replica for replica in state.in_sync if replica != broker))
        if is_unclean:
            self.elr.discard(broker)
        if state.leader in (broker, NO_LEADER):
            self._elect(must_change=state.leader == broker)

    def _alive(self, broker: NodeId) -> bool:
        known = self.brokers.get(broker)
        return known is not None and not known.is_fenced and not known.in_controlled_shutdown

    def _elect(self, *, must_change: bool = False) -> None:
        state = self.state
        in_sync = [replica for replica in state.replicas if replica in state.in_sync and self._alive(replica)]
        eligible = [replica for replica in state.replicas if replica in self.elr and self._alive(replica)]
        if in_sync:
            self._change(state.in_sync, in_sync[0])
        elif eligible and not state.in_sync:
            self._change((eligible[0],), eligible[0])
        elif must_change:
            self._change(state.in_sync, NO_LEADER)

    def move_leader(self) -> None:
        """As a preferred election does; also to the leader itself."""
        candidates = [replica for replica in self.state.in_sync if self._alive(replica)]
        if candidates and self.state.leader != NO_LEADER:
            self._change(self.state.in_sync, self._random.choice(candidates))
        self._watch(self)

    # Who keeps it

    def move_replica(self) -> None:
        """One is taken away, or one comes back, perhaps in the place of another; or what was begun is given up."""
        state, random = self.state, self._random
        away = [replica for replica in self._all if replica not in state.replicas]
        if self._moving is not None:
            self._give_up(self._moving)
        elif not away:
            self._take_away(random.choice(state.replicas))
        elif random.random() < 0.5:
            self._begin(_Move(away[0], random.choice(state.replicas)))
        else:
            self._begin(_Move(away[0]))
        self._watch(self)

    def bring_back(self) -> None:
        """Everybody is to keep it. Where that is so nothing is written: metadata would end proposals that were lost."""
        self._moving = None
        if set(self.state.replicas) != set(self._all):
            self._write(self._with_replicas(self._all))

    def _with_replicas(self, replicas: tuple[NodeId, ...]) -> PartitionState:
        return replace(self.state, replicas=replicas, partition_epoch=self.state.partition_epoch + 1)

    def _begin(self, move: _Move) -> None:
        self._moving = move
        self._write(self._with_replicas((*self.state.replicas, move.adding)))

    def _give_up(self, move: _Move) -> None:
        """Only while the one that joins is not in sync."""
        self._moving = None
        if self.state.leader != move.adding:
            self._take_away(move.adding)

    def _complete(self, move: _Move) -> None:
        """If somebody has to go, in one change with the end of it, and the leader epoch grows."""
        self._moving = None
        if move.removing is not None:
            self._take_away(move.removing)

    def _take_away(self, replica: NodeId) -> None:
        """Not if nobody is left who could lead."""
        state = self.state
        left = tuple(each for each in state.in_sync if each != replica)
        alive = [each for each in left if self._alive(each)]
        if not alive or state.leader == NO_LEADER:
            return
        leader = state.leader if state.leader in alive else alive[0]
        self._change(left, leader)
        self.elr.discard(replica)
        self.log[-1] = self.log[-1]._replace(
            state=replace(self.state, replicas=tuple(each for each in state.replicas if each != replica))
        )

    def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        sender = self.brokers.get(request.broker_id)
        if sender is None or sender.epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        if self._random.random() < 0.2:
            # As one that is not active yet, or not any more.
            return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
        topic = request.topics[0]
        wanted = topic.partitions[0]
        code = self._refusal(request.broker_id, wanted)
        if code == ErrorCode.NONE:
            self._change(tuple(NodeId(member.broker_id) for member in wanted.new_isr_with_epochs))
            if self._moving is not None and self._moving.adding in self.state.in_sync:
                self._complete(self._moving)
            if self.state.leader != request.broker_id:
                code = ErrorCode.NEW_LEADER_ELECTED
        state = self.state
        answer = ChangedPartition(
            error_code=code,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.in_sync),
            partition_epoch=state.partition_epoch,
        )
        return AlterPartitionResponse(topics=[ChangedTopic(topic_id=topic.topic_id, partitions=[answer])])

    def _refusal(self, sender: int, wanted: PartitionChange) -> ErrorCode:
        state = self.state
        if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if sender != state.leader:
            return ErrorCode.INVALID_REQUEST
        if wanted.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        members = [NodeId(member.broker_id) for member in wanted.new_isr_with_epochs]
        if sender not in members or not set(members) <= set(state.replicas):
            return ErrorCode.INVALID_REQUEST
        for member in wanted.new_isr_with_epochs:
            known = self.brokers.get(member.broker_id)
            if known is None or not self._alive(NodeId(member.broker_id)):
                return ErrorCode.INELIGIBLE_REPLICA
            if member.broker_epoch not in (-1, known.epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE
