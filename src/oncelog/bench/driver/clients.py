"""Clients as all drivers make them: every setting that matters is written here, once, for every side."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from oncelog.bench.driver.job import Job

FLUSH_S: Final = 120
TRANSACTION_S: Final = 60
SETTLE_S: Final = 30
"""How long the end of a log may take to get where it must be: markers are written after a commit is acknowledged."""
_POLL_S: Final = 0.02
_NO_LEADER: Final = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class Producing:
    """A producer that counts what failed. Reports of success are left out: the end of the log tells the number."""

    def __init__(self, job: Job, **settings: Any) -> None:
        workload = job.workload
        self.errors: list[str] = []
        self.client = Producer({
            "bootstrap.servers": job.bootstrap_servers,
            "acks": workload.acks,
            "enable.idempotence": workload.idempotence,
            "linger.ms": workload.linger_ms,
            "batch.size": workload.batch_bytes,
            "compression.type": workload.compression,
            "queue.buffering.max.kbytes": 65_536,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            **dict(workload.settings),
            **settings,
        })  # fmt: skip

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self.errors.append(str(error))

    def send(self, topic: str, value: bytes, partition: int) -> None:
        while True:
            try:
                self.client.produce(topic, value, partition=partition)
                return
            except BufferError:
                self.client.poll(0.005)

    def flush(self) -> int:
        """How many records are still not acknowledged."""
        left: int = self.client.flush(FLUSH_S)
        return left


class Transactional(Producing):
    def __init__(self, job: Job, transactional_id: str) -> None:
        super().__init__(job, **{"transactional.id": transactional_id, "transaction.timeout.ms": 60_000})

    def init(self) -> None:
        self.client.init_transactions(TRANSACTION_S)

    def begin(self) -> None:
        self.client.begin_transaction()

    def commit(self) -> None:
        self.client.commit_transaction(TRANSACTION_S)

    def abort(self) -> None:
        self.client.abort_transaction(TRANSACTION_S)


def consumer(job: Job, **settings: Any) -> Consumer:
    return Consumer({
        "bootstrap.servers": job.bootstrap_servers,
        "group.id": f"oncelog-bench-{job.topic}",
        "isolation.level": job.workload.isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 262_144,
        "fetch.message.max.bytes": 8_388_608,
        # The library pauses for a second each time its queue is full, which would be most of what is measured.
        "queued.min.messages": 1_000_000,
        "fetch.queue.backoff.ms": 1,
        **dict(job.workload.settings),
        **settings,
    })  # fmt: skip


def end_offsets(job: Job, partitions: Iterable[int]) -> int:
    """The sum of the partitions' ends: records and markers that were ever written."""
    reader = consumer(job, **{"isolation.level": "read_uncommitted"})
    try:
        return sum(_end_offset(reader, TopicPartition(job.topic, partition)) for partition in partitions)
    finally:
        reader.close()


def _end_offset(reader: Consumer, partition: TopicPartition) -> int:
    """A topic that was just created may have no leader yet."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        try:
            end: int = reader.get_watermark_offsets(partition, timeout=30)[1]
            return end
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline_s:
                raise
        time.sleep(_POLL_S)


def settled_end(job: Job, expected: int, before: int = 0) -> int:
    """Entries written since `before`, once they are what is expected or have had their time to become it."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        written = end_offsets(job, range(job.workload.partitions)) - before
        if written >= expected or time.monotonic() > deadline_s:
            return written
        time.sleep(_POLL_S)


def connected(producing: Producing, topic: str) -> Producing:
    """Connecting and looking up metadata is not what is measured."""
    producing.client.list_topics(topic, timeout=60)
    return producing
