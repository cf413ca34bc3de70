"""Measurements that need a broker of their own: starting it, its memory, and what a kill -9 costs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar, Final

from oncelog.bench.cells.cell import Cell
from oncelog.bench.drive import TIMEOUT_S, PreparationError, command, error_line, read_answer, require_success
from oncelog.bench.driver.job import Job
from oncelog.bench.interruption import running
from oncelog.bench.measurement import Measurement
from oncelog.bench.side import Broker, resident_mb
from oncelog.bench.workload import Workload

REST_S: Final = 5.0
"""How long a broker is left alone before its memory counts as memory at rest."""
_PROBE: Final = Workload("probe", "produce", "probe", 1, linger_ms=0, idempotence=False)
"""Not idempotent: the library asks for a producer id once in half a second, whenever the broker is there."""


def start_to_first_ack_s(broker: Broker, job: Job) -> float:
    """Starts the broker and gives the seconds until it acknowledged a record.

    The client is there and trying before the clock runs, as a client that waits for a restart would be.
    """
    with running(command(job)) as client:
        if client.stdout is None or not client.stdout.readline():
            errors = client.stderr.read() if client.stderr is not None else ""
            raise PreparationError(f"the waiting client failed: {error_line(errors)}")
        started_s = time.monotonic()
        broker.start()
        output, errors = client.communicate(timeout=TIMEOUT_S)
    answer = require_success(read_answer(client.returncode, output, errors))
    return answer.figures["acknowledged_s"] - started_s


class OwnBrokerCell(Cell):
    """A broker in a folder of its own, with one topic, running when `prepare` is done."""

    needs_ownership: ClassVar = True
    _broker: Broker | None = None
    topic = ""

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise PreparationError("there is no broker")
        return self._broker

    def prepare(self) -> None:
        self._broker = self.bench.new_broker(self.workload.name)
        self._broker.start()
        self.topic = self.create_topic(servers=self._broker.bootstrap_servers)
        self.fill()

    def fill(self) -> None:
        """What must be there before the first round."""

    def drive_own(self, action: str, workload: Workload | None = None, expected: int | None = None) -> Measurement:
        job = self.job(action, self.topic, workload, expected, self.broker.bootstrap_servers)
        return self.bench.drive(job)

    def restart_s(self, *, kill: bool) -> float:
        servers = self.broker.bootstrap_servers
        (self.broker.kill if kill else self.broker.stop)()
        return start_to_first_ack_s(self.broker, self.job("first-ack", self.topic, _PROBE, servers=servers))

    def close(self) -> None:
        if self._broker is not None:
            self._broker.stop()


class StartCell(OwnBrokerCell):
    """A folder that was used before and stopped in order, as a restart finds it."""

    def measure(self) -> Measurement:
        return Measurement({"start_s": self.restart_s(kill=False)}, expected=1, arrived=1)


class MemoryCell(OwnBrokerCell):
    """At rest: started, one record acknowledged, left alone. Then after produce, consume and transactions."""

    def measure(self) -> Measurement:
        self.restart_s(kill=False)
        time.sleep(REST_S)
        at_rest = resident_mb(self.broker.pid)
        workload = self.workload
        self.topic = self.create_topic(servers=self.broker.bootstrap_servers)
        require_success(self.drive_own("produce"))
        require_success(self.drive_own("verify"))
        require_success(
            self.drive_own("transactions", replace(workload, transactions=workload.transactions or 300, linger_ms=0))
        )
        loaded = resident_mb(self.broker.pid)
        return Measurement({"memory_mb": at_rest, "memory_loaded_mb": loaded}, expected=1, arrived=1)


class RecoveryCell(OwnBrokerCell):
    """A log of a size, kill -9, start. Afterwards every record must be there."""

    def fill(self) -> None:
        require_success(self.drive_own("produce"))

    def measure(self) -> Measurement:
        seconds = self.restart_s(kill=True)
        return Measurement({"recovery_s": seconds}, expected=1, arrived=1)

    def verify(self) -> Measurement | None:
        # Each start acknowledged one more record: those after the ones that were filled in are not looked at.
        return self.drive_own("survivors")
