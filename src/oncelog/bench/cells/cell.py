"""What all cells share, and the broker that a side's cells use together."""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final

from oncelog.bench.drive import Drive, PreparationError, require_success
from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement
from oncelog.bench.side import Broker, Side
from oncelog.bench.workload import Workload

_numbers: Final = itertools.count()


class Bench:
    """One side during one group of workloads: its broker, started when it is first needed, and its folder."""

    def __init__(self, side: Side, folder: Path, drive: Drive) -> None:
        self.side = side
        self.drive = drive
        self._folder = folder
        self._shared: Broker | None = None

    @property
    def bootstrap_servers(self) -> str:
        if self.side.bootstrap_servers:
            return self.side.bootstrap_servers
        if self._shared is None:
            self._shared = self.new_broker("shared")
            self._shared.start()
        return self._shared.bootstrap_servers

    @property
    def shared_pid(self) -> int | None:
        return self._shared.pid if self._shared is not None else None

    def new_broker(self, name: str) -> Broker:
        if self.side.launch is None:
            raise PreparationError(f"{self.side.name} was not started here")
        return self.side.launch(self._folder / f"{self.side.name}-{name}-{next(_numbers)}")

    def close(self) -> None:
        broker, self._shared = self._shared, None
        if broker is not None:
            broker.stop()


class Cell(ABC):
    needs_ownership: ClassVar = False
    """Whether it starts, stops and kills brokers."""
    is_last_round = False
    """What a load wrote in it is read back and compared."""

    def __init__(self, bench: Bench, workload: Workload) -> None:
        self.bench = bench
        self.workload = workload

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Raises PreparationError if the state to be measured cannot be reached."""

    @abstractmethod
    def measure(self) -> Measurement: ...

    def verify(self) -> Measurement | None:
        """Checks everything that arrived, once after the last round and not timed."""
        return None

    def close(self) -> None:  # noqa: B027
        pass

    # Jobs

    def job(
        self, action: str, topic: str, workload: Workload | None = None, expected: int | None = None, servers: str = ""
    ) -> Job:
        return Job(action, servers or self.bench.bootstrap_servers, topic, workload or self.workload, expected)

    def create_topic(self, *, servers: str = "", workload: Workload | None = None) -> str:
        return self.create_topic_timed(servers=servers, workload=workload)[0]

    def create_topic_timed(self, *, servers: str = "", workload: Workload | None = None) -> tuple[str, float]:
        topic = f"bench-{self.workload.name}-{uuid.uuid4().hex[:8]}"
        answer = require_success(self.bench.drive(self.job("create-topic", topic, workload, servers=servers)))
        return topic, answer.figures["create_s"]

    def delete_topic(self, topic: str) -> None:
        require_success(self.bench.drive(self.job("delete-topic", topic)))
