"""Consumer groups: how long joining takes, how long a rebalance, and how many offset commits fit into a second."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from oncelog.bench.driver.clients import consumer
from oncelog.bench.driver.figures import percentile_figures
from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Distribution, Measurement

_PATIENCE_S: Final = 30
_REPEATS: Final = 3


class Member:
    """A consumer that knows what it was given. Rebalances are eager, as by default."""

    def __init__(self, job: Job, group: str) -> None:
        self.assigned: set[int] = set()
        self.client = consumer(job, **{
            "group.id": group,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
        })  # fmt: skip
        # The connection is there before the clock runs.
        self.client.list_topics(job.topic, timeout=60)
        self._topic = job.topic

    def join(self) -> None:
        self.client.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = {partition.partition for partition in partitions}
        client.assign(partitions)

    def _on_revoke(self, client: Consumer, _: Any) -> None:
        self.assigned = set()
        client.unassign()


def _wait(members: list[Member], is_done: Callable[[], bool]) -> float:
    """Milliseconds until it is done, while all members poll as consumers must."""
    started_s = time.perf_counter()
    while not is_done():
        for member in members:
            member.client.poll(0.001)
        if time.perf_counter() - started_s > _PATIENCE_S:
            raise TimeoutError(f"no assignment within {_PATIENCE_S} s")
    return (time.perf_counter() - started_s) * 1000


def _join_and_rebalance(job: Job) -> tuple[float, float]:
    everything = set(range(job.workload.partitions))
    group = f"oncelog-bench-{uuid.uuid4().hex[:8]}"
    first, second = Member(job, group), Member(job, group)

    def is_shared() -> bool:
        return bool(first.assigned and second.assigned) and (
            not first.assigned & second.assigned and first.assigned | second.assigned == everything
        )

    try:
        first.join()
        join_ms = _wait([first], lambda: first.assigned == everything)
        second.join()
        return join_ms, _wait([first, second], is_shared)
    finally:
        first.client.close()
        second.client.close()


def groups(job: Job) -> Measurement:
    rounds = [_join_and_rebalance(job) for _ in range(_REPEATS)]
    member = consumer(job, **{"group.id": f"oncelog-bench-{uuid.uuid4().hex[:8]}"})
    # The first one finds the coordinator and connects to it.
    member.commit(offsets=[TopicPartition(job.topic, 0, 0)], asynchronous=False)
    samples = []
    for offset in range(1, job.workload.records + 1):
        before_s = time.perf_counter()
        member.commit(offsets=[TopicPartition(job.topic, 0, offset)], asynchronous=False)
        samples.append((time.perf_counter() - before_s) * 1000)
    stored = member.committed([TopicPartition(job.topic, 0)], timeout=30)[0].offset
    member.close()
    commits = Distribution.of(samples)
    return Measurement(
        {
            "join_ms": median(join_ms for join_ms, _ in rounds),
            "rebalance_ms": median(rebalance_ms for _, rebalance_ms in rounds),
            "commits_per_s": len(samples) / (sum(samples) / 1000),
            **percentile_figures("offset_commit", commits),
        },
        {"offset_commit_ms": commits},
        expected=job.workload.records,
        arrived=stored,
    )
