"""Two brokers of either kind under a controller of Kafka: the first leads what is measured, the second follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from oncelog.testing import BrokerProcess
from peers.kafka.kafka import CLUSTER_ID, KafkaServer

SAME: Final = "follower of the same kind"
OTHER: Final = "follower of the other kind"
CONTROLLER, LEADER, FOLLOWER = 9, 1, 2
_FEATURES: Final = {"share.version": 0, "streams.version": 0, "group.version": 0}
"""What Oncelog does not serve has to be off in its cluster."""
_READY_S: Final = 120

Node = KafkaServer | BrokerProcess
NewJava = Callable[..., KafkaServer]


class ReplicatedPair:
    """A controller and two brokers as one, as the benchmark wants its brokers."""

    def __init__(self, folder: Path, kinds: tuple[str, str], new_java: NewJava) -> None:
        self._new_java = new_java
        self._controller = new_java(folder / "controller", node_id=CONTROLLER, roles="controller", features=_FEATURES)
        self._nodes: list[Node] = [
            self._new(kind, folder / f"broker-{node}", node)
            for kind, node in zip(kinds, (LEADER, FOLLOWER), strict=True)
        ]

    def _new(self, kind: str, folder: Path, node: int) -> Node:
        address = self._controller.controller_address
        if kind == "kafka":
            return self._new_java(folder, node_id=node, roles="broker", controller=address)
        settings = {
            "process.roles": "broker",
            "node.id": node,
            "cluster.id": CLUSTER_ID,
            "controller.quorum.bootstrap.servers": address,
            "controller.listener.names": "CONTROLLER",
            "log.segment.delete.delay.ms": 0,
        }
        return BrokerProcess(folder / "data", settings, log_level="warning")

    @property
    def bootstrap_servers(self) -> str:
        return self._nodes[0].bootstrap_servers

    @property
    def pid(self) -> int:
        return self._nodes[0].pid

    def start(self) -> None:
        self._controller.start()
        for node in self._nodes:
            if isinstance(node, BrokerProcess):
                node.start(timeout_s=_READY_S)
            else:
                node.start()

    def stop(self) -> None:
        for node in reversed(self._nodes):
            node.stop()
        self._controller.stop()

    def kill(self) -> None:
        for node in self._nodes:
            node.kill()
        self._controller.kill()
