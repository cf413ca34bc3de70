"""Apache Kafka's own producer, in a process of its own that measures itself: see TransactionLoop.java."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from oncelog.bench.driver.clients import end_offsets
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import pool
from oncelog.bench.driver.transactions import Tally, summary
from oncelog.bench.measurement import Measurement
from peers.kafka.jars import HERE, java_command

PROGRAM: Final = HERE.parent / "java" / "TransactionLoop.java"
TIMEOUT_S: Final = 300
WARM_UP: Final = 500
"""Transactions before the clock: the client's own JVM compiles meanwhile."""
_REASON_MAX: Final = 400


def transactions(job: Job) -> Measurement:
    """Transactions of one record each, one after the other, on partition 0."""
    workload = job.workload
    before = end_offsets(job, range(workload.partitions))
    value = pool(workload.size_bytes)[0].decode()
    counts = (str(WARM_UP), str(workload.transactions))
    arguments = (job.bootstrap_servers, job.topic, f"oncelog-bench-{job.topic}", *counts, value)
    command = java_command(PROGRAM, *arguments, options=("-server",))
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        return Measurement.failed(f"the Java client failed: {done.stderr.strip()[-_REASON_MAX:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    count = len(answer["commit_ms"])
    tally = Tally(
        records=count,
        committed_records=WARM_UP + count,
        transactions=count,
        markers=count,
        commit_ms=answer["commit_ms"],
        ended_s=answer["seconds"],
    )
    return summary(job, [tally], 0.0, before + 2 * WARM_UP)
