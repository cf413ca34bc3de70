"""One history: three controllers that append, snapshot and resign, under faults drawn from a seed."""

from __future__ import annotations

from functools import partial
from random import Random
from unittest.mock import patch

from oncelog.cluster import committed_log, zookeeper_appends
from oncelog.cluster.committed_log import Snapshot
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import NO_OWNER, Delete
from oncelog.cluster.zookeeper_log import ZooKeeperMetadataLog
from oncelog.cluster.zookeeper_nodes import CONTROLLER, LOG, SNAPSHOTS
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from tests.metadata_log_simulation.fake_zookeeper import SESSION_MS, Ensemble, FakeZooKeeper, Process
from tests.metadata_log_simulation.judge import Judge
from tests.unit.cluster.metadata_log import ImageKeeper, setting, snapshot_of, voters
from tests.virtual_clock import VirtualScheduler

NODES = (1, 2, 3)
FAULTY_MS = 40_000
HEALED_MS = 20_000
STEP_MS = 40
BATCH_BYTES_MAX = 300
LARGE = 0.1
"""How many appends are followed by one that needs several batches, in a metadata transaction, and several multis."""
LARGE_VALUES = 12
KEPT_MAX = 6
"""The last node before the snapshot, and at most five that were appended since."""


class Controller(ImageKeeper):
    """What a controller does with the log, and what the judge sees of it."""

    def __init__(self, history: History, node_id: int) -> None:
        super().__init__()
        self.node_id = node_id
        self.process = Process(history.scheduler)
        self.zookeeper = FakeZooKeeper(history.ensemble, self.process)
        self.log = ZooKeeperMetadataLog(
            self.zookeeper,
            node_id=node_id,
            address=Address("127.0.0.1", 9000 + node_id),
            scheduler=self.process,
            voters=voters(*NODES),
        )
        self.waiting: list[Promise[int | KafkaError]] = []
        self._judge = history.judge
        self.log.start(self)
        self.log.campaign()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._judge.on_snapshot(snapshot)
        super().on_snapshot(snapshot)

    def on_committed(self, batch: bytes) -> None:
        self._judge.on_batch(batch)
        super().on_committed(batch)

    def on_leader(self, leader: Leader | None) -> None:
        if leader is not None and leader.node_id == self.node_id:
            assert self.log.is_active
            self._judge.on_active(leader)
        super().on_leader(leader)

    def append(self, *values: str) -> None:
        self._judge.on_append(values)
        promise = self.log.append([setting(value, topic=f"topic-{len(value) % 5}") for value in values])
        self.waiting.append(promise)
        promise.then(partial(self._answered, values))

    def _answered(self, values: tuple[str, ...], result: int | KafkaError) -> None:
        if isinstance(result, int):
            self._judge.on_confirmed(values, result)
            assert self.end_offset > result, "kept: answered before the controller itself has it"
        elif result.code is ErrorCode.NOT_CONTROLLER:
            self._judge.refused.update(values)

    def snapshot(self) -> None:
        if self.log.is_active and not self.replay.is_in_transaction:
            self.log.write_snapshot(snapshot_of(self.log.committed, self.image))


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scheduler = VirtualScheduler()
        self.ensemble = Ensemble(self.scheduler, self.random)
        self.judge = Judge(self.ensemble)
        self.controllers = {node_id: Controller(self, node_id) for node_id in NODES}
        self._paused: set[int] = set()
        self._values = 0

    def play(self) -> None:
        small = partial(patch.object, attribute="BATCH_BYTES_MAX", new=BATCH_BYTES_MAX)
        with small(committed_log), small(zookeeper_appends), self.judge.listening():
            self._play()

    def _play(self) -> None:
        for _ in range(FAULTY_MS // STEP_MS):
            self._step()
            self.scheduler.advance_ms(self.random.randint(1, 2 * STEP_MS))
        self._heal()
        self.scheduler.advance_ms(HEALED_MS)
        # The last fault is one after which the session goes on, and with it the node of whoever is in office.
        for controller in self.controllers.values():
            controller.zookeeper.cut()
        self.scheduler.advance_ms(HEALED_MS)
        self._check_end()

    def _step(self) -> None:
        controller = self.random.choice(list(self.controllers.values()))
        draw = self.random.random()
        if draw < 0.80:
            self._append_where_active()
        elif draw < 0.85:
            for each in self.controllers.values():
                if each.node_id not in self._paused:
                    each.snapshot()
        elif draw < 0.87:
            self._depose()
        elif draw < 0.89:
            controller.zookeeper.cut()
        elif draw < 0.91:
            controller.zookeeper.mute()
        elif draw < 0.93:
            controller.zookeeper.isolate()
            self.scheduler.call_later_ms(self.random.randint(100, 6000), controller.zookeeper.heal)
        elif draw < 0.95:
            self._pause(controller)
        elif draw < 0.965:
            if controller.node_id not in self._paused:
                controller.log.resign()
                controller.log.campaign()
        elif draw < 0.985:
            self._kill(controller)
        elif self.ensemble.is_up:
            self.ensemble.stop()
            self.scheduler.call_later_ms(self.random.randint(50, 3000), self.ensemble.start)

    def _depose(self) -> None:
        """As an operator does to have another controller elected. The one in office works on until it notices."""
        self.ensemble.commit([Delete(CONTROLLER)], NO_OWNER)
        for delay_ms in range(0, 120, 3):
            self.scheduler.call_later_ms(delay_ms, self._append_where_active)

    def _append_where_active(self) -> None:
        for each in self.controllers.values():
            if each.log.is_active and each.node_id not in self._paused:
                self._append(each)
                if self.random.random() < LARGE:
                    each.append(*(self._value() for _ in range(LARGE_VALUES)))

    def _append(self, controller: Controller) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5))):
            controller.append(self._value())

    def _value(self) -> str:
        self._values += 1
        return f"value-{self._values}-"

    def _pause(self, controller: Controller) -> None:
        if controller.node_id in self._paused:
            return
        self._paused.add(controller.node_id)
        controller.process.pause()
        self.scheduler.call_later_ms(self.random.randint(100, 8000), lambda: self._resume(controller))

    def _resume(self, controller: Controller) -> None:
        if self.controllers[controller.node_id] is controller:
            self._paused.discard(controller.node_id)
        controller.process.resume()

    def _kill(self, controller: Controller) -> None:
        """kill -9, and a new process at once: the old session is still there."""
        self._paused.discard(controller.node_id)
        controller.process.kill()
        controller.zookeeper.kill()
        self.controllers[controller.node_id] = Controller(self, controller.node_id)

    def _heal(self) -> None:
        self.ensemble.start()
        for controller in self.controllers.values():
            controller.zookeeper.heal()
            self._resume(controller)

    def _check_end(self) -> None:
        active = [controller for controller in self.controllers.values() if controller.log.is_active]
        assert len(active) == 1, f"liveness: {len(active)} active controllers"
        self._write_while_one_sleeps(active[0])
        self._append(active[0])
        self.scheduler.advance_ms(5000)
        self.judge.check()
        end = self.judge.image_at(1 << 62)
        for controller in self.controllers.values():
            assert all(promise.done for promise in controller.waiting), "liveness: an append was never answered"
            assert controller.image == end, "liveness: a controller has not read to the end"
            assert controller.log.leader == active[0].log.leader, "liveness: who is active is not known"
        assert isinstance(active[0].waiting[-1].value, int), "liveness: nothing can be appended"
        self._check_garbage()

    def _write_while_one_sleeps(self, active: Controller) -> None:
        """Too short for its session to end: it must notice by itself that the log was cut."""
        sleeper = next(controller for controller in self.controllers.values() if controller is not active)
        sleeper.process.pause()
        self._append(active)
        self.scheduler.advance_ms(SESSION_MS // 4)
        active.snapshot()
        self.scheduler.advance_ms(SESSION_MS // 2)
        sleeper.process.resume()
        self.scheduler.advance_ms(5000)

    def _check_garbage(self) -> None:
        paths = self.ensemble.paths()
        count = sum(path.startswith(f"{LOG}/") for path in paths)
        assert count <= KEPT_MAX, "liveness: the log was not cut"
        snapshots = {path.split("/")[2] for path in paths if path.startswith(f"{SNAPSHOTS}/")}
        assert len(snapshots) == 1, f"liveness: snapshots that nobody needs are left: {snapshots}"
