"""Topics for a measurement, made and removed by the admin client of the same library."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement
from oncelog.bench.workload import Workload

_TIMEOUT_S: Final = 120
BROKER_DEFAULT: Final = -1
"""As replication factor: a cluster may refuse any other than its own."""


def _admin(job: Job) -> AdminClient:
    """With the user's settings, which may be what it takes to connect. It ignores those of other clients."""
    return AdminClient({"bootstrap.servers": job.bootstrap_servers, **dict(job.workload.settings)})


def create(job: Job) -> Measurement:
    admin = _admin(job)
    topic = _new_topic(job.topic, job.workload)
    started_s = time.perf_counter()
    admin.create_topics([topic], operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)[job.topic].result(_TIMEOUT_S)
    while not _has_leaders(admin, job):
        time.sleep(0.01)
    return Measurement({"create_s": time.perf_counter() - started_s})


def _new_topic(name: str, workload: Workload) -> NewTopic:
    replicas = list(workload.replicas)
    if not replicas:
        return NewTopic(name, workload.partitions, BROKER_DEFAULT)
    return NewTopic(
        name,
        workload.partitions,
        replica_assignment=[replicas] * workload.partitions,
        config={"min.insync.replicas": str(len(replicas))},
    )


def _has_leaders(admin: AdminClient, job: Job) -> bool:
    """A topic can be used when every partition of it has a leader."""
    topic = admin.list_topics(job.topic, timeout=_TIMEOUT_S).topics[job.topic]
    leaders = [partition.leader for partition in topic.partitions.values() if partition.error is None]
    return len(leaders) == job.workload.partitions and min(leaders) >= 0


def delete(job: Job) -> Measurement:
    admin = _admin(job)
    admin.delete_topics([job.topic], operation_timeout=_TIMEOUT_S)[job.topic].result(_TIMEOUT_S)
    return Measurement({"deleted": 1})
