"""One history: a world, what happens to it, and whether every promise was kept."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random

from oncelog.core.errors import KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.invariant import InvariantError
from tests.cluster_simulation.broker import MIN_ISR, Machine, Process
from tests.cluster_simulation.clients import CarelessWriter, TransactionalWriter, Writer
from tests.cluster_simulation.controller import Controller
from tests.cluster_simulation.judge import Judge, PromiseBroken
from tests.cluster_simulation.network import CONTROLLER, Network
from tests.virtual_clock import VirtualScheduler

BROKERS = (NodeId(1), NodeId(2), NodeId(3))
LENGTH_MS = 30_000
HEALING_MS = 60_000
THEMES = ("mixed", "elections", "power", "moves")
"""Of a history, by its seed."""
_PAUSES_MS = {"mixed": (200, 4000), "elections": (20, 1200), "power": (200, 3000), "moves": (200, 2500)}


@dataclass
class Tally:
    """What a history has seen, so that a test can tell whether histories are worth anything."""

    committed: int = 0
    acknowledged: int = 0
    leader_epochs: int = 0
    truncations: int = 0
    compared_states: int = 0


@dataclass
class Failure:
    promise: str
    text: str


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.clock = VirtualScheduler()
        self.theme = THEMES[seed % len(THEMES)]
        self.with_fsync = self.theme == "power" or self.random.random() < 0.3
        self.deletes = self.random.random() < 0.4
        self.judge = Judge()
        self.network = Network(self.clock, self.random)
        self.controller = Controller(
            self.clock,
            self.random,
            BROKERS,
            MIN_ISR,
            lambda controller: self.judge.observe_metadata(controller, self.processes),
        )
        self.network.nodes[CONTROLLER] = self.controller
        self.machines = {node: Machine(node, folder) for node in BROKERS}
        self.writers = [Writer(self, 1), Writer(self, 2), TransactionalWriter(self, 11), TransactionalWriter(self, 12)]
        self.is_healing = False
        self.tally = Tally()
        move = self.controller.move_leader
        mixed = [self._kill, self._cut_off, move] * 2
        self._faults = {
            "mixed": [*mixed, self._cut_power, self._pause, self._separate, self._delete_records, self._inspect],
            "elections": [*[move] * 8, self._separate, self._pause, self._kill, self._inspect],
            "power": [*[self._cut_power] * 4, *[move] * 3, self._separate],
            "moves": [
                *[self.controller.move_replica] * 4, *[self._expire] * 2, *[self._stop] * 2,
                move, self._kill, self._pause, self._cut_off, self._separate, self._delete_records, self._inspect,
            ],
        }  # fmt: skip
        self._unclean: set[NodeId] = set()
        """Brokers that have lost something and were not in sync since."""

    @property
    def processes(self) -> list[Process]:
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def play(self) -> None:
        for node in BROKERS:
            self._start(node)
        for writer in (*self.writers, CarelessWriter(self)):
            writer.start()
        self.clock.call_later_ms(2000, self._strike)
        self.clock.advance_ms(LENGTH_MS)
        self._heal()
        self.judge.check_end(self.processes)
        self.tally.committed = len(self.judge.committed)
        self.tally.acknowledged = len(self.judge.acknowledged)
        self.tally.truncations = self.judge.truncations
        self.tally.leader_epochs = self.controller.state.leader_epoch

    # Faults

    def _strike(self) -> None:
        if self.is_healing:
            return
        self.random.choice(self._faults[self.theme])()
        self.clock.call_later_ms(self.random.randrange(*_PAUSES_MS[self.theme]), self._strike)

    def _start(self, node: NodeId) -> None:
        if self.machines[node].process is None:
            process = self.machines[node].process = Process(self, self.machines[node])
            process.start()

    def _end(self, node: NodeId, *, has_power: bool) -> None:
        self.network.nodes.pop(node, None)
        self.machines[node].end_process(keep=None if has_power else self.random.randint)
        self.clock.call_later_ms(self.random.choice([50, 300, 1500, 5000]), lambda: self._start(node))

    def _kill(self) -> None:
        running = [process.node for process in self.processes]
        if running:
            self._end(self.random.choice(running), has_power=True)

    def _stop(self) -> None:
        """In order: the controller is asked first."""
        process = self.random.choice(self.processes) if self.processes else None
        if process is None or process.broker_epoch < 0:
            return
        self.controller.receive(lambda: self.controller.shut_down(process.node, process.broker_epoch))
        self.clock.call_later_ms(self.random.randrange(50, 1000), lambda: self._end_in_order(process))

    def _end_in_order(self, process: Process) -> None:
        node = process.node
        if self.machines[node].process is process:
            self.network.nodes.pop(node, None)
            self.machines[node].end_process(clean=True)
            self.clock.call_later_ms(self.random.choice([50, 300, 1500]), lambda: self._start(node))

    def _cut_power(self) -> None:
        in_sync = self.controller.state.in_sync
        if len(in_sync) >= MIN_ISR:
            self._unclean -= {node for node in in_sync if not self.machines[node].is_unclean}
        running = [process.node for process in self.processes]
        if not running:
            return
        node = self.random.choice(running)
        if not self.with_fsync:
            if self._unclean - {node} or len(self._unclean) >= MIN_ISR - 1:
                return
            self._unclean.add(node)
            self.machines[node].is_unclean = True
        self._end(node, has_power=False)

    def _pause(self) -> None:
        if self.processes:
            process = self.random.choice(self.processes)
            longest_ms = 800 if self.theme == "elections" else 6000
            process.paused_until_ms = self.clock.monotonic_ms() + self.random.randrange(100, longest_ms)

    def _cut_off(self) -> None:
        """A broker from the controller, from all brokers, or from everybody but clients."""
        node = self.random.choice(BROKERS)
        others = [other for other in BROKERS if other != node]
        peers = self.random.choice([[CONTROLLER], others, [CONTROLLER, *others]])
        self._cut([frozenset((node, peer)) for peer in peers])

    def _separate(self) -> None:
        first, second = self.random.sample(BROKERS, 2)
        self._cut([frozenset((first, second))])

    def _cut(self, pairs: list[frozenset[int]]) -> None:
        self.network.cuts.update(pairs)
        duration_ms = self.random.randrange(200, 1500 if self.theme == "elections" else 8000)
        self.clock.call_later_ms(duration_ms, lambda: self.network.cuts.difference_update(pairs))

    def _delete_records(self) -> None:
        process = self.machines[self.controller.state.leader].process if self.controller.state.leader > 0 else None
        if process is not None and self.deletes:
            process.receive(lambda: self._delete_at(process))

    def _delete_at(self, process: Process) -> None:
        partition = process.partition
        if partition is not None and partition.is_leader:
            partition.log.delete_records(self.random.randint(partition.log_start_offset, partition.high_watermark))

    def _expire(self) -> None:
        """Retention, which every replica does for itself."""
        process = self.random.choice(self.processes) if self.processes else None
        if process is not None:
            process.receive(lambda: self._expire_at(process))

    def _expire_at(self, process: Process) -> None:
        partition = process.partition
        if partition is None:
            return
        starts = [each.base_offset for each in partition.log.segments if each.base_offset <= partition.high_watermark]
        if starts:
            partition.log.delete_records(self.random.choice(starts))

    def _inspect(self) -> None:
        self.tally.compared_states += self.judge.compare_states(self.processes)

    # The end

    def _heal(self) -> None:
        self.is_healing = True
        self.network.cuts.clear()
        self.network.loss = 0.0
        self.controller.bring_back()
        for _ in range(HEALING_MS // 500):
            self.clock.advance_ms(500)
            self._inspect()
            if self._is_healed():
                return
        raise PromiseBroken("liveness", self._situation())

    def _is_healed(self) -> bool:
        partitions = [process.partition for process in self.processes if process.partition is not None]
        return (
            len(partitions) == len(BROKERS)
            and set(self.controller.state.in_sync) == set(BROKERS)
            and len({partition.log_end_offset for partition in partitions}) == 1
            and all(partition.high_watermark == partition.log_end_offset for partition in partitions)
            and not any(writer.is_waiting for writer in self.writers)
            and not any(writer.is_open for writer in self.writers if isinstance(writer, TransactionalWriter))
        )

    def _situation(self) -> str:
        replicas = [
            (process.node, process.partition and (process.partition.role.name, process.partition.high_watermark,
                                                  process.log, process.partition.leader_epoch))
            for process in self.processes
        ]  # fmt: skip
        waiting = [(writer.value, writer.is_waiting) for writer in self.writers]
        return f"{self.controller.state} {self.controller.elr} {self.controller.brokers} {replicas} {waiting}"


def play(seed: int) -> tuple[Tally, Failure | None]:
    folder = Path(tempfile.mkdtemp(prefix="oncelog-cluster-"))
    world = World(seed, folder)
    failure: Failure | None = None
    try:
        world.play()
    except PromiseBroken as broken:
        failure = Failure(broken.name, f"history {seed}: {broken}")
    except (AssertionError, InvariantError, KafkaError, OSError, LookupError, TypeError, ValueError) as error:
        failure = Failure("no-error", f"history {seed}: {error!r}\n{traceback.format_exc()}")
    finally:
        for machine in world.machines.values():
            machine.end_process()
        shutil.rmtree(folder)
    return world.tally, failure
