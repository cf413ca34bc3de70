"""Reading a topic to its end.

While the clock runs, errors are counted and the first and last record of each batch are compared with what was
sent; `verify` compares every record, without a clock, so that looking closely costs no side its rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from oncelog.bench.driver.clients import consumer
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import ABORTED, pool
from oncelog.bench.measurement import Measurement

SILENCE_S: Final = 60
BATCH: Final = 10_000
TAIL: Final = 400
"""Entries before the end where a reader near the end begins: among them are committed ones."""


class Content:
    """What must be found at an offset. Where markers take up offsets as well, it must be one of the values sent."""

    def __init__(self, job: Job) -> None:
        workload = job.workload
        self._values = pool(workload.size_bytes)
        self._partitions = workload.partitions
        self._has_markers = workload.transactions > 0
        self._possible = set(self._values)
        if workload.isolation == "read_uncommitted":
            self._possible |= set(pool(workload.size_bytes, ABORTED))

    def is_wrong(self, message: Any) -> bool:
        value = message.value()
        if self._has_markers:
            return value not in self._possible
        number = message.offset() * self._partitions + message.partition()
        return bool(value != self._values[number % len(self._values)])


Look = Callable[[Sequence[Any], Content], int]
"""How many records of a batch are wrong."""


def consume(job: Job) -> Measurement:
    return _read(job, lambda messages, content: content.is_wrong(messages[0]) + content.is_wrong(messages[-1]))


def verify(job: Job) -> Measurement:
    """Every value is what was sent, every offset is above the one before."""
    positions = dict.fromkeys(range(job.workload.partitions), -1)

    def look(messages: Sequence[Any], content: Content) -> int:
        wrong = 0
        for message in messages:
            wrong += content.is_wrong(message) or message.offset() <= positions[message.partition()]
            positions[message.partition()] = message.offset()
        return wrong

    return _read(job, look)


def survivors(job: Job) -> Measurement:
    """The records of the workload are all there, as they were sent; others may follow them."""
    return _read(job, lambda messages, content: sum(map(content.is_wrong, messages)), allow_more=True)


def _read(job: Job, look: Look, *, allow_more: bool = False) -> Measurement:
    workload = job.workload
    expected = workload.records if job.expected is None else job.expected
    reader = _ready(job)
    content = Content(job)
    received, errors, wrong = 0, 0, 0
    started_s = time.perf_counter()
    reader.assign([TopicPartition(job.topic, partition, 0) for partition in range(workload.partitions)])
    while received < expected:
        messages = reader.consume(min(BATCH, expected - received), SILENCE_S)
        if not messages:
            break
        failed = sum(1 for message in messages if message.error() is not None)
        if failed:
            errors += failed
            break
        received += len(messages)
        wrong += look(messages, content)
    seconds = time.perf_counter() - started_s
    # What comes after the last record that was expected is one too many.
    if not allow_more:
        received += sum(1 for message in reader.consume(BATCH, 0.5) if message.error() is None)
    reader.close()
    return Measurement(
        {
            "records_per_s": received / seconds,
            "mb_per_s": received / seconds * workload.size_bytes / 1e6,
            "seconds": seconds,
        },
        expected=expected,
        arrived=received,
        errors=errors + wrong,
        note=f"{wrong} records differ from what was sent" if wrong else "",
    )


def _ready(job: Job, **settings: Any) -> Consumer:
    """Connected and with metadata, so that the clock sees fetches only."""
    reader = consumer(job, **settings)
    for partition in range(job.workload.partitions):
        reader.get_watermark_offsets(TopicPartition(job.topic, partition), timeout=60)
    return reader


def tail_fetch(job: Job) -> Measurement:
    """How long a reader that is near the end waits for one record that is there: median of several."""
    # A fetch that waits at the end of the log for more would hold up the next one.
    reader = _ready(job, **{"fetch.wait.max.ms": 1})
    _, end = reader.get_watermark_offsets(TopicPartition(job.topic, 0), timeout=60)
    samples = []
    for _ in range(21):
        started_s = time.perf_counter()
        reader.assign([TopicPartition(job.topic, 0, max(0, end - TAIL))])
        message = reader.poll(SILENCE_S)
        if message is None or message.error() is not None:
            return Measurement.failed("no record near the end of the log")
        samples.append((time.perf_counter() - started_s) * 1000)
        reader.unassign()
    reader.close()
    return Measurement({"tail_fetch_ms": sorted(samples)[len(samples) // 2]})
