"""`python -m peers.ceiling`: how many transactions of one record a second the benchmark's client can do at all.

Its peer is the mock broker that librdkafka carries for its own tests: it lives in the client's process, writes nothing
and answers at once. No broker can be faster with this client and one producer, so no ratio between two brokers can
exceed this rate over the slower one's.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

from oncelog.bench import catalogue
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.transactions import Worker
from oncelog.bench.measurement import Distribution

WORKLOAD = "transactions-1"
WARM_UP = 100


def ceiling(transactions: int) -> tuple[float, Distribution]:
    """Transactions per second, and how long each commit took."""
    workload = replace(catalogue.find(WORKLOAD), settings=(("test.mock.num.brokers", "1"),))
    # The client ignores the address and talks to its mock.
    worker = Worker(Job("transactions", "127.0.0.1:1", "mock", replace(workload, transactions=transactions)), 0)
    worker.begin()
    started_s = time.perf_counter()
    worker.run(threading.Barrier(1))
    if worker.tally.failure:
        raise RuntimeError(worker.tally.failure)
    return transactions / (worker.tally.ended_s - started_s), Distribution.of(worker.tally.commit_ms)


def main() -> None:
    ceiling(WARM_UP)
    rate, commits = ceiling(catalogue.find(WORKLOAD).transactions)
    sys.stdout.write(
        f"{rate:.0f} transactions/s, commit p50 {commits.at(50.0):.2f} ms, p99 {commits.at(99.0):.2f} ms\n"
    )


if __name__ == "__main__":
    main()
