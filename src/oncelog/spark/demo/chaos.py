"""Kills the driver, an executor and the broker with -9 while batches are being written, and starts them again.

A kill in a quiet moment proves nothing. An executor and the broker are killed while an output grows: a batch is being
written then. The driver is killed when all three queries are in the middle (`footprints`): it is stopped for a moment,
looked at, and killed or let go on. What at-least-once doubles and at-most-once loses is so no matter of luck.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from oncelog.client.config import ClientConfig
from oncelog.spark.cluster import StandaloneCluster
from oncelog.spark.demo.driver import DriverOrder
from oncelog.spark.demo.events import EventLog
from oncelog.spark.demo.footprints import Footprints
from oncelog.spark.worker_client import WorkerClient

POLL_S = 0.02
MIDDLE_WAIT_S = 30.0
"""After so long any moment will do: the one waited for may not come any more."""
PATIENCE_BATCHES = 3
"""For so many batches the exactly-once query, too, has to be in the middle of one when the driver is killed."""
SETTLE_S = 0.3
BROKER_DOWN_S = 1.0
DRIVER_STARTS_MAX = 6
WATCHED = {"executor": "at-least-once", "broker": "exactly-once"}
"""Whose output must be growing when the kill comes."""


class DemoFailed(RuntimeError):
    """The demo could not be carried out; says nothing about the guarantees."""


class Broker(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


class DriverProcess:
    """The driver with its JVM; `kill` takes both at once."""

    def __init__(self, order: DriverOrder, log: Path) -> None:
        self._order = order
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "oncelog.spark.demo.driver", self._order.to_text()]
        near = self._order.master.startswith("local") or "127.0.0.1" in self._order.master
        environment = {**({"SPARK_LOCAL_IP": "127.0.0.1"} if near else {}), **os.environ}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.starts += 1
        self._order.events.add("driver", "up")

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def stop_for_a_look(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

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
        broker: Broker | None,
        cluster: StandaloneCluster | None,
    ) -> None:
        self._events: EventLog = order.events
        self._driver = driver
        self._broker = broker
        self._cluster = cluster
        self._order = order
        self._config = ClientConfig(
            bootstrap_servers=order.servers, default_api_timeout_ms=2_000, allow_auto_create_topics=False
        )
        self._deeds: dict[str, Callable[[], bool]] = {
            "driver": self._kill_driver,
            "executor": self._kill_executor,
            "broker": self._kill_broker,
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
        with WorkerClient(self._config) as client:
            prints = Footprints(client, self._order.topics, self._events, self._order.per_batch)
            if kill == "driver":
                self._await_half_written(prints)
            else:
                self._await_growth(prints, WATCHED[kill])
        if self._deeds[kill]():
            self.done.append(kill)
            self._pending.pop(0)

    def _await_growth(self, prints: Footprints, guarantee: str) -> None:
        """Return when records have just arrived in an output."""
        before = prints.written(guarantee)
        for _ in self._moments():
            now = prints.written(guarantee)
            if now > before:
                return
            before = now

    def _await_half_written(self, prints: Footprints) -> None:
        """Return with the driver stopped, in the middle of a batch of each query."""
        patient_until = prints.batches_done("at-least-once") + PATIENCE_BATCHES
        for _ in self._moments():
            patient = prints.batches_done("at-least-once") < patient_until
            if not prints.all_in_the_middle(exactly_once_too=patient):
                continue
            self._driver.stop_for_a_look()
            # Executors go on with the tasks they have: what they still write is to be seen before it is judged.
            time.sleep(SETTLE_S)
            if prints.all_in_the_middle(exactly_once_too=patient):
                return
            self._driver.go_on()

    def _moments(self) -> Iterator[None]:
        deadline_s = time.monotonic() + MIDDLE_WAIT_S
        while time.monotonic() < deadline_s and self._driver.poll() is None:
            yield
            time.sleep(POLL_S)

    def _kill_driver(self) -> bool:
        self._driver.kill()
        self._events.add("driver", "killed")
        self._driver.start()
        return True

    def _kill_executor(self) -> bool:
        if self._cluster is None or self._cluster.kill_executor() is None:
            return False
        self._events.add("executor", "killed")
        # The worker it belonged to starts another by itself; the others were never gone.
        self._events.add("executor", "up")
        return True

    def _kill_broker(self) -> bool:
        if self._broker is None:
            return False
        self._broker.kill()
        self._events.add("broker", "killed")
        time.sleep(BROKER_DOWN_S)
        self._broker.start()
        self._events.add("broker", "up")
        return True
