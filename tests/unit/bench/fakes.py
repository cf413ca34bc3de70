"""Sides without brokers: what a driver would see is made up, so that tests can make a side lose a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Distribution, Measurement
from oncelog.bench.metric import METRICS
from oncelog.bench.side import Side

Answer = Callable[[Job, Measurement], Measurement]


class FakeBroker:
    started = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.folder.name}:9092"

    @property
    def pid(self) -> int:
        return 1

    def start(self) -> None:
        self.events.append("start")

    def stop(self) -> None:
        self.events.append("stop")

    def kill(self) -> None:
        self.events.append("kill")


class FakeCluster:
    """Stands for the driver processes of all sides. `rates` are by the name of the side."""

    def __init__(self, rates: dict[str, float], answer: Answer | None = None) -> None:
        self.rates = rates
        self.jobs: list[tuple[str, str]] = []
        self.brokers: list[FakeBroker] = []
        self._answer = answer

    def sides(self) -> list[Side]:
        return [Side(name, self._launch, description=f"a fake {name}") for name in self.rates]

    def _launch(self, folder: Path) -> FakeBroker:
        self.brokers.append(FakeBroker(folder))
        return self.brokers[-1]

    def drive(self, job: Job) -> Measurement:
        side = job.bootstrap_servers.partition("-")[0]
        self.jobs.append((side, job.action))
        count = job.workload.records or 1 if job.expected is None else job.expected
        figures = {metric.name: self.rates[side] for metrics in METRICS.values() for metric in metrics}
        figures |= {"create_s": 0.1, "committed_records": count}
        latencies = Distribution.of([1.0, 2.0, 3.0])
        made = Measurement(figures, {"commit_ms": latencies, "latency_ms": latencies}, expected=count, arrived=count)
        return made if self._answer is None else self._answer(job, made)

    def measured(self, action: str) -> list[str]:
        return [side for side, done in self.jobs if done == action]
