"""Runs workloads on one or more clusters, alternating, and keeps every round."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

from oncelog.bench.workload import Measurement, Workload

_DRIVER_TIMEOUT_S = 600


@dataclass(slots=True)
class Result:
    """All rounds of one workload on one cluster."""

    cluster: str
    workload: Workload
    rounds: list[Measurement] = field(default_factory=list)

    @property
    def problem(self) -> str | None:
        return next((measurement.problem for measurement in self.rounds if measurement.problem), None)

    @property
    def records_per_s(self) -> float:
        return median(measurement.records_per_s for measurement in self.rounds)

    def percentile_ms(self, percent: float) -> float:
        return median(measurement.percentile_ms(percent) for measurement in self.rounds)


def drive(bootstrap: str, topic: str, workload: Workload) -> Measurement:
    command = [sys.executable, "-m", "oncelog.bench.driver", bootstrap, topic, workload.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False)
    if done.returncode != 0:
        return Measurement(problem=f"the driver failed: {done.stderr.strip()[-500:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def run(
    clusters: dict[str, str],
    workloads: list[Workload],
    rounds: int,
    progress: Callable[[str], None],
) -> list[Result]:
    """A consume reads what the produce before it wrote, so each round of a cluster has a topic per record size."""
    results = {(name, workload): Result(name, workload) for workload in workloads for name in clusters}
    for round_number in range(rounds):
        for name, bootstrap in clusters.items():
            for topic, workload in _with_topics(workloads):
                progress(f"round {round_number + 1} of {rounds}: {workload.name} on {name}")
                results[name, workload].rounds.append(drive(bootstrap, topic, workload))
    return list(results.values())


def _with_topics(workloads: list[Workload]) -> Iterator[tuple[str, Workload]]:
    suffix = uuid.uuid4().hex[:8]
    for workload in workloads:
        flavour = "txn" if workload.kind == "transactions" else "plain"
        yield f"bench-{flavour}-{workload.size_bytes}-{suffix}", workload
