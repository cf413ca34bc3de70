"""A controller on a virtual clock: frames in, answers out, with its log in files."""

from __future__ import annotations

import itertools
import random
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.cluster_config import FEATURES
from oncelog.cluster.file_metadata_log import FileMetadataLog
from oncelog.cluster.lifecycle import Identity, Lifecycle, State, Timing
from oncelog.cluster.quorum_log import TOPIC, TOPIC_ID, QuorumLog
from oncelog.controller.machine import ControllerConfig, Machine, Round
from oncelog.core.address import Address
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.core.steps import take_slice
from oncelog.core.worker import InlineWorker, OneAtATime
from oncelog.protocol.api import (
    decode_response,
    encode_request,
    messages,
    request_header_version,
    response_header_version,
)
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from oncelog.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionChange,
    TopicChange,
)
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.protocol.messages.cluster_metadata import ConfigRecord
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from oncelog.protocol.messages.envelope import EnvelopeRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from oncelog.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    PartitionSnapshotRequest,
    SnapshotId,
    TopicSnapshotRequest,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.unregister_broker import UnregisterBrokerRequest
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from oncelog.security.acl import Acl, AclAuthorizer, Operation, Pattern, Permission, Resource
from oncelog.security.forwarded_principal import encode_principal
from oncelog.server import controller_node
from oncelog.server.authorization import AllowClients, Authorizer
from oncelog.server.context import Peer
from oncelog.server.controller_front import NEEDED, ControllerFront
from oncelog.server.controller_node import ControllerNode
from oncelog.server.dispatch import UnservedRequest
from oncelog.server.forwarding import FORWARDED
from oncelog.server.large_requests import LargeRequests
from oncelog.server.memory_budget import MemoryBudget
from tests.unit.cluster.metadata_log import voters
from tests.unit.server import held_worker
from tests.virtual_clock import VirtualScheduler

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
ADDRESS = Address("127.0.0.1", 9093)
LEVELS = {"metadata.version": 30, "transaction.version": 2, "eligible.leader.replicas.version": 1}
DIRECTORY = uuid.UUID(int=4711)


def frame_of(request: Message, version: int | None = None) -> memoryview:
    key = ApiKey(request.API_KEY or 0)
    used = key.last if version is None else version
    head = key.to_bytes(2, "big") + used.to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    tags = b"\0" * (request_header_version(key, used) - 1)
    return memoryview(head + tags + b"".join(encode_request(key, used, request)))


class Controller:
    def __init__(
        self,
        folder: Path,
        authorizer: Authorizer | None = None,
        *,
        has_acls: bool = False,
        settings: dict[str, str] | None = None,
        worker: Any = None,
    ) -> None:
        self.scheduler = VirtualScheduler()
        self.log = FileMetadataLog(
            folder,
            node_id=1,
            address=ADDRESS,
            scheduler=self.scheduler,
            worker=worker or InlineWorker(),
            voters=voters(1),
        )
        config = ControllerConfig(CLUSTER_ID, 1, BROKER_CONFIG.parse(settings or {}), 9000, FEATURES, LEVELS)
        self.machine = Machine(config, uuid.uuid4, lambda n: 0)
        endpoint = Listener(name="CONTROLLER", host="127.0.0.1", port=9093)
        used = worker or InlineWorker()
        self.node = ControllerNode(self.log, self.machine, self.scheduler, used, uuid.uuid4(), endpoint)
        allowed = authorizer or AllowClients(cluster_action=True)
        budget = MemoryBudget(1 << 30, self.scheduler)
        large_requests = LargeRequests(OneAtATime(InlineWorker()), budget)
        self.front = ControllerFront(
            self.node,
            CLUSTER_ID,
            self.scheduler,
            budget,
            large_requests,
            OneAtATime(InlineWorker()),
            lambda: allowed,
            has_acls=has_acls,
        )

    def start(self) -> Controller:
        self.node.start()
        self.scheduler.advance_ms(5)
        return self

    def send(self, request: Message, version: int | None = None) -> Promise[Any]:
        key = ApiKey(request.API_KEY or 0)
        used = key.last if version is None else version
        answer = self.front.serve(frame_of(request, version), Peer("10.0.0.9", "10.0.0.1", listener="CONTROLLER"))

        def decoded(buffers: Any) -> Any:
            return decode_response(key, used, b"".join(buffers)[4:], 4 + response_header_version(key, used))

        return answer.map(decoded) if isinstance(answer, Promise) else Promise.resolved(decoded(answer))

    def ask(self, request: Message, version: int | None = None) -> Any:
        promise = self.send(request, version)
        self.scheduler.advance_ms(5)
        return promise.value


class Broker:
    """The broker's own machines, as in a broker."""

    def __init__(self, controller: Controller, broker_id: int) -> None:
        self.controller = controller
        self.observer = QuorumLog(
            cluster_id=CLUSTER_ID, replica_id=broker_id, directory_id=DIRECTORY, bootstrap=[ADDRESS]
        )
        listener = Listener(name="PLAINTEXT", host="127.0.0.1", port=9092)
        directory = uuid.UUID(int=8000 + broker_id)
        identity = Identity(broker_id, CLUSTER_ID, uuid.uuid4(), [listener], FEATURES, None, directory, -1)
        self.life = Lifecycle(identity, Timing(), controller.scheduler.monotonic_ms())

    def run(self, ms: int = 200) -> None:
        scheduler = self.controller.scheduler
        for _ in range(ms // 10):
            scheduler.advance_ms(10)
            now_ms = scheduler.monotonic_ms()
            self._observe(now_ms)
            order = self.life.poll(now_ms, self.observer.last_offset) if self.observer.last_offset >= 0 else None
            if order is not None:
                answer = self.controller.ask(order.request)
                if self.life.state is State.UNREGISTERED:
                    self.life.on_registration(order.number, answer, now_ms, self.observer.image.features)
                else:
                    self.life.on_heartbeat(order.number, answer, now_ms)

    def _observe(self, now_ms: int) -> None:
        send = self.observer.poll(now_ms)
        if send is None:
            return
        if isinstance(send.request, FetchRequest):
            send.request.max_wait_ms = 0
        answer = self.controller.ask(send.request)
        if isinstance(send.request, FetchRequest):
            self.observer.on_fetch(send.number, answer, now_ms)
        else:
            self.observer.on_snapshot(send.number, answer, now_ms)


def fetch(offset: int, *, epoch: int = 1, last_epoch: int = 1, wait_ms: int = 0, **fields: Any) -> FetchRequest:
    partition = FetchPartition(
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        high_watermark=fields.pop("high_watermark", offset),
        replica_directory_id=DIRECTORY,
    )
    topic = FetchTopic(topic_id=fields.pop("topic_id", TOPIC_ID), partitions=[partition])
    return FetchRequest(
        max_wait_ms=wait_ms, max_bytes=1 << 20, topics=[topic], replica_state=ReplicaState(replica_id=2), **fields
    )


def test_a_broker_follows_registers_and_is_unfenced(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    broker = Broker(controller, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    assert broker.life.state is State.SERVING
    assert broker.observer.image == controller.machine.view.image
    assert broker.observer.leader is not None and broker.observer.leader.address == ADDRESS
    assert broker.observer.quorum.kraft_version == 1


def test_a_large_request_is_decoded_by_a_worker_and_one_that_cannot_be_read_closes_its_connection(
    tmp_path: Path,
) -> None:
    controller, worker = Controller(tmp_path).start(), held_worker.HeldWorker()
    controller.front._large_requests._worker = OneAtATime(worker)
    names = [f"topic-{number:09}" for number in range(5_000)]
    answer = controller.send(DeleteTopicsRequest(topic_names=names, timeout_ms=1_000), 5)
    assert len(worker.jobs) == 1
    frame = frame_of(DeleteTopicsRequest(topic_names=names, timeout_ms=1_000), 5)
    cut_off = controller.front.serve(frame[:-100], Peer("10.0.0.9", "10.0.0.1"))
    worker.finish(controller.scheduler)
    controller.scheduler.advance_ms(5)
    assert len(answer.value.responses) == len(names)
    assert isinstance(cut_off, Promise)
    assert cut_off.value == []


def with_a_broker(folder: Path) -> Controller:
    controller = Controller(folder).start()
    broker = Broker(controller, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    return controller


def topics(prefix: str, count: int) -> CreateTopicsRequest:
    wanted = [CreatableTopic(name=f"{prefix}{n}", num_partitions=1, replication_factor=1) for n in range(count)]
    return CreateTopicsRequest(topics=wanted)


def let_time_pass(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a millisecond: nothing long fits into a slice."""
    looks, now_ms = itertools.count(1), controller.scheduler.monotonic_ms
    monkeypatch.setattr(controller.scheduler, "monotonic_ms", lambda: now_ms() + next(looks))


def test_a_long_request_is_decided_and_applied_in_slices_and_written_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = with_a_broker(tmp_path)
    let_time_pass(controller, monkeypatch)
    before = controller.log.committed.batches_since_snapshot
    slices: list[int] = []

    def counted(*arguments: Any) -> bool:
        slices.append(len(controller.machine.view.image.topics))
        return take_slice(*arguments)

    monkeypatch.setattr("oncelog.server.controller_node.take_slice", counted)
    answer, later = controller.send(topics("a", 200)), controller.send(topics("b", 1))
    while not later.done:
        assert answer.done == (len(controller.machine.view.image.topics) >= 200), "answered when it is applied"
        controller.scheduler.advance_ms(0)
    assert len(slices) > 100
    assert set(slices) <= {0, 200, 201}, "nobody sees a part of it"
    assert {each.error_code for each in answer.value.topics} == {ErrorCode.NONE}
    made = [batch for batch in controller.log.committed._batches[before:] if b"a199" in batch]
    assert len(made) == 1
    assert b"a0" in made[0], "all or nothing"


def test_a_round_takes_no_more_requests_than_it_has_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = with_a_broker(tmp_path)
    let_time_pass(controller, monkeypatch)
    before = controller.log.committed.batches_since_snapshot
    answers = [controller.send(topics(f"{number}-", 1)) for number in range(100)]
    while not answers[-1].done:
        controller.scheduler.advance_ms(0)
    assert all(answer.value.topics[0].error_code == ErrorCode.NONE for answer in answers)
    assert 2 < controller.log.committed.batches_since_snapshot - before < 100


def test_what_is_being_decided_when_the_office_is_lost_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = with_a_broker(tmp_path)
    let_time_pass(controller, monkeypatch)
    end = controller.log.committed.end_offset
    answer, held = controller.send(topics("a", 200)), []
    # The virtual clock goes on until nothing is due: the second slice is where this is cut off.
    call_later_ms = controller.scheduler.call_later_ms
    monkeypatch.setattr(controller.scheduler, "call_later_ms", lambda ms, call: held.append(call))
    controller.node._run_round()
    assert controller.node._deciding is not None
    later = controller.node.add(lambda _: [ConfigRecord(resource_type=4, resource_name="", name="x", value="z")])
    assert not later.done, "what is being decided has its offsets already"
    controller.node.on_leader(None)
    assert {each.error_code for each in answer.value.topics} == {ErrorCode.NOT_CONTROLLER}
    monkeypatch.setattr(controller.scheduler, "call_later_ms", call_later_ms)
    for call in held:
        call()
    controller.scheduler.advance_ms(1_000)
    assert controller.log.committed.end_offset == end
    assert isinstance(later.value, KafkaError)
    assert later.value.code == ErrorCode.NOT_CONTROLLER
    assert not controller.machine.view.image.topics


def test_a_fetch_waits_for_news(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    end = controller.log.committed.end_offset
    waiting = controller.send(fetch(end, wait_ms=500))
    controller.scheduler.advance_ms(100)
    assert not waiting.done
    controller.ask(CreateTopicsRequest(topics=[CreatableTopic(name="a", num_partitions=1, replication_factor=1)]))
    assert not waiting.done, "nothing was written: there is no broker"
    Broker(controller, 2).run(20)
    assert waiting.done and waiting.value.responses[0].partitions[0].records
    late = controller.send(fetch(controller.log.committed.end_offset, wait_ms=500))
    controller.scheduler.advance_ms(500)
    assert not late.value.responses[0].partitions[0].records
    behind = controller.ask(fetch(end, wait_ms=500, high_watermark=end))
    assert behind.responses[0].partitions[0].high_watermark == controller.log.committed.end_offset


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (fetch(0, epoch=0, last_epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch(0, epoch=9), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch(0, last_epoch=2), ErrorCode.INVALID_REQUEST),
        (fetch(-5), ErrorCode.INVALID_REQUEST),
    ],
)
def test_fetches_that_are_refused_name_the_leader(tmp_path: Path, request_: FetchRequest, code: ErrorCode) -> None:
    answer = Controller(tmp_path).start().ask(request_)
    data = answer.responses[0].partitions[0]
    assert (data.error_code, data.current_leader.leader_id, data.current_leader.leader_epoch) == (code, 1, 1)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(1, *ADDRESS)]


def test_fetches_of_another_cluster_or_topic_are_refused(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    assert controller.ask(fetch(0, cluster_id="other")).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert controller.ask(fetch(0, topic_id=uuid.UUID(int=5))).error_code == ErrorCode.INVALID_REQUEST
    assert controller.ask(fetch(0), version=12).error_code == ErrorCode.INVALID_REQUEST


def test_a_log_that_goes_on_elsewhere_is_told_where_it_differs(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    end = controller.log.committed.end_offset
    data = controller.ask(fetch(end + 5)).responses[0].partitions[0]
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, end)


def test_a_restart_goes_on_in_the_next_epoch_and_a_broker_stays_registered(tmp_path: Path) -> None:
    first = Controller(tmp_path).start()
    broker = Broker(first, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    first.node.stop()
    second = Controller(tmp_path).start()
    assert second.log.epoch == 2
    assert second.machine.view.image.brokers == first.machine.view.image.brokers
    assert second.machine.registered_offset(2) == first.machine.registered_offset(2)
    broker.controller = second
    broker.run(100)
    assert broker.life.state is State.SERVING
    second.scheduler.advance_ms(9002)
    assert second.machine.view.image.brokers[2].is_fenced  # type: ignore[index]  # a NodeId


def test_a_new_broker_begins_with_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_node, "SNAPSHOT_BATCHES", 3)
    controller = Controller(tmp_path).start()
    Broker(controller, 2).run()
    Broker(controller, 3).run()
    snapshot = controller.log.committed.snapshot
    assert snapshot is not None
    late = Broker(controller, 4)
    late.run(500)
    assert late.observer.image == controller.machine.view.image

    def piece(position: int, end_offset: int, max_bytes: int = 100) -> Any:
        wanted = PartitionSnapshotRequest(
            current_leader_epoch=1, snapshot_id=SnapshotId(end_offset=end_offset, epoch=1), position=position
        )
        topics = [TopicSnapshotRequest(name=TOPIC, partitions=[wanted])]
        return controller.ask(FetchSnapshotRequest(topics=topics, max_bytes=max_bytes)).topics[0].partitions[0]

    newest = controller.log.committed.snapshot
    assert newest is not None
    end_offset = newest.name.end_offset
    assert bytes(piece(10, end_offset).unaligned_records) == newest.data[10:110]
    assert piece(len(newest.data), end_offset).error_code == ErrorCode.POSITION_OUT_OF_RANGE
    assert piece(0, end_offset + 1).error_code == ErrorCode.SNAPSHOT_NOT_FOUND


def test_the_quorum_is_described(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    Broker(controller, 2).run()

    def describe(topic: str) -> Any:
        topics = [RequestTopicData(topic_name=topic, partitions=[RequestPartitionData()])]
        return controller.ask(DescribeQuorumRequest(topics=topics))

    partition = describe(TOPIC).topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (1, 1)
    assert [voter.replica_id for voter in partition.current_voters] == [1]
    assert [observer.replica_id for observer in partition.observers] == [2]
    assert describe("other").topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_served_and_which_features(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    answer = controller.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    assert {each.api_key for each in answer.api_keys} == set(NEEDED)
    assert FORWARDED.keys() <= set(NEEDED), "what brokers pass on is served"
    assert {each.name: each.max_version_level for each in answer.finalized_features} == {**LEVELS, "kraft.version": 1}
    newer = memoryview(bytearray(frame_of(ApiVersionsRequest(), 4)))
    newer[2:4] = (99).to_bytes(2, "big")
    buffers = controller.front.serve(newer, Peer("a", "b"))
    assert b"".join(buffers)[8:10] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")  # type: ignore[arg-type]  # no promise
    metadata = memoryview(b"\0\x03\0\x0c" + b"\0" * 20)
    with pytest.raises(UnservedRequest):
        controller.front.serve(metadata, Peer("a", "b"))


def envelope(request: Message, principal: str = "User:alice") -> EnvelopeRequest:
    return EnvelopeRequest(
        request_data=bytes(frame_of(request)),
        request_principal=encode_principal(principal),
        client_host_address=bytes([10, 1, 2, 3]),
    )


def unwrapped(request: Message, answer: Any) -> Any:
    key = ApiKey(request.API_KEY or 0)
    data = bytes(answer.response_data)
    assert int.from_bytes(data[:4], "big") == 7, "the correlation id of the client"
    return decode_response(key, key.last, data, 4 + response_header_version(key, key.last))


def test_an_envelope_is_decided_by_what_the_client_may_do(tmp_path: Path) -> None:
    may_create = Acl(
        Resource.TOPIC, "mine", Pattern.LITERAL, "User:alice", "10.1.2.3", Operation.CREATE, Permission.ALLOW
    )
    acls = AclAuthorizer([may_create], super_users=("User:ANONYMOUS",), allow_everyone_if_no_acl_found=False)
    controller = Controller(tmp_path, acls, has_acls=True).start()
    broker = Broker(controller, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("mine", "theirs")]
    request = CreateTopicsRequest(topics=topics)
    answer = unwrapped(request, controller.ask(envelope(request)))
    assert [topic.error_code for topic in answer.topics] == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    gone = UnregisterBrokerRequest(broker_id=2)
    answer = unwrapped(gone, controller.ask(envelope(gone)))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    inner = controller.ask(envelope(fetch(0)))
    assert inner.error_code == ErrorCode.UNSUPPORTED_VERSION, "what brokers send themselves is in no envelope"
    broken = envelope(request)
    broken.request_principal = b"\0\0\x40a"
    assert controller.ask(broken).error_code == ErrorCode.INVALID_REQUEST


def test_acls_are_refused_where_nobody_looks_at_them(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    answer = controller.ask(CreateAclsRequest(creations=[AclCreation()]))
    assert [each.error_code for each in answer.results] == [ErrorCode.SECURITY_DISABLED]


def test_without_cluster_action_nobody_is_a_broker(tmp_path: Path) -> None:
    nobody = AclAuthorizer([], super_users=(), allow_everyone_if_no_acl_found=False)
    controller = Controller(tmp_path, nobody, has_acls=True).start()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert controller.ask(fetch(0)).error_code == refused
    assert controller.ask(envelope(UnregisterBrokerRequest(broker_id=1))).error_code == refused
    Broker(controller, 2).run()
    assert not controller.machine.view.image.brokers


def test_a_controller_that_has_resigned_says_so(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    controller.log.resign()
    request = UnregisterBrokerRequest(broker_id=2)
    assert controller.ask(request).error_code == ErrorCode.NOT_CONTROLLER
    assert controller.ask(envelope(request)).error_code == ErrorCode.NOT_CONTROLLER
    data = controller.ask(fetch(0)).responses[0].partitions[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    controller.log.campaign()
    controller.scheduler.advance_ms(5)
    assert controller.ask(request).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert controller.log.epoch == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_leadership_goes_back_to_first_replicas_where_that_is_wanted(tmp_path: Path, enabled: bool) -> None:
    settings = {"auto.leader.rebalance.enable": str(enabled).lower(), "leader.imbalance.check.interval.seconds": "10"}
    controller = Controller(tmp_path, settings=settings).start()
    brokers = [Broker(controller, broker_id) for broker_id in (2, 3)]
    for broker in brokers:
        broker.run()
        broker.life.ready()
        broker.run()
    topic = CreatableTopic(name="a", num_partitions=-1, replication_factor=-1)
    topic.assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[2, 3])]
    assert controller.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0
    brokers[0].life.stop(controller.scheduler.monotonic_ms())
    brokers[0].run()
    brokers[1].run()
    image = controller.machine.view.image
    partition = image.topics[image.topic_ids["a"]].partitions[0]
    assert partition.leader == 3
    brokers[0] = Broker(controller, 2)
    for _ in range(60):
        brokers[0].run(100)
        brokers[0].life.ready()
        brokers[1].run(100)
    assert brokers[0].life.state is State.SERVING
    change = PartitionChange(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=3), BrokerState(broker_id=2)],
    )
    topics = [TopicChange(topic_id=image.topic_ids["a"], partitions=[change])]
    request = AlterPartitionRequest(broker_id=3, broker_epoch=brokers[1].life.epoch, topics=topics)
    assert controller.ask(request).topics[0].partitions[0].error_code == 0
    for _ in range(60):
        brokers[0].run(100)
        brokers[1].run(100)
    image = controller.machine.view.image
    assert image.topics[image.topic_ids["a"]].partitions[0].leader == (2 if enabled else 3)


class HeldWorker:
    """An fsync that takes its time."""

    def __init__(self) -> None:
        self.is_held = False
        self._jobs: list[Any] = []

    def run(self, job: Any) -> Promise[Any]:
        if not self.is_held:
            return InlineWorker().run(job)
        promise: Promise[Any] = Promise()
        self._jobs.append(lambda: InlineWorker().run(job).then(promise.resolve))
        return promise

    def go_on(self) -> None:
        self.is_held = False
        for job in self._jobs:
            job()


def test_nothing_is_answered_before_it_is_on_disk_and_what_waits_is_one_batch(tmp_path: Path) -> None:
    worker = HeldWorker()
    controller = Controller(tmp_path, worker=worker).start()
    broker = Broker(controller, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    batches = controller.log.committed.batches_since_snapshot

    def create(name: str) -> Promise[Any]:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        return controller.send(CreateTopicsRequest(topics=[topic]))

    worker.is_held = True
    first = create("a")
    controller.scheduler.advance_ms(5)
    others = [create(name) for name in ("b", "c", "b")]
    controller.scheduler.advance_ms(5)
    assert not any(promise.done for promise in [first, *others])
    assert "a" not in controller.machine.view.image.topic_ids
    worker.go_on()
    controller.scheduler.advance_ms(5)
    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    assert [promise.value.topics[0].error_code for promise in [first, *others]] == [0, 0, 0, exists]
    assert controller.log.committed.batches_since_snapshot == batches + 2


@pytest.mark.parametrize("seed", range(20))
def test_frames_with_wrong_bytes_are_answered_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    controller = Controller(tmp_path).start()
    for key in NEEDED:
        for version in range(key.first, key.last + 1):
            frame = bytearray(frame_of(messages(key).request(), version))
            for _ in range(chance.randint(0, 4)):
                frame[chance.randrange(4, len(frame))] = chance.randrange(256)
            with suppress(MalformedRequest, UnservedRequest):
                controller.front.serve(memoryview(frame)[: chance.randint(12, len(frame) + 12)], Peer("a", "b"))
            controller.scheduler.advance_ms(1)
    assert controller.log.is_active
    assert controller.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1")).error_code == 0


@pytest.mark.parametrize("is_passed_on", [False, True])
def test_an_answer_that_cannot_be_encoded_is_a_matter_of_its_client_alone(tmp_path: Path, is_passed_on: bool) -> None:
    """The message about the name does not fit into a string of an old version."""
    controller = Controller(tmp_path).start()
    wrong = CreateTopicsRequest(topics=[CreatableTopic(name="x" * 32_760, num_partitions=1, replication_factor=1)])
    frame = frame_of(wrong, 4)
    if is_passed_on:
        data = EnvelopeRequest(
            request_data=bytes(frame),
            request_principal=encode_principal("User:eve"),
            client_host_address=b"\x0a\0\0\x09",
        )
        first = controller.send(data)
    else:
        first = controller.front.serve(frame, Peer("10.0.0.9", "10.0.0.1"))
    assert isinstance(first, Promise)
    second = controller.send(UnregisterBrokerRequest(broker_id=77))
    controller.scheduler.advance_ms(5)
    assert second.value.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert first.value == [] or first.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_record_that_is_too_large_for_the_log_is_a_matter_of_its_client_alone(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    user = ScramCredentialUpsertion(
        name="eve", mechanism=1, iterations=4096, salt=bytes(1_000_000), salted_password=bytes(32)
    )
    wrong = controller.send(AlterUserScramCredentialsRequest(upsertions=[user]))
    right = controller.send(
        AlterClientQuotasRequest(
            entries=[
                EntryData(
                    entity=[EntityData(entity_type="user", entity_name="eve")],
                    ops=[OpData(key="producer_byte_rate", value=1024.0)],
                )
            ]
        )
    )
    controller.scheduler.advance_ms(5)
    assert wrong.value.results[0].error_code == ErrorCode.INVALID_REQUEST
    assert right.value.entries[0].error_code == ErrorCode.NONE
    assert controller.machine.view.image.quotas


def test_a_controller_whose_first_records_cannot_be_written_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full has room for small appends sooner than for large ones: features come with the rest or not."""
    controller = Controller(tmp_path)
    append, failures = controller.log.append, [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")]
    monkeypatch.setattr(
        controller.log, "append", lambda given: Promise.resolved(failures.pop()) if failures else append(given)
    )
    controller.start()
    assert not controller.machine.view.image.controllers
    controller.scheduler.advance_ms(2 * controller_node.RETRY_MS)
    assert controller.machine.view.image.features
    assert controller.machine.view.image.controllers
    assert controller.node.active.done
    answer = controller.ask(UnregisterBrokerRequest(broker_id=77))
    assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_snapshot_that_cannot_be_stored_is_not_made_again_with_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_node, "SNAPSHOT_BATCHES", 1)
    controller = Controller(tmp_path)
    asked: list[Any] = []

    def refuse(snapshot: Any) -> Promise[KafkaError]:
        asked.append(snapshot)
        return Promise.resolved(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device"))

    monkeypatch.setattr(controller.log, "write_snapshot", refuse)
    controller.start()
    Broker(controller, 2).run()
    Broker(controller, 3).run()
    assert len(asked) == 1
    controller.scheduler.advance_ms(controller_node.SNAPSHOT_RETRY_MS)
    Broker(controller, 4).run()
    assert len(asked) == 2


def describe_cluster(controller: Controller, version: int | None = None, **fields: Any) -> Any:
    return controller.ask(DescribeClusterRequest(**{"endpoint_type": 2, **fields}), version)


def test_controllers_are_described_to_those_who_ask_for_controllers(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    answer = describe_cluster(controller)
    assert (answer.error_code, answer.endpoint_type, answer.cluster_id, answer.controller_id) == (0, 2, CLUSTER_ID, 1)
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [(1, *ADDRESS)]
    assert answer.cluster_authorized_operations == -(2**31)
    assert describe_cluster(controller, include_cluster_authorized_operations=True).cluster_authorized_operations > 0
    assert describe_cluster(controller, endpoint_type=1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert describe_cluster(controller, endpoint_type=7).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    assert describe_cluster(controller, 0, endpoint_type=1).error_code == ErrorCode.INVALID_REQUEST


def test_controllers_are_not_described_to_everybody(tmp_path: Path) -> None:
    nobody = AclAuthorizer([], super_users=(), allow_everyone_if_no_acl_found=False)
    answer = describe_cluster(Controller(tmp_path, nobody, has_acls=True).start())
    assert (answer.error_code, answer.brokers) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


def test_settings_of_topics_and_of_the_controller_are_described_and_changed(tmp_path: Path) -> None:
    controller = Controller(tmp_path, settings={"num.partitions": "3"}).start()
    broker = Broker(controller, 2)
    broker.run()
    broker.life.ready()
    broker.run()
    topic = CreatableTopic(name="tea", num_partitions=1, replication_factor=1)
    assert controller.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0

    def alter(resource_type: int, name: str, key: str, value: str) -> int:
        config = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[config])
        return int(controller.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code)

    def describe(resource_type: int, name: str, *keys: str) -> Any:
        resource = DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=list(keys) or None
        )
        return controller.ask(DescribeConfigsRequest(resources=[resource])).results[0]

    assert alter(2, "tea", "retention.ms", "1234") == alter(4, "1", "message.max.bytes", "5678") == 0
    found = describe(2, "tea", "retention.ms", "cleanup.policy").configs
    assert {each.name: (each.value, each.config_source) for each in found} == {
        "retention.ms": ("1234", 1),
        "cleanup.policy": ("delete", 5),
    }
    found = describe(4, "1", "message.max.bytes", "num.partitions").configs
    assert {each.name: (each.value, each.config_source) for each in found} == {
        "message.max.bytes": ("5678", 2),
        "num.partitions": ("3", 4),
    }
    assert len(describe(4, "1").configs) > 100
    assert describe(4, "2").error_code == ErrorCode.INVALID_REQUEST, "each node describes itself"
    assert describe(2, "coffee").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name, code in (("7", ErrorCode.BROKER_ID_NOT_REGISTERED), ("\N{ARABIC-INDIC DIGIT ONE}", 42), ("9" * 5000, 42)):
        assert alter(4, name, "message.max.bytes", "1") == code


def serving_broker(controller: Controller, broker_id: int = 2) -> Broker:
    broker = Broker(controller, broker_id)
    broker.run()
    broker.life.ready()
    broker.run()
    assert broker.life.state is State.SERVING
    return broker


def is_fenced(controller: Controller, broker_id: int = 2) -> bool:
    return {node.broker_id: node.is_fenced for node in controller.machine.view.image.brokers.values()}[broker_id]  # type: ignore[index]  # a NodeId


def test_a_controller_that_was_paused_does_not_fence_brokers_for_it(tmp_path: Path) -> None:
    controller = Controller(tmp_path).start()
    broker = serving_broker(controller)
    controller.scheduler.pause_ms(600_000)
    controller.scheduler.advance_ms(5)
    assert not is_fenced(controller), "it could not be heard"
    broker.run(3000)
    assert not is_fenced(controller)
    controller.scheduler.advance_ms(9_000 + 9_000 // 8)
    assert is_fenced(controller), "silence after the pause counts"


def test_a_snapshot_is_encoded_by_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_node, "SNAPSHOT_BATCHES", 3)
    worker = _CountingWorker()
    controller = Controller(tmp_path, worker=worker).start()
    serving_broker(controller)
    assert controller.log.committed.snapshot is not None
    assert "encode" in worker.names


class _CountingWorker(InlineWorker):
    def __init__(self) -> None:
        self.names: list[str] = []

    def run(self, job: Any) -> Any:
        self.names.append(getattr(getattr(job, "func", job), "__name__", ""))
        return super().run(job)


class _SlowDisk(InlineWorker):
    """Each job takes 10 ms, as soon as there is a clock."""

    scheduler: VirtualScheduler | None = None

    def run(self, job: Any) -> Any:
        if self.scheduler is None:
            return super().run(job)
        promise: Promise[Any] = Promise()
        self.scheduler.call_later_ms(10, lambda: super(_SlowDisk, self).run(job).then(promise.resolve))
        return promise


def test_a_silent_broker_is_fenced_while_there_is_always_something_to_write(tmp_path: Path) -> None:
    worker = _SlowDisk()
    controller = Controller(tmp_path, worker=worker).start()
    serving_broker(controller)
    worker.scheduler = controller.scheduler
    user = EntityData(entity_type="user", entity_name="alice")
    changes = 0

    def change(_: Any = None) -> None:
        nonlocal changes
        changes += 1
        op = OpData(key="request_percentage", value=float(changes))
        request = AlterClientQuotasRequest(entries=[EntryData(entity=[user], ops=[op])])
        controller.send(request).then(change)

    for _ in range(3):  # while the change of one is written, those of the others wait
        change()
    controller.scheduler.advance_ms(9_000 + 2 * 9_000 // 8)
    assert changes > 1000
    assert is_fenced(controller)


def test_requests_are_answered_if_the_work_that_recurs_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(tmp_path).start()
    serving_broker(controller)

    def fail(*_: Any) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(Round, "fence_silent", fail)
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    assert controller.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == ErrorCode.NONE
