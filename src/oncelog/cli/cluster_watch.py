"""What `oncelog cluster up` shows while it runs: the nodes, in a table on a terminal, and a line for each change."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click

from oncelog.cli.cluster_access import unreachable
from oncelog.cli.output import count_of
from oncelog.client.admin import Admin
from oncelog.core.address import parse_address
from oncelog.core.errors import KafkaError
from oncelog.monitoring.brokers import ReplicaCounts, replica_counts

if TYPE_CHECKING:
    from rich.console import Group

    from oncelog.testing.local_cluster import Cluster

LOOK_EVERY_S: Final = 1.0
ANSWER_TIMEOUT_MS: Final = 2_000
CONNECT_TIMEOUT_S: Final = 1.0
ZOOKEEPER: Final = "ZooKeeper"
NONE: Final = ReplicaCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    address: str
    pid: int | None
    ended: str | None = None
    """How, for one that has."""
    listens: bool = False
    """Whether somebody has started a node again that has ended here. The cluster does not tell: for some seconds it
    counts on a node that was killed."""
    start_again: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What was seen at one moment."""

    nodes: list[Node] = field(default_factory=list)
    answers: bool = True
    """Whether any broker has told what follows."""
    active: str | None = None
    serving: frozenset[str] = frozenset()
    counts: dict[str, ReplicaCounts] = field(default_factory=dict)
    partitions: int = 0
    without_leader: int = 0
    out_of_sync: int = 0

    @property
    def is_over(self) -> bool:
        return all(node.ended is not None for node in self.nodes if node.name != ZOOKEEPER)

    def state(self, node: Node) -> str:
        if node.ended is not None:
            return "runs elsewhere" if node.listens else "ended"
        if node.name == ZOOKEEPER or not self.answers:
            return "runs"
        if node.name.startswith("broker"):
            return "serves" if node.name in self.serving else "not in the cluster"
        return "active" if node.name == self.active else "follows"


def watch(cluster: Cluster) -> None:
    """Report what happens to the nodes, until the last one has ended."""
    if sys.stdout.isatty():
        _draw(cluster)
        return
    for line in processes(Looking(cluster).nodes()):
        click.echo(line)
    for _, lines in _views(cluster):
        for line in lines:
            click.echo(line)


def _draw(cluster: Cluster) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        for view, lines in _views(cluster):
            for line in lines:
                live.console.print(line, markup=False, highlight=False, soft_wrap=True)
            live.update(screen(view), refresh=True)


def _views(cluster: Cluster) -> Iterator[tuple[ClusterView, list[str]]]:
    """Each with what has changed since the one before; all nodes had started before the first."""
    looking = Looking(cluster)
    before = ClusterView(serving=frozenset(f"broker {node}" for node in cluster.brokers))
    while True:
        view = looking.look()
        yield view, list(changes(before, view))
        if view.is_over:
            return
        before = view
        time.sleep(LOOK_EVERY_S)


def processes(nodes: Iterable[Node]) -> Iterator[str]:
    """For whoever has no table: what to kill or to look at. One that has ended is told of by `changes`."""
    for node in nodes:
        if node.pid is not None:
            yield f"  {node.name:<16}{node.address:<20}pid {node.pid}"


def changes(before: ClusterView, now: ClusterView) -> Iterator[str]:
    """What has changed between two looks, in sentences."""
    ended = {node.name for node in before.nodes if node.ended is not None}
    for node in now.nodes:
        if node.ended is not None and node.name not in ended:
            yield f"{node.name} {node.ended}. Its log: {node.log}" + (
                f". To start it again: {node.start_again}" if node.start_again else ""
            )
    if not now.answers:
        if before.answers:
            yield "no broker answers"
        return
    if now.active != before.active:
        yield "no controller is active" if now.active is None else f"{now.active} is active"
    for name in sorted(now.serving - before.serving):
        yield f"{name} serves in the cluster"
    for name in sorted(before.serving - now.serving):
        yield f"{name} does not serve in the cluster any more: others lead its partitions, where they are in sync"
    if now.without_leader != before.without_leader:
        yield f"{count_of(now.without_leader, 'partition')} without a leader"
    if bool(now.out_of_sync) != bool(before.out_of_sync):
        yield (
            f"{count_of(now.out_of_sync, 'partition')} with replicas out of sync"
            if now.out_of_sync
            else "all replicas are in sync"
        )


def screen(view: ClusterView) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("node", "address", "pid", "state", "leads", "keeps", "out of sync"):
        table.add_column(title, no_wrap=True)
    for node in view.nodes:
        state, counts = view.state(node), view.counts.get(node.name)
        numbers = ("", "", "") if counts is None else (counts.leads, counts.keeps, counts.out_of_sync)
        style = "red" if node.ended is not None else "bold" if state == "active" else ""
        pid = "" if node.pid is None else str(node.pid)
        table.add_row(node.name, node.address, pid, Text(state, style=style), *map(str, numbers))
    if view.answers:
        summary = f"{count_of(view.partitions, 'partition')}: {view.without_leader} without a leader, "
        summary += f"{view.out_of_sync} out of sync"
    else:
        summary = "no broker answers"
    return Group("", table, Text(f"{summary}   Ctrl-C stops all", style="dim"))


class Looking:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended: dict[str, str] = {}

    def look(self) -> ClusterView:
        nodes = list(self.nodes())
        try:
            with Admin(
                {
                    "bootstrap.servers": self._cluster.bootstrap_servers,
                    "request.timeout.ms": ANSWER_TIMEOUT_MS,
                    "default.api.timeout.ms": ANSWER_TIMEOUT_MS,
                }
            ) as admin:
                return self._ask(admin, nodes)
        except KafkaError:
            return ClusterView(nodes, answers=False)

    def _ask(self, admin: Admin, nodes: list[Node]) -> ClusterView:
        serving = frozenset(f"broker {broker.node_id}" for broker in admin.describe_cluster().brokers)
        topics = admin.list_topics(internal=True).values()
        counts = replica_counts(topics)
        partitions = [partition for topic in topics for partition in topic.partitions]
        try:
            leader = admin.describe_quorum().leader_id
        except KafkaError:
            leader = -1
        return ClusterView(
            nodes,
            active=f"controller {leader}" if leader >= 0 else None,
            serving=serving,
            counts={f"broker {node}": counts.get(node, NONE) for node in self._cluster.brokers},
            partitions=len(partitions),
            without_leader=sum(one.leader < 0 for one in partitions),
            out_of_sync=sum(len(one.in_sync_replicas) < len(one.replicas) for one in partitions),
        )

    def nodes(self) -> Iterator[Node]:
        zookeeper = self._cluster.zookeeper
        if zookeeper is not None:
            code = zookeeper.exit_code
            yield Node(
                ZOOKEEPER,
                zookeeper.address,
                zookeeper.pid if code is None else None,
                None if code is None else _how(code),
                code is not None and _listens(zookeeper.address),
                shlex.join(zookeeper.command),
                str(zookeeper.folder / "server.log"),
            )
        for name, process in self._cluster.nodes.items():
            if not process.running and name not in self._ended:
                self._ended[name] = _how(process.wait_for_exit(1))
            kind, _, number = name.partition(" ")
            yield Node(
                name,
                process.bootstrap_servers,
                process.pid if process.running else None,
                self._ended.get(name),
                name in self._ended and _listens(process.bootstrap_servers),
                f"oncelog serve --config {self._cluster.settings_file(kind, int(number))}",
                str(process.log_path),
            )


def _listens(address: str) -> bool:
    return not unreachable([parse_address(address)], CONNECT_TIMEOUT_S)


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"has ended with exit code {code}"
