"""What transactions cost a producer at full speed: pairs of slices, one with and one without them, in one process.

The speed of a machine changes from second to second by more than transactions cost. So slices are short, each is
compared only with its neighbour, the order alternates, and the result is the median of many pairs. Each round has a
new topic that is deleted afterwards: data that the system writes to disk later would slow down the next round.
"""

from __future__ import annotations

import time
from itertools import cycle
from statistics import median
from typing import NamedTuple

from oncelog.bench.driver.clients import Producing, Transactional, connected, end_offsets, settled_end
from oncelog.bench.driver.figures import percentile_figures
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import pool
from oncelog.bench.measurement import Distribution, Measurement

WARM_UP_S = 0.3
SLICE_S = 0.5
_BURST = 100


class Pair(NamedTuple):
    """Records per second of two slices, one right after the other."""

    plain: float
    transactional: float


class Slices:
    """Both producers have the same settings; only one of them has a transactional id."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.plain = connected(Producing(job), job.topic)
        self.transactional = Transactional(job, f"oncelog-bench-{job.topic}")
        self.transactional.init()
        self.commit_ms: list[float] = []
        self.transactional_s = 0.0
        self.records = 0
        self.markers = 0
        self._values = cycle(pool(job.workload.size_bytes))

    def run_plain(self, seconds: float) -> float:
        """Records per second."""
        started_s = time.perf_counter()
        count = self._send_until(self.plain, started_s + seconds)
        self.plain.flush()
        return count / (time.perf_counter() - started_s)

    def run_transactional(self, seconds: float) -> float:
        interval_s = self.job.workload.commit_interval_ms / 1000
        started_s = time.perf_counter()
        count = 0
        while time.perf_counter() < started_s + seconds:
            self.transactional.begin()
            sent = self._send_until(self.transactional, time.perf_counter() + interval_s)
            before_s = time.perf_counter()
            self.transactional.commit()
            self.commit_ms.append((time.perf_counter() - before_s) * 1000)
            self.markers += min(sent, self.job.workload.partitions)
            count += sent
        seconds = time.perf_counter() - started_s
        self.transactional_s += seconds
        return count / seconds

    def run_pair(self, number: int) -> Pair:
        if number % 2:
            transactional = self.run_transactional(SLICE_S)
            return Pair(self.run_plain(SLICE_S), transactional)
        return Pair(self.run_plain(SLICE_S), self.run_transactional(SLICE_S))

    def _send_until(self, producing: Producing, end_s: float) -> int:
        topic, partitions = self.job.topic, self.job.workload.partitions
        count = 0
        while time.perf_counter() < end_s:
            for number in range(_BURST):
                producing.send(topic, next(self._values), number % partitions)
            count += _BURST
            producing.client.poll(0)
        self.records += count
        return count


def commit_cost(job: Job) -> Measurement:
    before = end_offsets(job, range(job.workload.partitions))
    slices = Slices(job)
    slices.run_plain(WARM_UP_S)
    slices.run_transactional(WARM_UP_S)
    slices.commit_ms.clear()
    slices.transactional_s = 0.0
    pairs = [slices.run_pair(number) for number in range(max(1, round(job.workload.seconds / 2 / SLICE_S)))]
    commits = Distribution.of(slices.commit_ms)
    size_mb = job.workload.size_bytes / 1e6
    expected = slices.records + slices.markers
    return Measurement(
        {
            "lost_percent": median(100 * (1 - pair.transactional / pair.plain) for pair in pairs),
            "plain_mb_per_s": median(pair.plain for pair in pairs) * size_mb,
            "transactional_mb_per_s": median(pair.transactional for pair in pairs) * size_mb,
            "commits_per_s": len(slices.commit_ms) / slices.transactional_s,
            "committed_records": slices.records,
            **percentile_figures("commit", commits),
        },
        {"commit_ms": commits},
        expected=expected,
        arrived=settled_end(job, expected, before),
        errors=len(slices.plain.errors) + len(slices.transactional.errors),
    )
