"""The main job from beginning to end: input, cluster, driver, kills, proof, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from oncelog.client import ClientConfig, NewTopic, worker_client
from oncelog.spark.demo.audit import Audit, audit
from oncelog.spark.demo.chaos import DRIVER_STARTS_MAX, Chaos, DemoFailed, DriverProcess
from oncelog.spark.demo.driver import DriverOrder
from oncelog.spark.demo.events import Event
from oncelog.spark.demo.nodes import Nodes
from oncelog.spark.demo.orders import Truth, truth
from oncelog.spark.demo.pipeline import GUARANTEES, Topics
from oncelog.spark.demo.proof import Tally, input_is_committed, revenue_errors, tally_broken, tally_orders
from oncelog.spark.demo.topics import write_customers, write_orders
from oncelog.spark.standalone_cluster import StandaloneCluster

BATCHES = 20
TIMEOUT_S = 1800.0
STEP_S = 0.1


@dataclass(slots=True)
class DemoResult:
    records: int
    seconds: float = 0.0
    kills: list[str] = field(default_factory=list)
    orders: dict[str, Tally] = field(default_factory=dict)
    dead_letters: dict[str, Tally] = field(default_factory=dict)
    windows: int = 0
    wrong_windows: int = 0
    committed: bool = False
    audit: Audit = field(default_factory=Audit)
    events: list[Event] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Only the exactly-once query has to be right: the others show what happens without."""
        exact = self.orders["exactly-once"].exact and self.dead_letters["exactly-once"].exact
        return exact and self.committed and not self.wrong_windows and self.audit.whole


@dataclass(slots=True)
class Demo:
    servers: str
    folder: Path
    records: int
    kills: list[str]
    console: Console
    nodes: Nodes | None = None
    """None: somebody else's, not to be killed."""
    cluster: StandaloneCluster | None = None
    master: str = ""
    prefix: str = "demo"

    def run(self) -> DemoResult:
        began_s = time.monotonic()
        result = DemoResult(self.records)
        with self._progress() as progress:
            self._write_input(progress)
            self._run_pipeline(progress, result)
            checking = progress.add_task("checking every record", total=None)
            self._check(result)
            progress.update(checking, total=1, completed=1)
        result.seconds = time.monotonic() - began_s
        result.events = self._order().events.read()
        return result

    def _progress(self) -> Progress:
        columns = (SpinnerColumn(), TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn())
        return Progress(*columns, TimeElapsedColumn(), console=self.console)

    @property
    def _config(self) -> ClientConfig:
        return ClientConfig(bootstrap_servers=self.servers)

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)

    def _order(self) -> DriverOrder:
        per_batch = max(self.records // BATCHES, 1)
        master = self.cluster.master_url if self.cluster is not None else self.master
        return DriverOrder(self.servers, master, self.prefix, str(self.folder), per_batch)

    def _write_input(self, progress: Progress) -> None:
        client = worker_client(self._config)
        compacted = {"cleanup.policy": "compact"}
        wanted = [NewTopic(name, count) for name, count in self.topics.partition_counts().items()]
        wanted += [NewTopic(name, count, configs=compacted) for name, count in self.topics.compacted_counts().items()]
        client.create_topics(wanted, if_not_exists=True)
        write_customers(self._config, self.topics.customers)
        bar = progress.add_task("orders written", total=self.records)
        for written in write_orders(self._config, self.topics.orders, self.records):
            progress.update(bar, completed=written)

    def _run_pipeline(self, progress: Progress, result: DemoResult) -> None:
        if self.cluster is not None:
            bar = progress.add_task("starting the Spark cluster", total=None)
            self.cluster.start()
            progress.update(bar, total=1, completed=1)
        order = self._order()
        for lane in self._node_lanes:
            order.events.add(lane, "up")
        if self.cluster is not None:
            order.events.add("executor", "up")
        driver = DriverProcess(order, self.folder / "driver.log")
        chaos = Chaos(
            self.kills, order=order, driver=driver, records=self.records, nodes=self.nodes, cluster=self.cluster
        )
        bars = {guarantee: progress.add_task(guarantee, total=self.records) for guarantee in GUARANTEES}
        driver.start()
        try:
            self._supervise(driver, chaos, order, progress, bars)
        finally:
            driver.kill()
        for lane in ("driver", *(("executor",) if self.cluster is not None else ()), *self._node_lanes):
            order.events.add(lane, "down")
        result.kills = chaos.done

    @property
    def _node_lanes(self) -> Sequence[str]:
        return ("broker",) if self.nodes is None else self.nodes.lanes

    def _supervise(
        self,
        driver: DriverProcess,
        chaos: Chaos,
        order: DriverOrder,
        progress: Progress,
        bars: dict[str, TaskID],
    ) -> None:
        """Until the driver has finished by itself; one that failed is started again, as a cluster would."""
        deadline_s = time.monotonic() + TIMEOUT_S
        announced = 0
        while (code := driver.poll()) != 0:
            if code is not None:
                if driver.starts >= DRIVER_STARTS_MAX:
                    raise DemoFailed(
                        f"the driver failed {driver.starts} times. Its log ends with:\n{driver.log_tail()}"
                    )
                order.events.add("driver", "down")
                driver.start()
            if time.monotonic() > deadline_s:
                raise DemoFailed(
                    f"not finished within {TIMEOUT_S:.0f} s. The driver's log ends with:\n{driver.log_tail()}"
                )
            chaos.step()
            for victim in chaos.done[announced:]:
                progress.console.print(f"[red]kill -9[/red] {victim}, in the middle of a batch; started again")
            announced = len(chaos.done)
            for guarantee, bar in bars.items():
                progress.update(bar, completed=min(order.events.position(guarantee), self.records))
            time.sleep(STEP_S)
        for bar in bars.values():
            progress.update(bar, completed=self.records)

    def _check(self, result: DemoResult) -> None:
        known: Truth = truth(self.records)
        config, topics = self._config, self.topics
        for guarantee in GUARANTEES:
            result.orders[guarantee] = tally_orders(config, topics.enriched(guarantee), known)
            result.dead_letters[guarantee] = tally_broken(config, topics.dead_letters(guarantee), known)
        result.windows = len(known.revenue)
        result.wrong_windows = revenue_errors(config, topics.revenue, known)
        result.committed = input_is_committed(config, topics.query_id("exactly-once"), topics.orders)
        written = [topics.enriched("exactly-once"), topics.dead_letters("exactly-once"), topics.revenue]
        result.audit = audit(config, written)
