"""Kills the driver, an executor, brokers and controllers with -9 while batches are written, and starts them again.

A kill in a quiet moment proves nothing. All but the driver are killed while an output grows: a batch is being written
then. The driver is killed when each query is at its worst moment (see `hold`): what at-least-once doubles and
at-most-once loses is so no matter of luck.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oncelog.child_process import ChildProcess
from oncelog.client import ClientConfig, IsolationLevel, WorkerClient
from oncelog.janitor import janitor
from oncelog.spark.demo.driver import DriverOrder
from oncelog.spark.demo.events import EventLog
from oncelog.spark.demo.nodes import Nodes
from oncelog.spark.demo.pipeline import GUARANTEES
from oncelog.spark.demo.topics import topic_offsets
from oncelog.spark.offsets import LATEST
from oncelog.spark.standalone_cluster import StandaloneCluster

POLL_S = 0.02
MIDDLE_WAIT_S = 30.0
"""After so long any moment will do: the one waited for may not come any more."""
DRIVER_STARTS_MAX = 6
WATCHED = {"executor": "at-least-once"}
"""Whose output must be growing when the kill comes; that of exactly-once for the others."""


class DemoFailed(RuntimeError):
    """The demo could not be carried out; says nothing about the guarantees."""


class DriverProcess:
    """The driver with its JVM; `kill` takes both at once."""

    def __init__(self, order: DriverOrder, log: Path) -> None:
        self._order = order
        self._log = log
        self._process: ChildProcess[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.kill()  # one that has failed: it is no longer to be looked after
        command = [sys.executable, "-m", "oncelog.spark.demo.driver", self._order.to_text()]
        near = self._order.master.startswith("local") or "127.0.0.1" in self._order.master
        environment = {**({"SPARK_LOCAL_IP": "127.0.0.1"} if near else {}), **os.environ}
        with self._log.open("ab") as log:
            self._process = ChildProcess(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        janitor.take("group", self._process.pid)
        self.starts += 1
        self._order.events.add("driver", "up")

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        janitor.leave("group", self._process.pid)

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Chaos:
    """Carries out the kills one after the other; call `step` often."""

    def __init__(
        self,
        kills: list[str],
        *,
        order: DriverOrder,
        driver: DriverProcess,
        records: int,
        nodes: Nodes | None,
        cluster: StandaloneCluster | None,
    ) -> None:
        self._events: EventLog = order.events
        self._driver = driver
        self._nodes = nodes
        self._cluster = cluster
        self._order = order
        self._config = ClientConfig(
            bootstrap_servers=order.servers, default_api_timeout_ms=2_000, allow_auto_create_topics=False
        )
        self._kills: dict[str, Callable[[], str | None]] = {
            "driver": self._kill_driver,
            "executor": self._kill_executor,
        }
        # Spread over the run, none so late that nothing is left to do afterwards.
        self._pending = [(records * (i + 1) // (len(kills) + 2), kill) for i, kill in enumerate(kills)]
        self.done: list[str] = []

    def step(self) -> None:
        if not self._pending:
            return
        position, kill = self._pending[0]
        if self._events.position("exactly-once") < position:
            return
        if kill == "driver":
            self._await_worst_moment()
        else:
            self._await_growth(self._order.topics.enriched(WATCHED.get(kill, "exactly-once")))
        if self._driver.poll() is not None:
            # It has finished meanwhile: there is nothing left that a kill could disturb.
            self._pending.clear()
        elif (killed := self._kill(kill)) is not None:
            self.done.append(killed)
            self._pending.pop(0)
        self._order.hold.release()

    def _await_worst_moment(self) -> None:
        self._order.hold.ask()
        for _ in self._moments():
            if all(self._order.hold.is_held(guarantee) for guarantee in GUARANTEES):
                return

    def _await_growth(self, topic: str) -> None:
        """Return when records have just arrived in a topic."""
        with WorkerClient(self._config) as client:
            before = _length(client, topic)
            for _ in self._moments():
                now = _length(client, topic)
                if now > before:
                    return
                before = now

    def _moments(self) -> Iterator[None]:
        deadline_s = time.monotonic() + MIDDLE_WAIT_S
        while time.monotonic() < deadline_s and self._driver.poll() is None:
            yield
            time.sleep(POLL_S)

    def _kill(self, kill: str) -> str | None:
        """Returns what was killed; None if there was nothing to kill yet."""
        return self._kills[kill]() if kill in self._kills else self._kill_node(kill)

    def _kill_driver(self) -> str:
        self._driver.kill()
        self._events.add("driver", "killed")
        self._order.hold.release()
        self._driver.start()
        return "driver"

    def _kill_executor(self) -> str | None:
        if self._cluster is None or self._cluster.kill_executor() is None:
            return None
        self._events.add("executor", "killed")
        # The worker it belonged to starts another by itself; the others were never gone.
        self._events.add("executor", "up")
        return "executor"

    def _kill_node(self, kill: str) -> str | None:
        lane = None if self._nodes is None else self._nodes.kill(kill)
        if self._nodes is None or lane is None:
            return None
        self._events.add(lane, "killed")
        self._nodes.revive(lane)
        self._events.add(lane, "up")
        return kill if kill == lane else f"{kill} ({lane})"


def _length(client: WorkerClient, topic: str) -> int:
    return sum(topic_offsets(client, topic, LATEST, IsolationLevel.READ_UNCOMMITTED).values())
