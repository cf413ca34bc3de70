"""A controller with a log in memory, and brokers that do what a test tells them."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

from oncelog.controller.image import Image
from oncelog.controller.image_records import versioned
from oncelog.controller.machine import ControllerConfig, Machine
from oncelog.controller.partition_image import PartitionImage
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.errors import KafkaError
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ChangedPartition,
    PartitionChange,
    TopicChange,
)
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from oncelog.protocol.messages.cluster_metadata import decode_metadata_record, encode_metadata_record
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from oncelog.protocol.schema import Message
from oncelog.security.acl import CLUSTER_NAME, Operation, Resource

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
SESSION_MS = 9000
LEVELS = {"metadata.version": 30, "transaction.version": 2, "eligible.leader.replicas.version": 1}
FEATURES = [
    Feature(name="metadata.version", min_supported_version=21, max_supported_version=30),
    Feature(name="kraft.version", min_supported_version=0, max_supported_version=1),
    Feature(name="transaction.version", min_supported_version=0, max_supported_version=2),
    Feature(name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1),
]


@dataclass
class Asker:
    """May do everything, or what it is told."""

    api_version: int = 100
    allowed: frozenset[tuple[Operation, Resource, str]] | None = None

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        return self.allowed is None or (operation, resource, name) in self.allowed

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        if not self.may(operation, resource, name):
            from oncelog.server.authorization import REFUSALS

            raise KafkaError(REFUSALS[resource], "refused")

    def take_mutations(self, count: int) -> None:
        pass


class Rig:
    def __init__(self, *, elr: bool = True, below: Any = lambda n: 0, **settings: str) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        levels = LEVELS | ({} if elr else {"eligible.leader.replicas.version": 0})
        parsed = BROKER_CONFIG.parse(given)
        numbers = itertools.count(1000)
        config = ControllerConfig(CLUSTER_ID, 100, parsed, SESSION_MS, FEATURES, levels)
        self.machine = Machine(config, lambda: uuid.UUID(int=next(numbers)), below)
        self.machine.kraft_version = 1
        self.now_ms = 0
        self.log: list[Message] = []
        self.epochs: dict[int, int] = {}
        self.machine.activate(self.now_ms)
        self.commit(self.machine.bootstrap_records())

    @property
    def image(self) -> Image:
        return self.machine.view.image

    def commit(self, records: list[Message]) -> list[Message]:
        """As they come back from the log: encoded in their versions, and decoded."""
        for record in records:
            message, version = versioned(record, 30)
            read = decode_metadata_record(encode_metadata_record(message, version)).known()
            assert read == record, "a field is lost in the version that is written"
            self.machine.apply(read, len(self.log))
            self.log.append(read)
        return records

    def ask(self, request: Message, who: Asker | None = None) -> Any:
        round_ = self.machine.round(len(self.log))
        answer = round_.ask(request, who or Asker(), self.now_ms)
        self.last = self.commit(round_.records)
        return answer

    def pass_time(self, ms: int, *alive: int) -> list[Message]:
        """Brokers that are alive send heartbeats meanwhile."""
        for _ in range(ms // 1000):
            self.now_ms += 1000
            for broker_id in alive:
                self.heartbeat(broker_id)
        round_ = self.machine.round(len(self.log))
        round_.fence_silent(self.now_ms)
        return self.commit(round_.records)

    # Brokers

    def register(self, broker_id: int, **fields: Any) -> int:
        values: dict[str, Any] = {
            "cluster_id": CLUSTER_ID,
            "incarnation_id": uuid.UUID(int=self.now_ms * 100 + broker_id + 7_000_000),
            "listeners": [Listener(name="PLAINTEXT", host="127.0.0.1", port=9000 + broker_id)],
            "features": FEATURES,
            "rack": None,
            "log_dirs": [uuid.UUID(int=50_000 + broker_id)],
        }
        answer = self.ask(BrokerRegistrationRequest(broker_id=broker_id, **(values | fields)))
        assert isinstance(answer, BrokerRegistrationResponse)
        self.epochs[broker_id] = answer.broker_epoch
        return answer.broker_epoch

    def heartbeat(self, broker_id: int, *, offset: int | None = None, **wants: bool) -> BrokerHeartbeatResponse:
        answer = self.ask(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=self.epochs[broker_id],
                current_metadata_offset=len(self.log) if offset is None else offset,
                **wants,
            )
        )
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer

    def start(self, *broker_ids: int, **fields: Any) -> None:
        for broker_id in broker_ids:
            self.register(broker_id, **fields)
            assert not self.heartbeat(broker_id).is_fenced

    def restart(self, broker_id: int, *, clean: bool) -> None:
        self.now_ms += SESSION_MS + 1
        self.register(broker_id, previous_broker_epoch=self.epochs[broker_id] if clean else -1)
        self.heartbeat(broker_id)

    # Topics

    def create(self, name: str, *replicas: list[int], **configs: str) -> CreatableTopicResult:
        wanted = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=each)
                for index, each in enumerate(replicas)
            ],
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        answer: CreatableTopicResult = self.ask(CreateTopicsRequest(topics=[wanted])).topics[0]
        return answer

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        return self.image.topics[self.image.topic_ids[topic]].partitions[index]

    def alter(self, topic: str, isr: list[int], *, index: int = 0, **fields: Any) -> ChangedPartition:
        """As the leader would ask for it, unless fields say otherwise."""
        found = self.partition(topic, index)
        leader = fields.pop("broker_id", found.leader)
        change = PartitionChange(
            partition_index=index,
            leader_epoch=fields.pop("leader_epoch", found.leader_epoch),
            partition_epoch=fields.pop("partition_epoch", found.partition_epoch),
            new_isr_with_epochs=[
                BrokerState(broker_id=member, broker_epoch=fields.get("epochs", self.epochs).get(member, -1))
                for member in isr
            ],
            leader_recovery_state=fields.pop("recovering", 0),
        )
        answer = self.ask(
            AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=self.epochs[leader],
                topics=[TopicChange(topic_id=self.image.topic_ids[topic], partitions=[change])],
            )
        )
        assert isinstance(answer, AlterPartitionResponse)
        return answer.topics[0].partitions[0]

    def registration(self, broker_id: int) -> Any:
        return self.image.brokers[NodeId(broker_id)]


def state(partition: PartitionImage) -> tuple[int, list[int], list[int]]:
    """Leader, ISR, ELR."""
    return partition.leader, list(partition.isr), list(partition.elr)
