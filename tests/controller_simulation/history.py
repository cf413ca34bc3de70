"""One history: three controllers and four brokers, topics made, moved and deleted, under faults from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

from oncelog.cluster.lifecycle import State
from oncelog.cluster.zookeeper import NO_OWNER, Delete
from oncelog.cluster.zookeeper_nodes import CONTROLLER
from oncelog.core.address import Address
from oncelog.core.config_resources import ResourceType
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.schema import Message
from oncelog.server import controller_node
from tests.controller_simulation.judge import Judge
from tests.controller_simulation.nodes import ADDRESSES, BROKERS, CONTROLLERS, SESSION_MS, Broker, Controller
from tests.metadata_log_simulation.fake_zookeeper import Ensemble
from tests.virtual_clock import VirtualScheduler

FAULTY_MS = 60_000
HEALED_MS = 20_000
STEP_MS = 60
FAULTS = 0.06
"""How many of the steps."""
SNAPSHOT_BATCHES = 40
TOPICS_MAX = 8
LOSS = 0.01
LATE = 0.005
LATE_MS_MAX = 6000
"""Longer than it takes until a broker that was killed is fenced, and its next process in service."""
MIN_ISR = "min.insync.replicas"


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scheduler = VirtualScheduler()
        self.ensemble = Ensemble(self.scheduler, self.random)
        self.judge = Judge(self.ensemble)
        self.is_healed = False
        self._topics = 0
        self._paused: set[int] = set()
        self._waiting = 0
        self.controllers = {node_id: Controller(self, node_id) for node_id in CONTROLLERS}
        self.brokers = {broker_id: Broker(self, broker_id) for broker_id in BROKERS}

    def new_uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(127) | 1 << 120)

    def play(self) -> None:
        with patch.object(controller_node, "SNAPSHOT_BATCHES", SNAPSHOT_BATCHES), self.judge.listening():
            for _ in range(FAULTY_MS // STEP_MS):
                self._step()
                self._advance(self.random.randint(1, 2 * STEP_MS))
            self._heal()
            self._advance(HEALED_MS)
            self.judge.check_led()
            for _ in range(2):  # what cannot be cancelled because nobody of before is in sync can be when one is
                self._help()
                self._advance(HEALED_MS)
            self._check_end(set(BROKERS))
            self._lose_a_broker_and_its_controller()

    def _advance(self, ms: int) -> None:
        self.scheduler.advance_ms(ms)
        self.judge.raise_if_broken()

    # The network

    def send(self, broker: Broker, address: Address, request: Message, take: Callable[[Any], None]) -> None:
        """To whichever process of the controller is there when it arrives. The answer may be lost too."""
        node_id = next(node for node, known in ADDRESSES.items() if known == address)

        def arrive() -> None:
            if broker.is_reachable:
                self.controllers[node_id].serve(request, lambda answer: self._later(lambda: back(answer)))

        def back(answer: Message) -> None:
            if broker.is_reachable:
                broker.process.deliver(lambda: take(answer))

        if broker.is_reachable:
            self._later(arrive)

    def _later(self, act: Callable[[], None]) -> None:
        delay_ms = self.random.choice((1, 1, 2, 5, 20, 60))
        if not self.is_healed:
            if self.random.random() < LOSS:
                return
            if self.random.random() < LATE:
                delay_ms = self.random.randint(500, LATE_MS_MAX)
        self.scheduler.call_later_ms(delay_ms, act)

    def _ask(self, request: Message, *, is_final: bool = False) -> None:
        """An operator asks whoever may be active."""
        controllers = [each for each in self.controllers.values() if each.log.is_active]
        controller = self.random.choice(controllers or list(self.controllers.values()))
        self._waiting += is_final

        def answered(_: Message) -> None:
            self._waiting -= is_final

        controller.serve(request, answered)

    # Steps

    def _step(self) -> None:
        if self.random.random() > FAULTS:
            self._operate()
        elif self.random.random() < 0.5:
            self._harm_a_controller(self.random.choice(list(self.controllers.values())))
        else:
            self._harm_a_broker(self.random.choice(list(self.brokers.values())))
        for broker in list(self.brokers.values()):
            if broker.life.state is State.REFUSED:
                self._kill_broker(broker)

    def _harm_a_controller(self, controller: Controller) -> None:
        zookeeper = controller.zookeeper
        fault = self.random.choice(("depose", "cut", "mute", "isolate", "pause", "pause", "kill", "kill", "ensemble"))
        if fault == "depose":
            self.ensemble.commit([Delete(CONTROLLER)], NO_OWNER)
        elif fault in ("cut", "mute"):
            (zookeeper.cut if fault == "cut" else zookeeper.mute)()
        elif fault == "isolate":
            zookeeper.isolate()
            self.scheduler.call_later_ms(self.random.randint(100, 6000), zookeeper.heal)
        elif fault == "pause":
            self._pause(controller)
        elif fault == "kill":
            self._kill_controller(controller)
        elif self.ensemble.is_up:
            self.ensemble.stop()
            self.scheduler.call_later_ms(self.random.randint(50, 3000), self.ensemble.start)

    def _harm_a_broker(self, broker: Broker) -> None:
        fault = self.random.choice(("kill", "pause", "isolate", "stop", "stop"))
        if fault == "kill":
            self._kill_broker(broker)
        elif fault == "pause":
            self._pause(broker)
        elif fault == "isolate":
            broker.is_reachable = False
            self.scheduler.call_later_ms(self.random.randint(100, 8000), lambda: self._reconnect(broker))
        elif broker.serves and broker.broker_id not in self._paused:
            self._stop_broker(broker)

    def _operate(self) -> None:
        topics = list(self.judge.image.topics.values())
        draw = self.random.random()
        if draw < 0.1 and len(topics) < TOPICS_MAX:
            self._topics += 1
            factor = self.random.choice((1, 2, 3, 3))
            minimum = CreatableTopicConfig(name=MIN_ISR, value=self.random.choice("122"))
            topic = CreatableTopic(
                name=f"topic-{self._topics}", num_partitions=2, replication_factor=factor, configs=[minimum]
            )
            self._ask(CreateTopicsRequest(topics=[topic]))
        elif draw < 0.14 and topics:
            name = self.random.choice(topics).name
            self._ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]))
        elif draw < 0.3 and topics:
            replicas = self.random.sample(BROKERS, self.random.randint(1, 3))
            given = self.random.choice((replicas, replicas, None))
            partition = ReassignablePartition(partition_index=self.random.randrange(2), replicas=given)
            wanted = ReassignableTopic(name=self.random.choice(topics).name, partitions=[partition])
            self._ask(AlterPartitionReassignmentsRequest(topics=[wanted]))
        elif draw < 0.32 and topics:
            minimum = AlterableConfig(name=MIN_ISR, value=self.random.choice("123"))
            changed = AlterConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=self.random.choice(topics).name, configs=[minimum]
            )
            self._ask(IncrementalAlterConfigsRequest(resources=[changed]))
        elif draw < 0.36:
            self._ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000))

    def _pause(self, node: Controller | Broker) -> None:
        number = node.node_id if isinstance(node, Controller) else node.broker_id
        if number not in self._paused:
            self._paused.add(number)
            node.process.pause()
            self.scheduler.call_later_ms(self.random.randint(100, 8000), lambda: self._resume(node, number))

    def _resume(self, node: Controller | Broker, number: int) -> None:
        known: dict[int, Any] = {**self.controllers, **self.brokers}
        if known[number] is node:
            self._paused.discard(number)
        node.process.resume()

    def _reconnect(self, broker: Broker) -> None:
        broker.is_reachable = True

    def _kill_controller(self, controller: Controller) -> None:
        """kill -9, and a new process at once: the old session is still there."""
        self._paused.discard(controller.node_id)
        controller.kill()
        self.controllers[controller.node_id] = Controller(self, controller.node_id)

    def _kill_broker(self, broker: Broker, previous_epoch: int = -1) -> None:
        self._paused.discard(broker.broker_id)
        broker.process.kill()
        self.brokers[broker.broker_id] = Broker(self, broker.broker_id, previous_epoch)

    def _stop_broker(self, broker: Broker) -> None:
        """Leaderships are moved away first. Its next process says that it was stopped cleanly."""
        broker.life.stop(self.scheduler.monotonic_ms())

        def look() -> None:
            if self.brokers[broker.broker_id] is not broker:
                return
            if broker.life.state is State.STOPPED:
                self._kill_broker(broker, broker.life.epoch)
            else:
                self.scheduler.call_later_ms(100, look)

        look()

    # The end

    def _heal(self) -> None:
        self.is_healed = True
        self.ensemble.start()
        for controller in self.controllers.values():
            controller.zookeeper.heal()
            self._resume(controller, controller.node_id)
        for broker in self.brokers.values():
            broker.is_reachable = True
            self._resume(broker, broker.broker_id)

    def _help(self) -> None:
        """What operators do as with Apache Kafka: nothing else ends these two.

        All that were in sync may have gone down uncleanly. A move that was replaced by one that takes the new replica
        away again waits for that replica.
        """
        self._ask(ElectLeadersRequest(election_type=1, topic_partitions=None, timeout_ms=1000), is_final=True)
        for topic in self.judge.image.topics.values():
            for index, partition in topic.partitions.items():
                if set(partition.adding_replicas) & set(partition.removing_replicas):
                    cancelled = ReassignablePartition(partition_index=index, replicas=None)
                    wanted = ReassignableTopic(name=topic.name, partitions=[cancelled])
                    self._ask(AlterPartitionReassignmentsRequest(topics=[wanted]), is_final=True)

    def _check_end(self, brokers: set[int]) -> None:
        active = [each for each in self.controllers.values() if each.log.is_active]
        self.judge.expect("liveness", len(active) == 1, "%d active controllers", len(active))
        self.judge.check()
        self.judge.check_settled(brokers)
        for controller in self.controllers.values():
            self.judge.expect("liveness", controller.image == self.judge.image, "%d is behind", controller.node_id)
        for broker_id in brokers:
            broker = self.brokers[broker_id]
            self.judge.expect("liveness", broker.serves, "broker %d: %s", broker_id, broker.life.state)
            self.judge.expect("liveness", broker.observer.image == self.judge.image, "broker %d is behind", broker_id)
        self.judge.expect("liveness", self._waiting == 0, "a request was never answered")
        self.judge.raise_if_broken()

    def _lose_a_broker_and_its_controller(self) -> None:
        """Both at once: whoever is active next has never heard of the broker that is gone."""
        lost = self.random.choice(BROKERS)
        self.brokers[lost].process.kill()
        active = next(each for each in self.controllers.values() if each.log.is_active)
        self._kill_controller(active)
        self._advance(SESSION_MS * 8)
        self._check_end(set(BROKERS) - {lost})
