"""Sends requests to any controller, as brokers and administrators do.

What the controller writes and answers is noted, step by step, without what differs from run to run.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from typing import Any

from oncelog.cluster.quorum_log import QuorumLog
from oncelog.controller.metadata_batches import read_batches
from oncelog.core.address import Address
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionChange,
    TopicChange,
)
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from oncelog.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from oncelog.protocol.messages.fetch import FetchResponse
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from oncelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from oncelog.protocol.schema import Message
from peers.kafka.kafka import CLUSTER_ID
from tests.conformance.controller_shell import Link, monotonic_ms

SESSION_MS = 6000
HEARTBEAT_S = 0.3
FAR = 10**9
"""An offset that no log of this test reaches: the broker has read everything."""
FEATURES = {
    "metadata.version": (7, 30),
    "kraft.version": (0, 1),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
DEADLINE_S = 180.0
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
_SETS = ("topics", "responses", "results", "entries", "replica_election_results", "entity", "matching_acls")
"""Lists without an order."""
NOBODY = 98
"""No broker has this id."""
HUNG_UP = "the connection was closed"
_NOT_CONTROLLER = re.compile(rf"'error_code': {ErrorCode.NOT_CONTROLLER.value}\b")
_UNEQUAL = ("error_message", "configs", "throttle_time_ms")
"""Texts are written for people, and settings of brokers differ in number."""


class Player:
    """`steps` has for each step its name, the records that it led to, and the answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = Address(host, int(port))
        self._link = Link(self._address)
        self._observer = QuorumLog(
            cluster_id=CLUSTER_ID, replica_id=99, directory_id=uuid.UUID(int=999), bootstrap=[self._address]
        )
        self.steps: list[tuple[str, list[Any], Any]] = []
        self.epochs: dict[int, int] = {}
        self._epoch_names: dict[int, str] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._acl_names: dict[uuid.UUID, str] = {}
        self._next_offset = 0
        self._starts = 0
        self._alive: set[int] = set()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._pulse = Link(self._address)
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)
        self._fenced: dict[int, bool] = {}
        self.follow()
        self._thread.start()

    # The log

    def follow(self) -> list[tuple[Message, int]]:
        """Read to the end. Returns the new records with their versions."""
        found: list[tuple[Message, int]] = []
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline
            send = self._observer.poll(monotonic_ms())
            if send is None:
                continue
            send.request.max_wait_ms = 0  # type: ignore[union-attr]  # no snapshots here
            response = self._link.call(send.request)
            assert isinstance(response, FetchResponse)
            data = response.responses[0].partitions[0] if response.responses else None
            if data is not None and data.records and not data.error_code:
                for batch in read_batches(data.records, self._next_offset):
                    found += [(record.known(), record.version) for record in batch.records]
                    self._next_offset = batch.header.next_offset
            self._observer.on_fetch(send.number, response, monotonic_ms())
            if data is not None and not data.error_code and self._next_offset >= data.high_watermark > 0:
                for name, topic_id in self._observer.image.topic_ids.items():
                    self._names[topic_id] = f"topic {name}"
                return [each for each in found if self._tells_something(each[0])]

    def _tells_something(self, record: Message) -> bool:
        """Controllers register with what they support, which differs. A broker that is fenced is fenced again when its
        session ends, at a time that differs."""
        if isinstance(record, NoOpRecord | RegisterControllerRecord):
            return False
        if isinstance(record, RegisterBrokerRecord):
            self._fenced[record.broker_id] = record.fenced
        elif isinstance(record, BrokerRegistrationChangeRecord) and record.fenced:
            was_fenced, self._fenced[record.broker_id] = self._fenced[record.broker_id], record.fenced > 0
            return was_fenced != self._fenced[record.broker_id]
        return True

    @property
    def image(self) -> Any:
        return self._observer.image

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.image.topics[self.image.topic_ids[topic]].partitions[index]

    # Steps

    def step(self, name: str, request: Message) -> Any:
        try:
            answer: Any = self._ask(request)
        except ConnectionError:
            self._link.close()
            self._link = Link(self._address)
            answer = None
        self._note(name, answer)
        return answer

    def _ask(self, request: Message) -> Any:
        """On a busy machine Kafka's controller gives its office up for a moment: then the request is sent again when it
        has it back. Some requests are refused like that for good."""
        answer = self._link.call(request)
        while self._is_refused(answer):
            was_away = self._was_away()
            answer = self._link.call(request)
            if not was_away:
                break
        return answer

    def _is_refused(self, answer: Message) -> bool:
        return _NOT_CONTROLLER.search(repr(self._normal(answer))) is not None

    def _was_away(self) -> bool:
        """Whether the controller had no office just now. It has it when this returns."""
        nothing = AllocateProducerIdsRequest(broker_id=NOBODY, broker_epoch=1)
        deadline = time.monotonic() + DEADLINE_S
        was_away = False
        while self._is_refused(self._link.call(nothing)):
            assert time.monotonic() < deadline
            was_away = True
            time.sleep(0.05)
        return was_away

    def _note(self, name: str, answer: Message | None) -> None:
        records = [(type(record).__name__, version, self._normal(record)) for record, version in self.follow()]
        self.steps.append((name, _in_order(records), HUNG_UP if answer is None else self._normal(answer)))

    def _normal(self, value: Any, field: str = "") -> Any:
        if isinstance(value, Message):
            names = [name for name in value.FIELDS if name not in _UNEQUAL]
            return {name: self._normal(getattr(value, name), name) for name in names}
        if isinstance(value, list):
            parts = [self._normal(part, field) for part in value]
            is_set = field in (
                "topics",
                "responses",
                "results",
                "entries",
                "replica_election_results",
                "entity",
                "matching_acls",
            )
            return sorted(parts, key=repr) if is_set else parts
        if isinstance(value, uuid.UUID):
            if field == "id":  # of an ACL
                return self._acl_names.setdefault(value, f"id {len(self._acl_names)}")
            return self._names.get(value, str(value))
        if field == "broker_epoch":
            return self._epoch_names.get(value, value)
        return bytes(value) if isinstance(value, memoryview) else value

    # Brokers

    def register(self, name: str, broker_id: int, **fields: Any) -> int:
        number = self._starts + 1
        values: dict[str, Any] = {
            "cluster_id": CLUSTER_ID,
            "incarnation_id": uuid.uuid5(uuid.NAMESPACE_OID, f"start {number}"),
            "listeners": [Listener(name="PLAINTEXT", host="127.0.0.1", port=9000 + broker_id)],
            "features": [
                Feature(name=feature, min_supported_version=low, max_supported_version=high)
                for feature, (low, high) in FEATURES.items()
            ],
            "rack": f"r{broker_id % 2}",
            "log_dirs": [uuid.uuid5(uuid.NAMESPACE_OID, f"directory {broker_id}")],
        }
        answer: Any = self._ask(BrokerRegistrationRequest(broker_id=broker_id, **(values | fields)))
        if not answer.error_code:
            self._starts = number
            self._forget(broker_id)
            self._epoch_names.setdefault(answer.broker_epoch, f"start {number} of {broker_id}")
            self.epochs[broker_id] = answer.broker_epoch
        self._note(name, answer)
        return int(answer.error_code)

    def heartbeat(self, name: str, broker_id: int, *, offset: int = FAR, **wants: Any) -> Any:
        request = heartbeat_request(broker_id, wants.pop("epoch", self.epochs.get(broker_id, 0)), offset, **wants)
        if wants:
            self._forget(broker_id)
        answer: Any = self.step(name, request)
        if not (answer.error_code or answer.is_fenced or wants):
            with self._lock:
                self._alive.add(broker_id)
        return answer

    def start(self, name: str, broker_id: int, *, clean: bool = False) -> None:
        """As soon as the session of the last start is over."""
        previous = self.epochs.get(broker_id, -1) if clean else -1
        deadline = time.monotonic() + DEADLINE_S
        self._forget(broker_id)
        while code := self.register(name, broker_id, previous_broker_epoch=previous):
            assert time.monotonic() < deadline, code
            self.steps.pop()
            time.sleep(0.05)
        self.heartbeat(f"{name}: unfenced", broker_id)

    def _keep_alive(self) -> None:
        """Unless a step says otherwise no session ends, however long steps take."""
        while not self._is_over.wait(HEARTBEAT_S):
            with self._lock:
                for broker_id in self._alive:
                    self._pulse.call(heartbeat_request(broker_id, self.epochs[broker_id]))

    def _forget(self, broker_id: int) -> None:
        """None of its heartbeats is on its way when this returns."""
        with self._lock:
            self._alive.discard(broker_id)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._link.close()
        self._pulse.close()

    def silence(self, name: str, broker_id: int) -> None:
        """No heartbeats until the controller has noticed."""
        self._forget(broker_id)
        deadline = time.monotonic() + DEADLINE_S
        records: list[Any] = []
        while not self.image.brokers[NodeId(broker_id)].is_fenced:
            assert time.monotonic() < deadline
            records += self.follow()
            time.sleep(0.05)
        named = [(type(record).__name__, version, self._normal(record)) for record, version in records]
        self.steps.append((name, _in_order(named), None))

    # Topics

    def create(self, name: str, *topics: CreatableTopic, **fields: Any) -> Any:
        answer: Any = self._ask(CreateTopicsRequest(topics=list(topics), **fields))
        for topic in answer.topics:
            if not topic.error_code:
                self._names.setdefault(topic.topic_id, f"topic {topic.name}")
        self._note(name, answer)
        return answer

    def alter(self, name: str, topic: str, isr: list[int], *, index: int = 0, **fields: Any) -> None:
        found = self.partition(topic, index)
        leader = fields.get("leader", found.leader)
        epochs = fields.get("epochs", self.epochs)
        change = PartitionChange(
            partition_index=fields.get("unknown_index", index),
            leader_epoch=found.leader_epoch + fields.get("leader_epoch", 0),
            partition_epoch=found.partition_epoch + fields.get("partition_epoch", 0),
            new_isr_with_epochs=[BrokerState(broker_id=member, broker_epoch=epochs.get(member, -1)) for member in isr],
            leader_recovery_state=fields.get("recovering", 0),
        )
        topic_id = fields.get("topic_id", self.image.topic_ids[topic])
        broker_epoch = fields.get("broker_epoch", self.epochs.get(leader, 0))
        self.step(
            name,
            AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=broker_epoch,
                topics=[TopicChange(topic_id=topic_id, partitions=[change])],
            ),
        )

    def configure(self, name: str, kind: int, resource: str, *changes: tuple[str, int, str | None]) -> None:
        configs = [IncrementalConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
        wanted = IncrementalResource(resource_type=kind, resource_name=resource, configs=configs)
        self.step(name, IncrementalAlterConfigsRequest(resources=[wanted]))

    def reassign(self, name: str, topic: str, replicas: list[int] | None, **fields: Any) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=replicas)
        wanted = ReassignableTopic(name=topic, partitions=[partition])
        self.step(name, AlterPartitionReassignmentsRequest(topics=[wanted], **fields))

    def elect(self, name: str, election_type: int, *topics: tuple[str, int]) -> None:
        asked = [TopicPartitions(topic=topic, partitions=[index]) for topic, index in topics]
        self.step(name, ElectLeadersRequest(election_type=election_type, topic_partitions=asked or None))


def heartbeat_request(broker_id: int, epoch: int, offset: int = FAR, **wants: Any) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=offset, **wants)


def _in_order(records: list[Any]) -> list[Any]:
    """Java's controller goes through hash maps: neighbours of one kind have no order."""
    ordered: list[Any] = []
    for record in records:
        if ordered and ordered[-1][0][0] == record[0]:
            ordered[-1].append(record)
        else:
            ordered.append([record])
    return [record for run in ordered for record in sorted(run, key=repr)]


def topic(name: str, *replicas: list[int], **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=each) for index, each in enumerate(replicas)
        ],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def placed(name: str, count: int, factor: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=count, replication_factor=factor)
