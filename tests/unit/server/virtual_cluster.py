"""Whole brokers of a cluster in one process: a virtual clock, a controller of a few rules, a network that can be cut.

The controller speaks the requests of Kafka's controllers, and writes its decisions to a metadata log that brokers
follow. Its rules are the simplest that hold what brokers rely on: a broker that is killed is fenced when the test says
so (`fence`), the first live member of the ISR becomes the leader.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from oncelog.cluster.quorum_log import TOPIC_ID
from oncelog.controller.image import Image
from oncelog.controller.partition_image import PartitionImage
from oncelog.controller.replay import Replay
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker
from oncelog.protocol.api import decode_response, encode_request, response_header_version
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.framing import encode_request_frame, parse_response_header
from oncelog.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ChangedPartition,
    ChangedTopic,
)
from oncelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from oncelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from oncelog.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from oncelog.protocol.messages.broker_registration import Listener as Endpoint
from oncelog.protocol.messages.cluster_metadata import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Listener,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_metadata_record,
)
from oncelog.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from oncelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from oncelog.server.broker import Broker, Environment
from oncelog.server.context import Peer
from oncelog.server.peers import Answer
from tests.unit.server.harness import batch_of
from tests.virtual_clock import VirtualScheduler

CONTROLLER = 0
EPOCH = 1
CLUSTER_ID = "b25jZWxvZy1wZWVyLTAwMQ"
_DELAY_MS = 1
_POLL_MS = 20


def address_of(node: int) -> Address:
    return Address("127.0.0.1", 1000 + node)


class Controller:
    def __init__(self) -> None:
        self.node_id = CONTROLLER
        self.epoch = EPOCH
        self._replay = Replay()
        self.image: Image = self._replay.image()
        self.batches: list[tuple[int, bytes]] = []
        self.end_offset = 0
        self.registered_at: dict[int, int] = {}
        self.heard_ms: dict[int, int] = {}
        """When each broker sent its last heartbeat."""
        self.now_ms: Callable[[], int] = lambda: 0
        self.write(FeatureLevelRecord(name="metadata.version", feature_level=30))
        self.write(FeatureLevelRecord(name="transaction.version", feature_level=2))

    def move(self, node_id: int) -> None:
        """Another controller is active from now on. The one before answers nothing, as one that is paused."""
        self.node_id, self.epoch = node_id, self.epoch + 1

    def write(self, *messages: Message) -> None:
        values = [encode_metadata_record(message, type(message).VERSIONS[1]) for message in messages]
        records = [Record(number, 0, None, value) for number, value in enumerate(values)]
        batch = build_batch(records, timestamp_ms=0, base_offset=self.end_offset, leader_epoch=self.epoch)
        self.batches.append((self.end_offset, batch))
        self.end_offset += len(messages)
        for message in messages:
            self._replay.apply(message)
        self.image = self._replay.image()

    def create_topic(self, name: str, *replicas: Sequence[int], **configs: str) -> uuid.UUID:
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name} {self.end_offset}")
        self.write(
            TopicRecord(name=name, topic_id=topic_id),
            *(
                ConfigRecord(resource_type=2, resource_name=name, name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
            *(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=list(members),
                    isr=[member for member in members if self.is_active(member)],
                    leader=next(member for member in members if self.is_active(member)),
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[self._directory(member) for member in members],
                )
                for index, members in enumerate(replicas)
            ),
        )
        return topic_id

    def _directory(self, node: int) -> uuid.UUID:
        broker = self.image.brokers.get(NodeId(node))
        return broker.directories[0] if broker is not None else uuid.UUID(int=7)

    def delete_topic(self, name: str) -> None:
        self.write(RemoveTopicRecord(topic_id=self.image.topic_ids[name]))

    def change(self, topic: str, partition: int = 0, **fields: Any) -> None:
        topic_id = self.image.topic_ids[topic]
        self.write(PartitionChangeRecord(partition_id=partition, topic_id=topic_id, **fields))

    def is_active(self, node: int) -> bool:
        broker = self.image.brokers.get(NodeId(node))
        return broker is not None and not broker.is_fenced

    def _is_electable(self, partition: PartitionImage, node: int) -> bool:
        """A replica in a directory that its broker does not have any more is gone."""
        known = partition.directories[partition.replicas.index(NodeId(node))]
        return self.is_active(node) and known in self.image.brokers[NodeId(node)].directories

    def fence(self, node: int) -> None:
        changes: list[Message] = []
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                if node not in partition.isr and partition.leader != node:
                    continue
                isr = [member for member in partition.isr if member != node]
                fields: dict[str, Any] = {"isr": isr} if isr else {}
                if partition.leader == node:
                    fields["leader"] = next((member for member in isr if self._is_electable(partition, member)), -1)
                changes.append(PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, **fields))
        epoch = self.image.brokers[NodeId(node)].epoch
        self.write(*changes, BrokerRegistrationChangeRecord(broker_id=node, broker_epoch=epoch, fenced=1))

    def _leaders_among(self, node: int) -> list[Message]:
        """The partitions without a leader that may have this one."""
        return [
            PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node)
            for topic in self.image.topics.values()
            for index, partition in topic.partitions.items()
            if partition.leader < 0 and node in partition.isr and self._is_electable(partition, node)
        ]

    def fence_silent(self, now_ms: int, session_ms: int) -> None:
        for node, heard_ms in list(self.heard_ms.items()):
            if self.is_active(node) and now_ms - heard_ms > session_ms:
                self.fence(node)

    # What brokers ask

    def serve(self, request: Message, waited_ms: int) -> Message | None:
        """None while a Fetch has nothing to tell and may wait."""
        handlers: dict[type[Message], Callable[[Any], Message | None]] = {
            FetchRequest: lambda fetch: self._fetch(fetch, waited_ms),
            BrokerRegistrationRequest: self._register,
            BrokerHeartbeatRequest: self._heartbeat,
            AlterPartitionRequest: self._alter_partition,
            AllocateProducerIdsRequest: self._allocate,
            CreateTopicsRequest: self._create_topics,
            AssignReplicasToDirsRequest: self._assign_directories,
        }
        return handlers[type(request)](request)

    def _fetch(self, request: FetchRequest, waited_ms: int) -> FetchResponse | None:
        wanted = request.topics[0].partitions[0]
        partition = PartitionData(
            current_leader=LeaderIdAndEpoch(leader_id=self.node_id, leader_epoch=self.epoch),
            high_watermark=self.end_offset,
        )
        if wanted.current_leader_epoch != self.epoch:
            partition.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif wanted.fetch_offset >= self.end_offset and waited_ms < request.max_wait_ms:
            return None
        else:
            partition.records = b"".join(data for offset, data in self.batches if offset >= wanted.fetch_offset)
        host, port = address_of(self.node_id)
        return FetchResponse(
            responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[partition])],
            node_endpoints=[NodeEndpoint(node_id=self.node_id, host=host, port=port)],
        )

    def _register(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        known = self.image.brokers.get(NodeId(request.broker_id))
        if known is not None and not known.is_fenced and known.incarnation_id != request.incarnation_id:
            return BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        epoch = self.end_offset
        self.write(
            RegisterBrokerRecord(
                broker_id=request.broker_id,
                incarnation_id=request.incarnation_id,
                broker_epoch=epoch,
                end_points=[Listener(name=each.name, host=each.host, port=each.port) for each in request.listeners],
                log_dirs=request.log_dirs,
                rack=request.rack,
            )
        )
        self.registered_at[request.broker_id] = epoch
        return BrokerRegistrationResponse(broker_epoch=epoch)

    def _heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        broker = self.image.brokers.get(NodeId(request.broker_id))
        if broker is None or broker.epoch != request.broker_epoch:
            return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        self.heard_ms[request.broker_id] = self.now_ms()
        is_caught_up = request.current_metadata_offset >= self.registered_at[request.broker_id]
        if broker.is_fenced and not request.want_fence and not request.want_shut_down and is_caught_up:
            change = BrokerRegistrationChangeRecord(broker_id=request.broker_id, broker_epoch=broker.epoch, fenced=-1)
            self.write(change, *self._leaders_among(request.broker_id))
        if request.want_shut_down and not broker.is_fenced:
            self.fence(request.broker_id)
        is_fenced = self.image.brokers[broker.broker_id].is_fenced
        return BrokerHeartbeatResponse(
            is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=request.want_shut_down
        )

    def _alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        answer = AlterPartitionResponse()
        for topic in request.topics:
            changed = ChangedTopic(topic_id=topic.topic_id)
            for wanted in topic.partitions:
                isr = [member.broker_id for member in wanted.new_isr_with_epochs]
                known = self.image.topics[topic.topic_id].partitions[wanted.partition_index]
                code = ErrorCode.NONE
                if wanted.leader_epoch != known.leader_epoch:
                    code = ErrorCode.FENCED_LEADER_EPOCH
                elif wanted.partition_epoch != known.partition_epoch:
                    code = ErrorCode.INVALID_UPDATE_VERSION
                elif not all(map(self.is_active, isr)):
                    code = ErrorCode.INELIGIBLE_REPLICA
                else:
                    self.write(
                        PartitionChangeRecord(partition_id=wanted.partition_index, topic_id=topic.topic_id, isr=isr)
                    )
                    known = self.image.topics[topic.topic_id].partitions[wanted.partition_index]
                changed.partitions.append(
                    ChangedPartition(
                        partition_index=wanted.partition_index,
                        error_code=code,
                        leader_id=known.leader,
                        leader_epoch=known.leader_epoch,
                        isr=list(known.isr),
                        partition_epoch=known.partition_epoch,
                    )
                )
            answer.topics.append(changed)
        return answer

    def _allocate(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        start = max(0, self.image.next_producer_id)
        self.write(
            ProducerIdsRecord(
                broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=start + 1000
            )
        )
        return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=1000)

    def _assign_directories(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        for directory in request.directories:
            for topic in directory.topics:
                for each in topic.partitions:
                    known = self.image.topics[topic.topic_id].partitions[each.partition_index]
                    directories = list(known.directories)
                    directories[known.replicas.index(NodeId(request.broker_id))] = directory.id_
                    self.write(
                        PartitionChangeRecord(
                            partition_id=each.partition_index, topic_id=topic.topic_id, directories=directories
                        )
                    )
        return AssignReplicasToDirsResponse()

    def _create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        results = []
        for topic in request.topics:
            live = sorted(node for node, broker in self.image.brokers.items() if not broker.is_fenced)
            count = max(1, topic.num_partitions)
            configs = {entry.name.replace(".", "_"): entry.value or "" for entry in topic.configs}
            assignment = [live[index % len(live) :] + live[: index % len(live)] for index in range(count)]
            if topic.name not in self.image.topic_ids:
                self.create_topic(topic.name, *assignment, **configs)
            results.append(CreatableTopicResult(name=topic.name))
        return CreateTopicsResponse(topics=results)


class Node:
    """A machine with its folder, and the broker that runs on it until it is killed."""

    def __init__(self, cluster: VirtualCluster, node_id: int, folder: Path) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.folder = folder
        self.broker: Broker | None = None
        self._incarnations = 0

    @property
    def running(self) -> Broker:
        assert self.broker is not None
        return self.broker

    def start(self) -> None:
        self._incarnations += 1
        settings = {
            "process.roles": "broker",
            "node.id": str(self.node_id),
            "cluster.id": CLUSTER_ID,
            "controller.quorum.bootstrap.servers": "127.0.0.1:1000",
            "transaction.state.log.num.partitions": "2",
            "offsets.topic.num.partitions": "2",
            **{name: value.format(node=self.node_id) for name, value in self.cluster.settings.items()},
        }
        seed = uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.node_id} {self._incarnations}")
        random = Random(self.node_id * 1000 + self._incarnations)
        environment = Environment(self.cluster.clock, InlineWorker(), lambda: seed, random.randrange)
        broker = self.broker = Broker(self.folder, BROKER_CONFIG.parse(settings), environment)
        host, port = address_of(self.node_id)
        broker.advertised["PLAINTEXT"] = Address(host, port)
        endpoint = Endpoint(name="PLAINTEXT", host=host, port=port)
        peers = VirtualPeers(self.cluster, self, broker)
        membership = broker.join(peers, peers, [endpoint], "PLAINTEXT")

        def serve(_: None) -> None:
            broker.start()
            membership.ready()

        membership.loaded.then(serve)

    def kill(self) -> None:
        """The controller does not know yet, and others wait for answers in vain."""
        broker, self.broker = self.running, None
        broker.stop(clean=False)

    def send(self, request: Message, version: int | None = None) -> Promise[Any]:
        return serve(self.running, request, type(request).VERSIONS[1] if version is None else version)

    def produce(
        self, topic: str, value: bytes, *, acks: int = -1, timeout_ms: int = 1000, **batch: Any
    ) -> Promise[Any]:
        """Promises the partition's part of the answer."""
        data = batch_of([value], timestamp_ms=self.cluster.clock.now_ms(), **batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])],
        )
        return self.send(request, 12).map(lambda answer: answer.responses[0].partition_responses[0])


class VirtualPeers:
    """Requests of one purpose to one node share a connection, on which the node serves one after the other."""

    def __init__(self, cluster: VirtualCluster, node: Node, broker: Broker) -> None:
        self._cluster = cluster
        self._node = node
        self._broker = broker
        self._connections: dict[tuple[str, int], deque[Callable[[], None]]] = {}

    def call(self, purpose: str, address: Address, request: Message, timeout_ms: int) -> Promise[Answer]:
        promise: Promise[Answer] = Promise()
        clock, target = self._cluster.clock, address.port - 1000
        self._cluster.calls.append((self._node.node_id, target, request))
        connection = self._connections.setdefault((purpose, target), deque())

        def begin() -> None:
            # What is on its way arrives also when the sender is gone by then.
            clock.call_later_ms(_DELAY_MS + self._cluster.lag_ms.get((self._node.node_id, purpose), 0), deliver)

        def settle(answer: Answer) -> None:
            if begin not in connection:
                return
            was_served = connection[0] is begin
            connection.remove(begin)
            if was_served and connection:
                connection[0]()
            if not self._broker.stopped:
                promise.resolve(answer)

        def answered(answer: Message) -> None:
            if not self._cluster.is_cut(self._node.node_id, target):
                clock.call_later_ms(_DELAY_MS, lambda: settle(answer))

        def deliver(waited_ms: int = 0) -> None:
            if begin not in connection or self._cluster.is_cut(self._node.node_id, target):
                return
            if target not in self._cluster.nodes:
                if target != self._cluster.controller.node_id:
                    return
                found = self._cluster.controller.serve(request, waited_ms)
                if found is None:
                    clock.call_later_ms(_POLL_MS, lambda: deliver(waited_ms + _POLL_MS))
                else:
                    answered(found)
                return
            other = self._cluster.nodes[target].broker
            if other is None:
                settle(KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection refused"))
            else:
                serve(other, request, type(request).VERSIONS[1]).then(answered)

        connection.append(begin)
        if connection[0] is begin:
            begin()
        clock.call_later_ms(timeout_ms, lambda: settle(KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer")))
        return promise

    def close(self) -> None:
        pass


def serve(broker: Broker, request: Message, version: int) -> Promise[Any]:
    """Promises the answer; None if the broker closes the connection instead."""
    key = type(request).API_KEY
    assert key is not None
    frame = b"".join(encode_request_frame(key, version, 1, "test", encode_request(key, version, request)))

    def decode(buffers: Any) -> Any:
        if not buffers:
            return None
        data = memoryview(b"".join(buffers))
        _, position = parse_response_header(data[4:], response_header_version(key, version))
        return decode_response(key, version, data[4 + position :])

    answer = broker.dispatcher.serve(memoryview(frame[4:]), Peer("127.0.0.1", "127.0.0.1"))
    return answer.map(decode) if isinstance(answer, Promise) else Promise.resolved(decode(answer))


class VirtualCluster:
    def __init__(self, folder: Path, nodes: int = 2, **settings: str) -> None:
        self.clock = VirtualScheduler()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.controller = Controller()
        self.controller.now_ms = self.clock.monotonic_ms
        self.calls: list[tuple[int, int, Message]] = []
        self._cut: set[frozenset[int]] = set()
        self.lag_ms: dict[tuple[int, str], int] = {}
        """How long requests of a node take, by their purpose."""
        self.nodes = {number: Node(self, number, folder / str(number)) for number in range(1, nodes + 1)}

    def start(self) -> VirtualCluster:
        for node in self.nodes.values():
            node.start()
        self.until(lambda: all(self._serves(node) for node in self.nodes))
        self.until(self.is_known_to_all)
        return self

    def is_known_to_all(self) -> bool:
        """Whether all brokers have applied all of the metadata log."""
        memberships = [node.running.membership for node in self.nodes.values() if node.broker is not None]
        return all(each is not None and each.applied_offset == self.controller.end_offset - 1 for each in memberships)

    def _serves(self, node: int) -> bool:
        broker = self.nodes[node].broker
        return broker is not None and broker.membership is not None and broker.membership.serving.done

    def cut(self, one: int, other: int) -> None:
        self._cut.add(frozenset((one, other)))

    def heal(self, *ends: int) -> None:
        """The connection between two nodes, or all of them."""
        if ends:
            self._cut.discard(frozenset(ends))
        else:
            self._cut.clear()

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cut

    def until(self, condition: Callable[[], object], within_ms: int = 60_000) -> None:
        end_ms = self.clock.monotonic_ms() + within_ms
        while not condition():
            assert self.clock.monotonic_ms() < end_ms, "what was waited for did not happen"
            self.clock.advance_ms(1)

    def result(self, promise: Promise[Any]) -> Any:
        self.until(lambda: promise.done)
        return promise.value

    def isr(self, topic: str, partition: int = 0) -> list[int]:
        image = self.controller.image
        return list(image.topics[image.topic_ids[topic]].partitions[partition].isr)

    def leader(self, topic: str, partition: int = 0) -> int:
        image = self.controller.image
        return image.topics[image.topic_ids[topic]].partitions[partition].leader
