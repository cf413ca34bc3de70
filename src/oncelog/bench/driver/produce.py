"""Records as fast as they go, or at a rate; the log must end with exactly as many as were sent.

The first record goes ahead, off the clock. Until it is acknowledged the client may wait half a second: it asks for its
producer id as soon as it starts, and again only after 500 ms when no connection was up by then. Whether that happens is
a race which a broker that answers metadata quickly loses more often.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle

from oncelog.bench.driver.clients import Producing, end_offsets, settled_end
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import pool
from oncelog.bench.measurement import Measurement


def produce(job: Job) -> Measurement:
    workload = job.workload
    before = end_offsets(job, range(workload.partitions))
    producing = Producing(job)
    values = cycle(pool(workload.size_bytes))
    producing.send(job.topic, next(values), 0)
    producing.flush()
    started_s = time.perf_counter()
    (_send_at_rate if workload.rate_per_s else _send_all)(producing, job, values)
    left = producing.flush()
    seconds = time.perf_counter() - started_s
    rate = (workload.records - 1) / seconds
    return Measurement(
        {"records_per_s": rate, "mb_per_s": rate * workload.size_bytes / 1e6, "seconds": seconds},
        expected=workload.records,
        arrived=settled_end(job, workload.records, before),
        errors=left + len(producing.errors),
        note="; ".join(producing.errors[:1]),
    )


def _send_all(producing: Producing, job: Job, values: Iterator[bytes]) -> None:
    client, topic, partitions = producing.client, job.topic, job.workload.partitions
    send = client.produce
    for number in range(1, job.workload.records):
        value = next(values)
        try:
            send(topic, value, partition=number % partitions)
        except BufferError:
            producing.send(topic, value, number % partitions)
        if not number % 1000:
            client.poll(0)


def _send_at_rate(producing: Producing, job: Job, values: Iterator[bytes]) -> None:
    started_s = time.perf_counter()
    for number in range(1, job.workload.records):
        ahead_s = started_s + number / job.workload.rate_per_s - time.perf_counter()
        if ahead_s > 0.001:
            time.sleep(ahead_s)
        producing.send(job.topic, next(values), number % job.workload.partitions)
        producing.client.poll(0)
