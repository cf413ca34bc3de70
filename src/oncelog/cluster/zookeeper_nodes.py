"""The nodes in ZooKeeper that hold the controllers' log (`zookeeper_log`), and how their contents are encoded.

/controller            ephemeral: {"node": 1, "epoch": 3, "host": ..., "port": ...}, who is active
/epoch                 the epoch as a decimal number; the version of this node is what fences
/log                   the id of the cluster
/log/<20 digits>       one batch each, behind a line "<epoch> <node> <sequence>" that tells whose it is
/snapshot              {"endOffset", "epoch", "parts", "log": the first log node behind it, "sweep": [[id, parts]]}
/snapshots/<id>/<k>    its parts
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from oncelog.cluster.kraft_metadata import SnapshotName
from oncelog.cluster.quorum_log import Leader
from oncelog.cluster.zookeeper import Node
from oncelog.core.address import Address

CONTROLLER: Final = "/controller"
EPOCH: Final = "/epoch"
LOG: Final = "/log"
SNAPSHOT: Final = "/snapshot"
SNAPSHOTS: Final = "/snapshots"


class SnapshotPointer(NamedTuple):
    """The content of /snapshot."""

    name: SnapshotName = SnapshotName(0, 0)
    parts: int = 0
    log: int = 0
    sweep: tuple[tuple[str, int], ...] = ()
    version: int = 0

    @property
    def is_set(self) -> bool:
        return self.parts > 0

    @property
    def id(self) -> str:
        return snapshot_id(self.name)

    @classmethod
    def of(cls, node: Node | None) -> SnapshotPointer:
        if node is None or not node.data:
            return cls(version=0 if node is None else node.version)
        content: dict[str, Any] = json.loads(node.data)
        name = SnapshotName(content["endOffset"], content["epoch"])
        sweep = tuple((id_, parts) for id_, parts in content["sweep"])
        return cls(name, content["parts"], content["log"], sweep, node.version)

    def encode(self) -> bytes:
        content = {
            "endOffset": self.name.end_offset,
            "epoch": self.name.epoch,
            "parts": self.parts,
            "log": self.log,
            "sweep": self.sweep,
        }
        return json.dumps(content).encode()


def log_path(number: int) -> str:
    return f"{LOG}/{number:020}"


def log_node(batch: bytes, epoch: int, node_id: int, sequence: int) -> bytes:
    return b"%d %d %d\n" % (epoch, node_id, sequence) + batch


def batch_in(log_node: bytes) -> bytes:
    return log_node.partition(b"\n")[2]


def snapshot_path(snapshot_id: str) -> str:
    return f"{SNAPSHOTS}/{snapshot_id}"


def part_path(snapshot_id: str, number: int) -> str:
    return f"{snapshot_path(snapshot_id)}/{number}"


def snapshot_id(name: SnapshotName) -> str:
    return f"{name.end_offset:020}-{name.epoch:010}"


def encode_leader(leader: Leader) -> bytes:
    content = {
        "node": leader.node_id,
        "epoch": leader.epoch,
        "host": leader.address.host,
        "port": leader.address.port,
    }
    return json.dumps(content).encode()


def decode_leader(data: bytes) -> Leader:
    content = json.loads(data)
    return Leader(content["node"], content["epoch"], Address(content["host"], content["port"]))
