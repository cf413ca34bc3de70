"""Topics for a measurement, made and removed by the admin client of the same library."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement

_TIMEOUT_S: Final = 120


def create(job: Job) -> Measurement:
    admin = AdminClient({"bootstrap.servers": job.bootstrap_servers})
    # Deleted data must not be written to disk while others are measured.
    settings = {"file.delete.delay.ms": "0"}
    topic = NewTopic(job.topic, job.workload.partitions, 1, config=settings)
    started_s = time.perf_counter()
    admin.create_topics([topic], operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)[job.topic].result(_TIMEOUT_S)
    while not _has_leaders(admin, job):
        time.sleep(0.01)
    return Measurement({"create_s": time.perf_counter() - started_s})


def _has_leaders(admin: AdminClient, job: Job) -> bool:
    """A topic can be used when every partition of it has a leader."""
    topic = admin.list_topics(job.topic, timeout=_TIMEOUT_S).topics[job.topic]
    leaders = [partition.leader for partition in topic.partitions.values() if partition.error is None]
    return len(leaders) == job.workload.partitions and min(leaders) >= 0


def delete(job: Job) -> Measurement:
    admin = AdminClient({"bootstrap.servers": job.bootstrap_servers})
    admin.delete_topics([job.topic], operation_timeout=_TIMEOUT_S)[job.topic].result(_TIMEOUT_S)
    return Measurement({"deleted": 1})
