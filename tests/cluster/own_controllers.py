"""Several controllers of Oncelog as processes, with their log in ZooKeeper, and what is in that log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from oncelog.cluster.zookeeper_nodes import CONTROLLER, EPOCH, LOG, SNAPSHOT, batch_in, log_path
from oncelog.controller.metadata_batches import read_batches
from oncelog.protocol.batch import read_header
from oncelog.protocol.messages.cluster_metadata import LeaderChangeMessage, TopicRecord
from peers.kafka.kafka import CLUSTER_ID, free_port
from tests.cluster.clusters import COMMON, Cluster
from tests.oncelog_node import OncelogNode
from tests.waiting import wait_until

NODES = (100, 101, 102)
SESSION_MS = 3000
_CHANGE_S = 120


class OwnControllers:
    """Faults of the active one are over when the call returns: another one is active, and this one is back."""

    def __init__(
        self,
        cluster: Cluster,
        connect: str,
        chroot: str = "/oncelog",
        settings: Mapping[str, str] = COMMON,
        nodes: Sequence[int] = NODES,
    ) -> None:
        self._chroot = chroot
        self._operator = KazooClient(connect, timeout=10)
        self._operator.start(60)
        ports = {node: free_port() for node in nodes}
        common = {
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **settings,
            "process.roles": "controller",
            "cluster.id": CLUSTER_ID,
            "zookeeper.connect": connect + chroot,
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items()),
        }
        self.processes = {
            node: OncelogNode(cluster.folder / f"controller-{node}", {**common, "node.id": node}, port=port)
            for node, port in ports.items()
        }
        cluster.own_controllers = list(self.processes.values())

    def start(self) -> None:
        for process in self.processes.values():
            process.start()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        self._operator.stop()
        self._operator.close()

    def active(self) -> int | None:
        """None also while ZooKeeper does not answer."""
        with suppress(KazooException, KazooTimeoutError):
            found: int = json.loads(self._operator.get(self._chroot + CONTROLLER)[0])["node"]
            return found
        return None

    def wait_for_active(self, *others: int) -> int:
        """One that is none of `others`."""
        found: list[int] = []

        def is_there() -> bool:
            active = self.active()
            if active is not None and active not in others:
                found.append(active)
            return bool(found)

        wait_until(is_there, timeout_s=_CHANGE_S)
        return found[0]

    def kill_active(self) -> None:
        first = self.wait_for_active()
        self.processes[first].kill()
        self.wait_for_active(first)
        self.processes[first].start()

    def pause_active(self) -> None:
        """Its session ends meanwhile, and it believes that it is active when it goes on."""
        first = self.wait_for_active()
        self.processes[first].pause()
        try:
            self.wait_for_active(first)
        finally:
            self.processes[first].resume()

    def check_log(self) -> LogInZooKeeper:
        return check_log(self._operator, self._chroot)


class LogInZooKeeper(NamedTuple):
    writers: dict[int, int]
    """The controller of each epoch."""
    topics: list[str]
    """Every topic that was ever made."""


def check_log(operator: KazooClient, chroot: str) -> LogInZooKeeper:
    """Numbers and offsets follow on each other, epochs do not go back, each has one controller and begins with it."""
    operator.sync(chroot)
    assert operator.get(chroot + SNAPSHOT)[0] == b"", "the beginning of the log was deleted"
    writers: dict[int, int] = {}
    topics: list[str] = []
    offset = epoch = 0
    for number in range(len(operator.get_children(chroot + LOG))):
        data: bytes = operator.get(chroot + log_path(number))[0]
        stamped_epoch, writer, _ = map(int, data.partition(b"\n")[0].split())
        header = read_header(batch_in(data))
        assert header.base_offset == offset, "offsets have a gap"
        assert header.leader_epoch == stamped_epoch >= epoch, "an epoch goes back"
        is_first, offset, epoch = stamped_epoch > epoch, header.next_offset, stamped_epoch
        assert writers.setdefault(epoch, writer) == writer, f"two controllers have written in epoch {epoch}"
        for batch in read_batches(batch_in(data)):
            if is_first:
                [leader_change, *_] = batch.controls
                assert isinstance(leader_change, LeaderChangeMessage)
                assert leader_change.leader_id == writer
            topics += [made.name for record in batch.records if isinstance(made := record.known(), TopicRecord)]
    assert int(operator.get(chroot + EPOCH)[0]) >= epoch
    return LogInZooKeeper(writers, topics)


@contextmanager
def own_controllers(
    cluster: Cluster,
    connect: str,
    chroot: str = "/oncelog",
    settings: Mapping[str, str] = COMMON,
    nodes: Sequence[int] = NODES,
) -> Iterator[OwnControllers]:
    controllers = OwnControllers(cluster, connect, chroot, settings, nodes)
    try:
        controllers.start()
        yield controllers
    finally:
        controllers.stop()
