"""aiokafka and kafka-python in the shape that the load of transactions needs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer

from kafka import KafkaProducer
from oncelog.bench.driver import transactions
from oncelog.bench.driver.job import Job
from oncelog.bench.measurement import Measurement


class Aiokafka:
    """Its tasks run while a call waits, which is all the time that a transaction takes."""

    def __init__(self, job: Job, transactional_id: str) -> None:
        self.errors: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._producer = self._run(self._made(job, transactional_id))

    async def _made(self, job: Job, transactional_id: str) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=job.bootstrap_servers,
            transactional_id=transactional_id,
            max_batch_size=job.workload.batch_bytes,
            linger_ms=int(job.workload.linger_ms),
        )

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def init(self) -> None:
        self._run(self._producer.start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int) -> None:
        self._run(self._producer.send(topic, value, partition=partition)).add_done_callback(self._note)

    def _note(self, delivery: asyncio.Future[Any]) -> None:
        if delivery.exception() is not None:
            self.errors.append(str(delivery.exception()))

    def flush(self) -> int:
        self._run(self._producer.flush())
        return 0

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()


class KafkaPython:
    def __init__(self, job: Job, transactional_id: str) -> None:
        self.errors: list[str] = []
        self._producer = KafkaProducer(
            bootstrap_servers=job.bootstrap_servers,
            transactional_id=transactional_id,
            batch_size=job.workload.batch_bytes,
            linger_ms=int(job.workload.linger_ms),
        )

    def init(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int) -> None:
        self._producer.send(topic, value=value, partition=partition).add_errback(self._note)

    def _note(self, error: BaseException) -> None:
        self.errors.append(str(error))

    def flush(self) -> int:
        self._producer.flush()
        return 0

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close()


def aiokafka_transactions(job: Job) -> Measurement:
    return _measured(job, Aiokafka)


def kafka_python_transactions(job: Job) -> Measurement:
    return _measured(job, KafkaPython)


def _measured(job: Job, kind: type[Aiokafka] | type[KafkaPython]) -> Measurement:
    made: list[Aiokafka | KafkaPython] = []

    def make(job: Job, transactional_id: str) -> Aiokafka | KafkaPython:
        made.append(kind(job, transactional_id))
        return made[-1]

    try:
        return transactions.transactions(job, make)
    finally:
        for producer in made:
            producer.close()
