"""Waits for a broker that is about to start, and reports when it acknowledged the first record.

Prints a line when it is trying, so that starting Python is not on the clock. Moments are on the monotonic clock that
all processes of a machine share.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from confluent_kafka import KafkaException

from oncelog.bench.driver.clients import Producing, settled_end
from oncelog.bench.driver.job import Job
from oncelog.bench.driver.payload import pool
from oncelog.bench.measurement import Measurement

READY: Final = "trying"
_PATIENCE_S: Final = 120
_ASK_S: Final = 0.25


def first_ack(job: Job) -> Measurement:
    acknowledged_s: list[float] = []
    errors: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is None:
            acknowledged_s.append(time.monotonic())
        else:
            errors.append(str(error))

    producing = Producing(job, **{
        "delivery.report.only.error": False,
        "linger.ms": 0,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 10,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 10,
        "topic.metadata.refresh.fast.interval.ms": 20,
        "message.timeout.ms": _PATIENCE_S * 1000,
        "log_level": 0,
        "error_cb": lambda _: None,
    })  # fmt: skip
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    _await_topic(producing, job.topic)
    producing.client.produce(job.topic, pool(job.workload.size_bytes)[0], partition=0, on_delivery=delivered)
    producing.client.flush(_PATIENCE_S)
    if not acknowledged_s:
        return Measurement.failed(f"no record was acknowledged: {errors[:1]}")
    # At least one: other records may be there already.
    written = settled_end(job, 1)
    return Measurement({"acknowledged_s": acknowledged_s[0]}, expected=1, arrived=min(1, written), errors=len(errors))


def _await_topic(producing: Producing, topic: str) -> None:
    """Asks again and again: left to itself, the library looks for a broker that came back once in a second."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            found = producing.client.list_topics(topic, timeout=_ASK_S).topics[topic]
        except KafkaException:
            continue
        if found.error is None and found.partitions and found.partitions[0].leader >= 0:
            return
        time.sleep(0.005)
