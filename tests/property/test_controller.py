"""Whatever brokers and administrators do: the promises of the metadata hold after every record."""

from __future__ import annotations

import random
import uuid
from contextlib import suppress

import pytest

from oncelog.controller.checkpoint import Checkpoint, Quorum, decode_checkpoint, encode_checkpoint
from oncelog.controller.image import Image
from oncelog.controller.replay import Replay
from oncelog.core.errors import KafkaError
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.unit.controller.rig import Rig

BROKERS = range(1, 6)
TOPICS = ["a", "b", "c"]


class History:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Rig(elr=self.chance.random() < 0.7, below=self.chance.randrange)
        self.before = self.rig.image

    def step(self) -> None:
        actions = [self.heartbeat] * 6 + [self.alter] * 6 + [
            self.register, self.silence, self.create, self.grow, self.delete, self.reassign, self.elect, self.configure,
            self.unregister, self.allocate, self.fail_over,
        ]  # fmt: skip
        with suppress(KafkaError):  # a refusal is an answer
            self.chance.choice(actions)()

    def register(self) -> None:
        broker_id = self.chance.choice(BROKERS)
        self.rig.now_ms += self.chance.choice([0, 100, 9001])
        epoch = self.rig.epochs.get(broker_id, -1)
        self.rig.register(
            broker_id,
            incarnation_id=uuid.UUID(int=self.chance.getrandbits(100)),
            rack=self.chance.choice([None, "r1", "r2"]),
            previous_broker_epoch=self.chance.choice([epoch, -1]),
        )

    def heartbeat(self) -> None:
        if self.rig.epochs:
            broker_id = self.chance.choice(list(self.rig.epochs))
            end = len(self.rig.log)
            self.rig.heartbeat(
                broker_id,
                offset=self.chance.choice([end, end, end - 1, 0]),
                want_fence=self.chance.random() < 0.1,
                want_shut_down=self.chance.random() < 0.1,
            )

    def silence(self) -> None:
        self.rig.now_ms += self.chance.choice([1000, 5000, 9001])
        self.rig.pass_time(0)

    def create(self) -> None:
        topic = CreatableTopic(
            name=self.chance.choice(TOPICS), num_partitions=self.chance.randint(1, 4),
            replication_factor=self.chance.randint(1, 4),
        )  # fmt: skip
        self.rig.ask(CreateTopicsRequest(topics=[topic]))

    def grow(self) -> None:
        topic = CreatePartitionsTopic(
            name=self.chance.choice(TOPICS), count=self.chance.randint(1, 6), assignments=None
        )
        self.rig.ask(CreatePartitionsRequest(topics=[topic]))

    def delete(self) -> None:
        if self.chance.random() < 0.3:
            self.rig.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=self.chance.choice(TOPICS))]))

    def place(self) -> tuple[str, int] | None:
        topics = list(self.rig.image.topics.values())
        if not topics:
            return None
        topic = self.chance.choice(topics)
        return topic.name, self.chance.choice(list(topic.partitions))

    def alter(self) -> None:
        place = self.place()
        if place is None:
            return
        found = self.rig.partition(*place)
        if found.leader in self.rig.epochs:
            others = [each for each in found.replicas if each != found.leader]
            isr = [found.leader, *self.chance.sample(others, self.chance.randint(0, len(others)))]
            self.rig.alter(
                place[0], isr, index=place[1], recovering=self.chance.choice([0, 0, int(found.is_recovering)])
            )

    def reassign(self) -> None:
        place = self.place()
        if place is not None:
            target = self.chance.sample(list(BROKERS), self.chance.randint(1, 3))
            wanted = ReassignablePartition(
                partition_index=place[1], replicas=None if self.chance.random() < 0.3 else target
            )
            topic = ReassignableTopic(name=place[0], partitions=[wanted])
            self.rig.ask(AlterPartitionReassignmentsRequest(topics=[topic]))

    def elect(self) -> None:
        self.rig.ask(ElectLeadersRequest(election_type=self.chance.choice([0, 0, 1]), topic_partitions=None))

    def configure(self) -> None:
        name, values = self.chance.choice(
            [("min.insync.replicas", "123"), ("unclean.leader.election.enable", ("true", "false"))]
        )
        config = AlterableConfig(name=name, value=self.chance.choice(values))
        topic = AlterConfigsResource(resource_type=2, resource_name=self.chance.choice(TOPICS), configs=[config])
        self.rig.ask(IncrementalAlterConfigsRequest(resources=[topic]))

    def unregister(self) -> None:
        if self.chance.random() < 0.2:
            self.rig.ask(UnregisterBrokerRequest(broker_id=self.chance.choice(BROKERS)))

    def allocate(self) -> None:
        if self.rig.epochs:
            broker_id = self.chance.choice(list(self.rig.epochs))
            self.rig.ask(AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=self.rig.epochs[broker_id]))

    def fail_over(self) -> None:
        """Another controller becomes active: it knows no heartbeats."""
        self.rig.machine.activate(self.rig.now_ms)

    # What must hold

    def check(self) -> None:
        image = self.rig.image
        alive = {
            each.broker_id for each in image.brokers.values() if not each.is_fenced and not each.in_controlled_shutdown
        }
        for topic in image.topics.values():
            for index, found in topic.partitions.items():
                where = (topic.name, index, found)
                replicas, isr = set(found.replicas), set(found.isr)
                assert len(replicas) == len(found.replicas) == len(found.directories) > 0, where
                assert isr <= replicas and set(found.elr) <= replicas and not isr & set(found.elr), where
                assert found.leader == -1 or (found.leader in isr and found.leader in alive), where
                assert isr or self.rig.machine.view.has_elr, where
                assert set(found.adding_replicas) <= replicas and set(found.removing_replicas) <= replicas, where
                if found.leader >= 0:
                    assert isr <= alive, where
                old = self.before.topics.get(topic.topic_id)
                if old is not None and index in old.partitions:
                    self.check_epochs(old.partitions[index], found)
        assert image.next_producer_id >= self.before.next_producer_id
        self.before = image

    @staticmethod
    def check_epochs(old: object, new: object) -> None:
        before = (old.leader_epoch, old.partition_epoch, old.leader)  # type: ignore[attr-defined]  # partitions
        after = (new.leader_epoch, new.partition_epoch, new.leader)  # type: ignore[attr-defined]
        assert after[0] >= before[0] and after[1] >= before[1]
        assert after[2] == before[2] or after[0] > before[0], "a new leader has a new epoch"
        assert old == new or after[1] > before[1]

    def replayed(self) -> Image:
        replay = Replay()
        for record in self.rig.log:
            replay.apply(record)
        return replay.image()


@pytest.mark.parametrize("seed", range(40))
def test_a_history(seed: int) -> None:
    history = History(seed)
    for _ in range(150):
        history.step()
        history.check()
    assert history.replayed() == history.rig.image
    data = encode_checkpoint(Checkpoint(history.rig.image, Quorum(), 0), epoch=1, timestamp_ms=0)
    assert decode_checkpoint(data).image == history.rig.image
