"""A cluster of processes on 127.0.0.1: brokers, controllers, and ZooKeeper where there are several controllers.

    with oncelog.testing.cluster(brokers=3) as cluster:
        topic = cluster.create_topic(partitions=3)
        leader = cluster.wait.leader(topic)
        cluster.brokers[leader].kill()
        cluster.wait.leader(topic, other_than=leader)

`oncelog cluster up` runs the same class.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelog.testing.broker import BrokerProcess, setting_texts, temporary_folder, topic_configs
from oncelog.testing.cluster_plan import ClusterPlan, make_folder, write_properties
from oncelog.testing.cluster_waiting import AsyncClusterWaits, ClusterWaits
from oncelog.testing.waiting import unique_name
from oncelog.testing.zookeeper import Ports, ZooKeeperServer, free_ports

if TYPE_CHECKING:
    from oncelog.client.admin import Admin

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
REQUEST_TIMEOUT_MS: Final = 5_000
"""A broker that is paused answers nothing: others are asked soon."""
QUICK: Final = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""For tests: what is killed is noticed soon, and a first group or transaction does not wait for fifty partitions."""


class Cluster:
    """`brokers` and `controllers` are processes by node id: each can be killed, paused, resumed, stopped, started."""

    def __init__(self, folder: Path, plan: ClusterPlan, *, log_level: str = "warning") -> None:
        self.folder = folder
        self.plan = plan
        self.zookeeper: ZooKeeperServer | None = None
        if plan.zookeeper_port is not None:
            port = plan.zookeeper_port or free_ports(1)[0]
            self.zookeeper = ZooKeeperServer(folder / "zookeeper", 1, [Ports(port, 0, 0)], {})
        self.controllers = {node: self._node("controller", node, log_level) for node in plan.controllers}
        self.brokers = {node: self._node("broker", node, log_level) for node in plan.brokers}

    def _node(self, kind: str, node: int, log_level: str) -> BrokerProcess:
        return BrokerProcess(
            self.folder / f"{kind}-{node}",
            port=(self.plan.brokers if kind == "broker" else self.plan.controllers)[node],
            log_level=log_level,
            forked=True,
            config_file=self.settings_file(kind, node),
        )

    def settings_file(self, kind: str, node: int) -> Path:
        """With it `oncelog serve --config` runs the node too."""
        return (self.folder / f"{kind}-{node}.properties").absolute()

    @property
    def nodes(self) -> dict[str, BrokerProcess]:
        """Controllers and brokers by what they are called in messages, such as `broker 1`."""
        found = {f"controller {node}": process for node, process in self.controllers.items()}
        return found | {f"broker {node}": process for node, process in self.brokers.items()}

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, also those that are down at the moment."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values() if broker.bootstrap_servers)

    @property
    def zookeeper_connect(self) -> str | None:
        if self.zookeeper is not None:
            return f"{self.zookeeper.address}/oncelog"
        return self.plan.zookeeper

    def start(self) -> Cluster:
        """ZooKeeper, then controllers, then brokers; returns when all brokers are registered."""
        make_folder(self.folder)
        if self.zookeeper is not None:
            self.zookeeper.start().wait_ready()
        for node in self.controllers:
            settings = self.plan.controller_settings(node, self.zookeeper_connect)
            self._write_settings("controller", node, self.controllers[node], settings)
        _all_at_once(self.controllers.values(), _start)
        addresses = ",".join(process.bootstrap_servers for process in self.controllers.values())
        for node in self.brokers:
            self._write_settings("broker", node, self.brokers[node], self.plan.broker_settings(node, addresses))
        _all_at_once(self.brokers.values(), _start)
        return self

    def _write_settings(self, kind: str, node: int, process: BrokerProcess, settings: Mapping[str, str]) -> None:
        name = "CONTROLLER" if kind == "controller" else "PLAINTEXT"
        own = {"log.dirs": str(process.data_dir.absolute()), "listeners": f"{name}://127.0.0.1:{process.port}"}
        write_properties(self.settings_file(kind, node), {**own, **settings})

    def stop(self) -> None:
        """Cleanly: brokers while controllers can move leaderships, then controllers, then ZooKeeper."""
        _all_at_once(self.brokers.values(), _stop)
        _all_at_once(self.controllers.values(), _stop)
        if self.zookeeper is not None:
            self.zookeeper.stop()

    def kill(self) -> None:
        """kill -9 for everything that runs."""
        for process in self.nodes.values():
            process.kill()
        if self.zookeeper is not None:
            self.zookeeper.kill()

    def admin(self) -> Admin:
        """An admin client, to be closed: `with cluster.admin() as admin`."""
        from oncelog.client.admin import Admin

        return Admin(self._client_settings())

    def _client_settings(self) -> dict[str, object]:
        return {"bootstrap.servers": self._awake(), "request.timeout.ms": REQUEST_TIMEOUT_MS}

    def _awake(self) -> str:
        awake = [broker.bootstrap_servers for broker in self.brokers.values() if broker.running and not broker.paused]
        return ",".join(awake) or self.bootstrap_servers

    @property
    def wait(self) -> ClusterWaits:
        """Waits for registered brokers, leaders, in-sync replicas, an active controller; and all that a broker has."""
        return ClusterWaits(self.wait_async)

    @property
    def wait_async(self) -> AsyncClusterWaits:
        """The same for coroutines."""
        return AsyncClusterWaits(
            self._client_settings, lambda: {node for node, broker in self.brokers.items() if broker.running}
        )

    def create_topic(
        self, prefix: str = "topic", partitions: int = 1, *, replicas: int = -1, **settings: object
    ) -> str:
        """Creates a topic with a name that no other has, and returns it when all its partitions have leaders."""
        from oncelog.client.admin import NewTopic

        name = unique_name(prefix)
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, replicas, configs=topic_configs(settings))])
        self.wait.led(name)
        return name


def _start(process: BrokerProcess) -> None:
    try:
        process.start(timeout_s=START_TIMEOUT_S)
    except RuntimeError as error:
        raise RuntimeError(f"{process.data_dir.name}: {error}") from error


def _stop(process: BrokerProcess) -> None:
    process.stop(timeout_s=STOP_TIMEOUT_S)


def _all_at_once(processes: Iterable[BrokerProcess], do: Callable[[BrokerProcess], None]) -> None:
    """In threads, since each of them waits. If one fails, the others are killed: nobody waits for them any more."""
    chosen = list(processes)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(chosen)) as pool:
        try:
            for done in [pool.submit(do, process) for process in chosen]:
                done.result()
        except BaseException:
            # Only the signal: the threads are still waiting for these processes, and collect them.
            for process in chosen:
                with suppress(RuntimeError, ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            raise


@contextmanager
def cluster(
    brokers: int = 3,
    controllers: int = 1,
    settings: Mapping[str, object] | None = None,
    *,
    data_dir: Path | str | None = None,
    log_level: str = "warning",
) -> Iterator[Cluster]:
    """A running cluster; its folder is temporary unless one is given, from which it goes on.

    One controller keeps its log in a file. Several need a ZooKeeper, which is started too: it needs Java and
    `oncelog[zookeeper]`. `settings` are of all nodes, under Kafka's names.
    """
    if data_dir is not None:
        yield from _run(Path(data_dir), brokers, controllers, settings or {}, log_level, Cluster.stop)
        return
    with temporary_folder("oncelog-cluster-") as folder:
        yield from _run(folder, brokers, controllers, settings or {}, log_level, Cluster.kill)


def _run(
    folder: Path,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
    log_level: str,
    end: Callable[[Cluster], None],
) -> Iterator[Cluster]:
    plan = _plan(folder, brokers, controllers, QUICK | setting_texts(settings))
    made = Cluster(folder, plan, log_level=log_level)
    try:
        yield made.start()
    except BaseException:
        made.kill()
        raise
    end(made)


def _plan(folder: Path, brokers: int, controllers: int, settings: Mapping[str, str]) -> ClusterPlan:
    plan = ClusterPlan.load(folder) or ClusterPlan.new(brokers, controllers)
    plan = replace(plan, settings=settings)
    make_folder(folder)
    plan.save(folder)
    return plan
