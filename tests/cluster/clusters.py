"""Clusters of Java brokers and Oncelog brokers side by side, on 127.0.0.1, with a controller of either."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from peers.kafka.kafka import CLUSTER_ID, KafkaServer, free_port
from tests.oncelog_node import OncelogNode
from tests.waiting import wait_until

FEATURES = {"share.version": 0, "streams.version": 0, "group.version": 0}
"""What Oncelog does not serve has to be off in its cluster."""
SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A broker that is killed is fenced soon."""
PATIENT = {"broker.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}
"""Where nobody is killed or paused: nobody is fenced or leaves the ISR because the machine is busy."""
INTERNAL_TOPICS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
}
COMMON = {
    **SESSION,
    **INTERNAL_TOPICS,
    "auto.leader.rebalance.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "replica.lag.time.max.ms": "4000",
}


NOTHING: Mapping[str, str] = {}


class Cluster:
    """Java brokers and Oncelog brokers by their node ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.controller: KafkaServer | None = None
        self.controllers: dict[int, KafkaServer] = {}
        """If there are several."""
        self.own_controller: OncelogNode | None = None
        self.own_controllers: list[OncelogNode] = []
        """If there are several, which somebody else starts and ends."""
        self.java: dict[int, KafkaServer] = {}
        self.oncelog: dict[int, OncelogNode] = {}
        self._admins: dict[str, AdminClient] = {}

    @property
    def nodes(self) -> dict[int, KafkaServer | OncelogNode]:
        """All brokers."""
        return {**self.java, **self.oncelog}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values() if node.running)

    @property
    def controller_address(self) -> str:
        if self.own_controller is not None:
            return self.own_controller.bootstrap_servers
        if self.own_controllers:
            return ",".join(process.bootstrap_servers for process in self.own_controllers)
        assert self.controller is not None
        if self.controllers:
            return ",".join(server.controller_address for server in self.controllers.values())
        return self.controller.controller_address

    def start_controller(
        self, *, node_id: int = 1, roles: str = "broker,controller", properties: Mapping[str, str] = NOTHING
    ) -> None:
        self.controller = KafkaServer(
            self.folder / f"kafka-{node_id}",
            features=FEATURES,
            node_id=node_id,
            roles=roles,
            properties={**COMMON, **properties},
        ).start()
        if "broker" in roles:
            self.java[node_id] = self.controller

    def start_own_controller(self, *, node_id: int = 100, **settings: str) -> OncelogNode:
        """Oncelog's. No broker knows the difference."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        roles = {"process.roles": "controller", "node.id": node_id, "cluster.id": CLUSTER_ID}
        self.own_controller = OncelogNode(self.folder / f"oncelog-{node_id}", {**roles, **COMMON, **given})
        return self.own_controller.start()

    def kill_controller(self) -> None:
        self.only_controller.kill()

    def restart_controller(self) -> None:
        self.only_controller.start()

    @property
    def only_controller(self) -> KafkaServer | OncelogNode:
        found = self.own_controller or self.controller
        assert found is not None
        return found

    def start_controllers(self, *nodes: int) -> dict[int, KafkaServer]:
        """Several of them, of which one is active."""
        servers = {
            node: KafkaServer(
                self.folder / f"kafka-{node}", features=FEATURES, node_id=node, roles="controller", properties=COMMON
            )
            for node in nodes
        }
        for server in servers.values():
            server.voters = ",".join(one.voter for one in servers.values())
        self.controllers = servers
        # One alone elects nobody and is not ready before others are there.
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(KafkaServer.start, servers.values()))
        self.controller = servers[nodes[0]]
        return servers

    def start_java(
        self, node_id: int, properties: Mapping[str, str] = NOTHING, listeners: Sequence[str] = ()
    ) -> KafkaServer:
        """`listeners` are others beside the plain one."""
        server = KafkaServer(
            self.folder / f"kafka-{node_id}",
            node_id=node_id,
            roles="broker",
            controller=self.controller_address,
            properties={**COMMON, **properties},
            more_listeners={name: free_port() for name in listeners},
        )
        self.java[node_id] = server.start()
        return server

    def new_oncelog(self, node_id: int, folder: str = "", listen: str = "", **changes: Any) -> OncelogNode:
        settings = {
            "process.roles": "broker",
            "node.id": node_id,
            "cluster.id": CLUSTER_ID,
            "controller.quorum.bootstrap.servers": self.controller_address,
            "controller.listener.names": "CONTROLLER",
            **COMMON,
            **{name.replace("_", "."): value for name, value in changes.items()},
        }
        arguments = ["--listen", listen] if listen else []
        return OncelogNode(self.folder / (folder or f"oncelog-{node_id}"), settings, arguments=arguments)

    def start_oncelog(self, node_id: int, **changes: Any) -> OncelogNode:
        process = self.oncelog[node_id] = self.new_oncelog(node_id, **changes)
        return process.start()

    def data_dir(self, node_id: int) -> Path:
        return self.nodes[node_id].data_dir

    @contextlib.contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        self.nodes[node_id].pause()
        try:
            yield
        finally:
            self.nodes[node_id].resume()

    def stop(self) -> None:
        for node in (*self.nodes.values(), *self.controllers.values(), self.own_controller, self.controller):
            if node is not None:
                node.kill()

    # What clients do and see

    @property
    def admin(self) -> AdminClient:
        return self.admin_on(self.bootstrap_servers)

    def admin_on(self, address: str) -> AdminClient:
        if address not in self._admins:
            self._admins[address] = AdminClient({"bootstrap.servers": address})
        return self._admins[address]

    def create_topic(self, name: str, *replicas: list[int], **configs: str) -> None:
        """One partition for each list of replicas, the preferred leader first."""
        topic = NewTopic(
            name,
            num_partitions=len(replicas),
            replica_assignment=list(replicas),
            config={key.replace("_", "."): value for key, value in configs.items()},
        )
        for future in self.admin.create_topics([topic]).values():
            future.result(120)
        wait_until(lambda: all(self.partition(name, index) for index in range(len(replicas))))

    def partition(self, topic: str, index: int = 0, *, on: str | None = None) -> PartitionMetadata | None:
        """As one broker tells it; None while it has no leader."""
        admin = self.admin_on(on or self.bootstrap_servers)
        found = admin.list_topics(topic, timeout=60).topics[topic].partitions.get(index)
        return found if found is not None and found.leader >= 0 else None

    def wait_for_leader(self, topic: str, leader: int, *, on: str | None = None) -> None:
        wait_until(lambda: (found := self.partition(topic, on=on)) is not None and found.leader == leader)

    def wait_for_isr(self, topic: str, *members: int) -> None:
        wait_until(lambda: (found := self.partition(topic)) is not None and sorted(found.isrs) == sorted(members))

    def producer(self, **settings: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap_servers, "acks": "all", "linger.ms": 0, **given})

    def read(self, topic: str, count: int, *, group: str) -> list[bytes]:
        """The first records of a topic, by a member of a group."""
        return self._read(topic, group, lambda found: len(found) >= count)

    def read_until(self, topic: str, last: str) -> list[bytes]:
        return self._read(topic, f"all of {topic}", lambda found: found[-1:] == [last.encode()])

    def _read(self, topic: str, group: str, is_all: Callable[[list[bytes]], bool]) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([topic])
        found: list[bytes] = []

        def has_all() -> bool:
            messages = consumer.consume(500, 0.2)
            found.extend(message.value() or b"" for message in messages if not message.error())
            return is_all(found)

        try:
            wait_until(has_all)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


def send(producer: Producer, topic: str, values: list[str], partition: int = 0) -> None:
    """All of them are acknowledged when this returns."""
    failures: list[Any] = []
    for value in values:
        producer.produce(
            topic, value.encode(), partition=partition, on_delivery=lambda error, _: error and failures.append(error)
        )
    assert producer.flush(180) == 0
    assert failures == []


def log_bytes(cluster: Cluster, node_id: int, partition: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((cluster.data_dir(node_id) / partition).glob("*.log")))


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
