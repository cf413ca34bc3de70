"""Controllers, brokers and an operator, on a network that loses messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from oncelog.cluster.cluster_config import FEATURES
from oncelog.cluster.committed_log import Snapshot
from oncelog.cluster.lifecycle import Identity, Lifecycle, State, Timing
from oncelog.cluster.quorum_log import Leader, QuorumLog, Update
from oncelog.cluster.zookeeper_log import ZooKeeperMetadataLog
from oncelog.controller.checkpoint import decode_checkpoint
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.machine import ControllerConfig, Machine
from oncelog.controller.partition_image import PartitionImage
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.ids import NodeId
from oncelog.core.worker import InlineWorker, OneAtATime
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionChange,
    TopicChange,
)
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from oncelog.protocol.messages.cluster_metadata import VotersRecord
from oncelog.protocol.messages.fetch import FetchRequest
from oncelog.protocol.schema import Message
from oncelog.server.authorization import AllowClients
from oncelog.server.controller_front import ControllerFront
from oncelog.server.controller_node import ControllerNode
from oncelog.server.large_requests import LargeRequests
from oncelog.server.memory_budget import MemoryBudget
from tests.metadata_log_simulation.fake_zookeeper import FakeZooKeeper, Process
from tests.unit.cluster.metadata_log import voter

if TYPE_CHECKING:
    from tests.controller_simulation.history import History

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CONTROLLERS = (101, 102, 103)
BROKERS = (1, 2, 3, 4)
ADDRESSES = {node: Address("127.0.0.1", 9000 + node) for node in CONTROLLERS}
LEVELS = {"metadata.version": 30, "transaction.version": 2, "eligible.leader.replicas.version": 1}
SESSION_MS = 3000
TIMING = Timing(500, SESSION_MS, 60_000)
TICK_MS = 25
FALLS_BEHIND, CATCHES_UP = 0.002, 0.3
"""How probable it is within a tick."""
PROPOSAL_MS = 1000
"""After so long without an answer a leader proposes again."""


class Controller(ControllerNode):
    """A whole controller, watched by the judge."""

    def __init__(self, history: History, node_id: int) -> None:
        self.node_id = node_id
        self.judge = history.judge
        self.process = Process(history.scheduler)
        self.zookeeper = FakeZooKeeper(history.ensemble, self.process)
        metadata_log = ZooKeeperMetadataLog(
            self.zookeeper,
            node_id=node_id,
            address=ADDRESSES[node_id],
            scheduler=self.process,
            cluster_id=CLUSTER_ID,
            voters=VotersRecord(voters=[voter(node, address.port) for node, address in ADDRESSES.items()]),
            on_fault=lambda problem: self.judge.expect("liveness", False, "controller %d ends: %s", node_id, problem),
        )
        config = ControllerConfig(CLUSTER_ID, node_id, BROKER_CONFIG.defaults, SESSION_MS, FEATURES, LEVELS)
        machine = Machine(config, history.new_uuid, history.random.randrange)
        listener = Listener(name="CONTROLLER", host=ADDRESSES[node_id].host, port=ADDRESSES[node_id].port)
        super().__init__(metadata_log, machine, self.process, InlineWorker(), history.new_uuid(), listener)
        budget = MemoryBudget(1 << 30, self.process)
        self.front = ControllerFront(
            self,
            CLUSTER_ID,
            self.process,
            budget,
            LargeRequests(OneAtATime(InlineWorker()), budget),
            OneAtATime(InlineWorker()),
            lambda: AllowClients(cluster_action=True),
            has_acls=False,
        )
        self.start()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.judge.on_name(snapshot.name, decode_checkpoint(snapshot.data).image)
        super().on_snapshot(snapshot)

    def on_committed(self, batch: bytes) -> None:
        super().on_committed(batch)
        self.judge.on_image(f"controller {self.node_id}", lambda: self.image, read_header(batch).next_offset)

    def on_leader(self, leader: Leader | None) -> None:
        if leader is not None and leader.node_id == self.node_id:
            self.judge.on_active(leader)
        super().on_leader(leader)

    @property
    def image(self) -> Image:
        return self.machine.view.image

    def serve(self, request: Message, answered: Callable[[Message], None]) -> None:
        def check(answer: Message) -> None:
            self.judge.on_answer(request, answer)
            answered(answer)

        self.process.deliver(lambda: self.front.serve_own(request).then(check))

    def kill(self) -> None:
        self.process.kill()
        self.zookeeper.kill()


_Chance = tuple[float, float] | None
"""Between which draws a replica is in sync in the next tick; None: it is in any case."""


class _Led(NamedTuple):
    topic_id: UUID
    partition_index: int
    partition: PartitionImage
    chances: Sequence[tuple[NodeId, _Chance]]

    @property
    def is_settled(self) -> bool:
        """Nothing is left to chance, and the ISR is as it should be."""
        is_sure = all(chance is None for _, chance in self.chances)
        return is_sure and {replica for replica, _ in self.chances} == set(self.partition.isr)


class Broker:
    """It follows, registers and sends heartbeats as any broker, and says of its partitions who is in sync."""

    def __init__(self, history: History, broker_id: int, previous_epoch: int = -1) -> None:
        self.broker_id = broker_id
        self._history = history
        self.process = Process(history.scheduler)
        self.is_reachable = True
        bootstrap = list(ADDRESSES.values())
        history.random.shuffle(bootstrap)
        directory_id = UUID(int=8000 + broker_id)
        self.observer = QuorumLog(
            cluster_id=CLUSTER_ID, replica_id=broker_id, directory_id=directory_id, bootstrap=bootstrap
        )
        listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=9092)
        incarnation_id = history.new_uuid()
        history.judge.on_start(incarnation_id, after_crash=previous_epoch < 0)
        self.life = Lifecycle(
            Identity(broker_id, CLUSTER_ID, incarnation_id, [listener], FEATURES, None, directory_id, previous_epoch),
            TIMING,
            history.scheduler.monotonic_ms(),
        )
        self.life.ready()
        self._proposed_ms: dict[tuple[UUID, int], int] = {}
        self._epochs: dict[tuple[UUID, int], tuple[int, int]] = {}
        self._led_in: tuple[Image, bool] = EMPTY_IMAGE, False
        self._led_now: Sequence[_Led] = ()
        self._tick()

    @property
    def serves(self) -> bool:
        return self.life.state is State.SERVING and not self.life.is_fenced

    def _tick(self) -> None:
        now_ms = self._history.scheduler.monotonic_ms()
        sent = self.observer.poll(now_ms)
        if sent is not None:
            is_fetch = isinstance(sent.request, FetchRequest)
            take = partial(self._on_fetch if is_fetch else self._on_snapshot, sent.number)
            self._history.send(self, sent.address, sent.request, take)
        leader = self.observer.leader
        if leader is not None and self.observer.last_offset >= 0:
            order = self.life.poll(now_ms, self.observer.last_offset)
            if order is not None:
                self._history.send(self, leader.address, order.request, partial(self._on_order, order))
            if self.life.state is State.SERVING:
                self._propose(leader.address, now_ms)
        self.process.call_later_ms(TICK_MS, self._tick)

    def _on_fetch(self, number: int, answer: Any) -> None:
        self._on_update(self.observer.on_fetch(number, answer, self._history.scheduler.monotonic_ms()))

    def _on_snapshot(self, number: int, answer: Any) -> None:
        self._on_update(self.observer.on_snapshot(number, answer, self._history.scheduler.monotonic_ms()))

    def _on_update(self, update: Update | None) -> None:
        if update is None:
            return
        judge = self._history.judge
        judge.on_image(f"broker {self.broker_id}", lambda: update.image, update.last_offset + 1)
        for id_, topic in update.image.topics.items():
            for index, partition in topic.partitions.items():
                before = self._epochs.get((id_, index), (0, 0))
                now = self._epochs[id_, index] = partition.leader_epoch, partition.partition_epoch
                is_back = now[0] < before[0] or now[1] < before[1]
                judge.expect(
                    "epochs", not is_back, "broker %d: %s-%d: %s %s", self.broker_id, topic.name, index, before, now
                )

    def _on_order(self, order: Any, answer: Any) -> None:
        now_ms = self._history.scheduler.monotonic_ms()
        if isinstance(order.request, BrokerRegistrationRequest):
            self.life.on_registration(order.number, answer, now_ms, self.observer.image.features)
        else:
            self.life.on_heartbeat(order.number, answer, now_ms)

    def _propose(self, controller: Address, now_ms: int) -> None:
        """Whoever is in service catches up sooner or later, and now and then falls behind."""
        for id_, index, partition, chances in self._led():
            if now_ms - self._proposed_ms.get((id_, index), 0) < PROPOSAL_MS:
                continue
            draw = self._history.random.random
            wanted = [replica for replica, chance in chances if chance is None or chance[0] < draw() < chance[1]]
            if set(wanted) != set(partition.isr):
                self._proposed_ms[id_, index] = now_ms
                request = self._proposal(id_, index, partition, wanted)
                self._history.send(self, controller, request, partial(self._on_proposal, (id_, index)))

    def _led(self) -> Sequence[_Led]:
        """What is asked for with every tick, found once for each image: partitions of which the ISR may change."""
        image, is_healed = self.observer.image, self._history.is_healed
        if image is not self._led_in[0] or is_healed is not self._led_in[1]:
            self._led_in = image, is_healed
            led = (
                _Led(id_, index, partition, self._chances(partition))
                for id_, topic in image.topics.items()
                for index, partition in topic.partitions.items()
                if partition.leader == self.broker_id
            )
            self._led_now = [each for each in led if not each.is_settled]
        return self._led_now

    def _chances(self, partition: PartitionImage) -> list[tuple[NodeId, _Chance]]:
        """Of each replica in service."""
        brokers, chances = self.observer.image.brokers, list[tuple[NodeId, _Chance]]()
        for replica in partition.replicas:
            broker = brokers.get(replica)
            stays = replica == self.broker_id or (replica in partition.isr and self._history.is_healed)
            serves = broker is not None and not broker.is_fenced and not broker.in_controlled_shutdown
            if replica == self.broker_id or (serves and stays):
                chances.append((replica, None))
            elif serves:
                chances.append((replica, (FALLS_BEHIND, 1) if replica in partition.isr else (-1, CATCHES_UP)))
        return chances

    def _proposal(self, id_: UUID, index: int, partition: PartitionImage, isr: list[NodeId]) -> AlterPartitionRequest:
        brokers = self.observer.image.brokers
        epochs = {each: brokers[each].epoch if each in brokers else -1 for each in isr}
        change = PartitionChange(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=epoch) for each, epoch in epochs.items()],
            partition_epoch=partition.partition_epoch,
        )
        topics = [TopicChange(topic_id=id_, partitions=[change])]
        return AlterPartitionRequest(broker_id=self.broker_id, broker_epoch=self.life.epoch, topics=topics)

    def _on_proposal(self, place: tuple[UUID, int], answer: Any) -> None:
        self._proposed_ms.pop(place, None)
