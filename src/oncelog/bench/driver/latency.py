"""From the moment a record was due to the consumer's hands, at a modest fixed rate, in one process: one clock.

Latencies count from when a record was due, not from when it was sent, so that delays of the producer are included.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Final

from confluent_kafka import TopicPartition

from oncelog.bench.driver.clients import Producing, connected, consumer, end_offsets, settled_end
from oncelog.bench.driver.figures import percentile_figures
from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Distribution, Measurement

_HEAD: Final = struct.Struct(">qq")
_SILENCE_S: Final = 20
WARM_UP_S: Final = 1.0
"""The first second is sent and checked, but not timed: connections and caches."""


def latency(job: Job) -> Measurement:
    workload = job.workload
    count = int(workload.seconds * workload.rate_per_s)
    unmeasured = int(min(WARM_UP_S, workload.seconds / 2) * workload.rate_per_s)
    producing = connected(Producing(job), job.topic)
    before = end_offsets(job, range(workload.partitions))
    reader = consumer(job)
    ends = [
        reader.get_watermark_offsets(TopicPartition(job.topic, index), 60)[1] for index in range(workload.partitions)
    ]
    reader.assign([TopicPartition(job.topic, index, end) for index, end in enumerate(ends)])
    reader.poll(1)
    sent_s: list[float] = []
    sender = threading.Thread(target=_send, args=(producing, job, count, sent_s), daemon=True)
    sender.start()
    samples: list[float] = []
    numbers: set[int] = set()
    errors = 0
    while len(numbers) < count:
        message = reader.poll(_SILENCE_S)
        now_ns = time.perf_counter_ns()
        if message is None:
            break
        if message.error() is not None:
            errors += 1
            continue
        number, due_ns = _HEAD.unpack_from(message.value() or b"")
        errors += number in numbers
        numbers.add(number)
        if number >= unmeasured:
            samples.append((now_ns - due_ns) / 1e6)
    sender.join(_SILENCE_S)
    reader.close()
    distribution = Distribution.of(samples)
    return Measurement(
        {**percentile_figures("latency", distribution), **({"sent_per_s": count / sent_s[0]} if sent_s else {})},
        {"latency_ms": distribution},
        expected=count,
        arrived=min(len(numbers), settled_end(job, count, before)),
        errors=errors + len(producing.errors),
    )


def _send(producing: Producing, job: Job, count: int, took_s: list[float]) -> None:
    workload = job.workload
    filling = bytes(max(0, workload.size_bytes - _HEAD.size))
    started_s = time.perf_counter()
    for number in range(count):
        due_s = started_s + number / workload.rate_per_s
        ahead_s = due_s - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        value = _HEAD.pack(number, int(due_s * 1e9)) + filling
        producing.send(job.topic, value, number % workload.partitions)
        producing.client.poll(0)
    took_s.append(max(time.perf_counter() - started_s, (count - 1) / workload.rate_per_s))
    producing.flush()
