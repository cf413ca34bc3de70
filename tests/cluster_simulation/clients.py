"""Clients that write, repeat what was not acknowledged, and tell the judge what was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.storage.append_info import AppendInfo
from tests.cluster_simulation.broker import Process, as_process
from tests.cluster_simulation.network import CLIENTS, Reply
from tests.unit.storage.log_harness import batch

if TYPE_CHECKING:
    from tests.cluster_simulation.history import World

TIMEOUT_MS = 1500


class Writer:
    """One batch after the other; each is sent until it is acknowledged, to whoever is believed to lead."""

    def __init__(self, world: World, pid: int) -> None:
        self.world = world
        self.pid = pid
        self.epoch = 0
        self.sequence = 0
        self.attempt = 0
        self.leader = -1
        self.is_waiting = False

    def receive(self, act: Callable[[], None]) -> None:
        act()

    def start(self) -> None:
        self.next()

    def next(self) -> None:
        self.is_waiting = False
        if not self.world.is_healing:
            self.world.clock.call_later_ms(self.world.random.randrange(1, 80), self.begin)

    def begin(self) -> None:
        self.is_waiting = True
        self.send()

    def send(self) -> None:
        self.attempt += 1
        attempt, value = self.attempt, self.value
        self.leader = self._believed_leader()
        self.world.network.call(
            self, (CLIENTS, self.leader), self._at_broker(value), lambda answer: self._answered(attempt, value, answer),
            lambda: self._retry(attempt),
        )  # fmt: skip
        self.world.clock.call_later_ms(TIMEOUT_MS, lambda: self._retry(attempt))

    def _believed_leader(self) -> int:
        """Sometimes one that led before."""
        random, states = self.world.random, self.world.controller.log
        old = states[max(0, len(states) - random.randrange(1, 6))].state.leader
        return old if random.random() < 0.2 else self.world.controller.state.leader

    @property
    def value(self) -> bytes:
        return b"%d/%d/%d" % (self.pid, self.epoch, self.sequence)

    def _at_broker(self, value: bytes) -> Callable[[object, Reply], None]:
        def handle(node: object, reply: Reply) -> None:
            process = as_process(node)  # type: ignore[arg-type]
            try:
                info = self.append(process, value)
            except KafkaError as error:
                reply(error)
                return
            assert process.partition is not None
            offset = info.first_offset
            process.partition.committed(info.last_offset).then(lambda error: reply(error or offset))

        return handle

    def append(self, process: Process, value: bytes) -> AppendInfo:
        return append(process, batch(value=value, producer_id=self.pid, producer_epoch=0,
                                     base_sequence=int(value.rpartition(b"/")[2])))  # fmt: skip

    def _retry(self, attempt: int) -> None:
        if attempt == self.attempt and self.is_waiting:
            self.attempt += 1
            self.world.clock.call_later_ms(self.world.random.randrange(20, 200), self.send)

    def _answered(self, attempt: int, value: bytes, answer: KafkaError | int) -> None:
        if isinstance(answer, KafkaError):
            self._retry(attempt)
            return
        self.world.judge.on_acknowledged(answer, value)
        if self.is_waiting and value == self.value:
            self.attempt += 1
            self.sequence += 1
            self.on_acknowledged()

    def on_acknowledged(self) -> None:
        self.next()


def append(
    process: Process, data: bytes, *, acks: int = -1, transaction: tuple[int, int, int] | None = None
) -> AppendInfo:
    partition = process.partition
    if partition is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition.check_leads()
    now_ms = process.world.clock.now_ms()
    guard = None
    if transaction is not None:
        pid, epoch, sequence = transaction
        state = partition.log.producer_state
        guard = state.start_verification(pid, epoch, sequence, supports_epoch_bump=True, now_ms=now_ms)
    info = partition.append_as_leader(data, now_ms=now_ms, required_acks=acks, guard=guard)
    if not info.duplicate:
        process.world.judge.on_append(process.node, partition.leader_epoch)
    return info


class TransactionalWriter(Writer):
    """Each transaction has an epoch of its own, some batches and a marker, which it also writes."""

    def __init__(self, world: World, pid: int) -> None:
        super().__init__(world, pid)
        self.batches = 2
        self.commits = True

    @property
    def is_ending(self) -> bool:
        return self.sequence == self.batches

    @property
    def value(self) -> bytes:
        return b"marker/%d/%d" % (self.pid, self.epoch) if self.is_ending else super().value

    def append(self, process: Process, value: bytes) -> AppendInfo:
        """What belongs to a transaction that is over is refused, as verification with the coordinator does."""
        if value != self.value:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        if not self.is_ending:
            data = batch(value=value, producer_id=self.pid, producer_epoch=self.epoch, base_sequence=self.sequence,
                         transactional=True)  # fmt: skip
            return append(process, data, transaction=(self.pid, self.epoch, self.sequence))
        partition = process.partition
        if partition is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.check_leads()
        info = partition.append_marker(
            commit=self.commits,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            coordinator_epoch=0,
            transaction_version=0,
            now_ms=self.world.clock.now_ms(),
        )
        self.world.judge.on_append(process.node, partition.leader_epoch)
        return info

    def _answered(self, attempt: int, value: bytes, answer: KafkaError | int) -> None:
        is_marker = value.startswith(b"marker")
        if is_marker and not isinstance(answer, KafkaError):
            if self.is_waiting and value == self.value:
                self.attempt += 1
                self.epoch += 1
                self.sequence = 0
                self.batches, self.commits = self.world.random.randrange(1, 5), self.world.random.random() < 0.6
                self.next()
            return
        super()._answered(attempt, value, answer)

    def on_acknowledged(self) -> None:
        """A transaction is always brought to its end."""
        self.world.clock.call_later_ms(self.world.random.randrange(1, 80), self.begin)
        self.is_waiting = False

    @property
    def is_open(self) -> bool:
        return self.is_waiting or self.sequence > 0


class CarelessWriter:
    """acks=1: what it writes may be lost, and diverges on leaders that nobody follows any more."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self) -> None:
        if self.world.is_healing:
            return
        process = self.world.machines[self.world.random.choice(list(self.world.machines))].process
        if process is not None:
            process.receive(lambda: self._write(process))
        self.world.clock.call_later_ms(self.world.random.randrange(20, 300), self.start)

    def _write(self, process: Process) -> None:
        try:
            append(process, batch(self.world.random.randrange(1, 4), value=b"careless"), acks=1)
        except KafkaError:
            return
