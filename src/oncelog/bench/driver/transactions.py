"""Transactions by one or more producers: a number of them, or for a time with a commit every so often.

Afterwards the log must end with exactly the records that were sent and one marker for each partition of each
transaction.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from oncelog.bench.driver.clients import Transactional, end_offsets, settled_end
from oncelog.bench.driver.figures import percentile_figures
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import ABORTED, pool
from oncelog.bench.measurement import Distribution, Measurement

_START_S = 60


@dataclass(slots=True)
class Tally:
    """What one producer did."""

    records: int = 0
    committed_records: int = 0
    transactions: int = 0
    markers: int = 0
    commit_ms: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    failure: str = ""


class TransactionalProducer(Protocol):
    """What a load needs of a client; those of other libraries are put into this shape."""

    errors: list[str]

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int) -> None: ...
    def flush(self) -> int: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...


MakeProducer = Callable[[Job, str], TransactionalProducer]
"""From a job and a transactional id."""


class Worker:
    def __init__(self, job: Job, number: int, make: MakeProducer = Transactional) -> None:
        self.tally = Tally()
        self._job = job
        self._number = number
        self._producer = make(job, f"oncelog-bench-{job.topic}-{number}")
        self._values = {
            True: itertools.cycle(pool(job.workload.size_bytes, ABORTED)),
            False: itertools.cycle(pool(job.workload.size_bytes)),
        }
        self._partition = number

    def begin(self) -> None:
        self._producer.init()

    def run(self, start: threading.Barrier) -> None:
        start.wait(_START_S)
        try:
            (self._by_time if self._job.workload.commit_interval_ms else self._by_count)()
        except Exception as error:  # noqa: BLE001  # whatever it is, the measurement is void and says so
            self.tally.failure = f"{type(error).__name__}: {error}"
        if self._producer.errors:
            self.tally.failure = self.tally.failure or self._producer.errors[0]
        self.tally.ended_s = time.perf_counter()

    def _by_count(self) -> None:
        workload = self._job.workload
        for number in range(self._number, workload.transactions, workload.producers):
            aborts = is_aborted(number, workload.aborted_percent)
            self._producer.begin()
            for _ in range(workload.per_transaction):
                self._send(aborts)
            self._end(workload.per_transaction, aborts)

    def _by_time(self) -> None:
        workload = self._job.workload
        finish_s = time.perf_counter() + workload.seconds
        for number in itertools.count(self._number, workload.producers):
            commit_s = time.perf_counter() + workload.commit_interval_ms / 1000
            if commit_s > finish_s and self.tally.transactions:
                return
            aborts = is_aborted(number, workload.aborted_percent)
            self._producer.begin()
            count = 0
            while time.perf_counter() < commit_s:
                self._send(aborts)
                count += 1
            self._end(count, aborts)

    def _send(self, aborts: bool) -> None:
        self._producer.send(
            self._job.topic, next(self._values[aborts]), self._partition % self._job.workload.partitions
        )
        self._partition += 1

    def _end(self, count: int, aborts: bool) -> None:
        producer, tally = self._producer, self.tally
        if aborts:
            # An abort throws away what was not sent yet; it must be in the log to be read past.
            producer.flush()
        before_s = time.perf_counter()
        (producer.abort if aborts else producer.commit)()
        tally.commit_ms.append((time.perf_counter() - before_s) * 1000)
        tally.records += count
        tally.committed_records += 0 if aborts else count
        tally.transactions += 1
        tally.markers += min(count, self._job.workload.partitions)


def is_aborted(number: int, percent: int) -> bool:
    """The same ones in every run, spread evenly."""
    return number * percent % 100 < percent


def transactions(job: Job, make: MakeProducer = Transactional) -> Measurement:
    workers = [Worker(job, number, make) for number in range(job.workload.producers)]
    before = end_offsets(job, range(job.workload.partitions))
    for worker in workers:
        worker.begin()
    barrier = threading.Barrier(len(workers) + 1)
    threads = [threading.Thread(target=worker.run, args=(barrier,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    barrier.wait(_START_S)
    started_s = time.perf_counter()
    for thread in threads:
        thread.join()
    return summary(job, [worker.tally for worker in workers], started_s, before)


def summary(job: Job, tallies: list[Tally], started_s: float, before: int) -> Measurement:
    """`before` is where the log ended, the sum over its partitions, when what is counted began."""
    failure = next((tally.failure for tally in tallies if tally.failure), "")
    if failure:
        return Measurement.failed(failure)
    seconds = max(tally.ended_s for tally in tallies) - started_s
    records, count = sum(tally.records for tally in tallies), sum(tally.transactions for tally in tallies)
    expected = records + sum(tally.markers for tally in tallies)
    commits = Distribution.of([sample for tally in tallies for sample in tally.commit_ms])
    return Measurement(
        {
            "transactions_per_s": count / seconds,
            "records_per_s": records / seconds,
            "mb_per_s": records / seconds * job.workload.size_bytes / 1e6,
            "seconds": seconds,
            "ms_per_transaction": seconds / max(1, count) * 1000,
            "committed_records": sum(tally.committed_records for tally in tallies),
            "transactions": count,
            **percentile_figures("commit", commits),
        },
        {"commit_ms": commits},
        expected=expected,
        arrived=settled_end(job, expected, before),
    )
