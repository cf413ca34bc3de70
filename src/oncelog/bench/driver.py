"""The process that drives a cluster: `python -m oncelog.bench.driver BOOTSTRAP TOPIC WORKLOAD-AS-JSON`.

confluent-kafka is the driver for every cluster, with the same settings, so that the driver favours nobody. A run
counts what was acknowledged or received and reports a problem instead of a rate when that is not everything.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from oncelog.bench.workload import Measurement, Workload

_FLUSH_S = 60
_SILENCE_S = 20


def main() -> None:
    bootstrap, topic, text = sys.argv[1:4]
    workload = Workload(**json.loads(text))
    run = {"produce": produce, "consume": consume, "transactions": transactions}[workload.kind]
    sys.stdout.write(json.dumps(asdict(run(bootstrap, topic, workload))) + "\n")


def produce(bootstrap: str, topic: str, workload: Workload) -> Measurement:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 262_144,
            "compression.type": workload.compression,
            "queue.buffering.max.kbytes": 65_536,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = bytes(workload.size_bytes)
    errors: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(str(error))

    producer.list_topics(topic, timeout=30)
    started_s = time.perf_counter()
    for number in range(workload.records):
        while True:
            try:
                producer.produce(topic, value, partition=number % workload.partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_S)
    seconds = time.perf_counter() - started_s
    if left or errors:
        return Measurement(problem=f"{left} records were not acknowledged, {len(errors)} failed: {errors[:1]}")
    return Measurement(seconds, workload.records)


def consume(bootstrap: str, topic: str, workload: Workload) -> Measurement:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oncelog-bench",
            "isolation.level": workload.isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 8_388_608,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(workload.partitions)])
    # The clock starts with the first records: connecting and looking up metadata is not what is measured.
    received = len(consumer.consume(1, 30))
    started_s = time.perf_counter()
    while received < workload.records:
        messages = consumer.consume(min(10_000, workload.records - received), _SILENCE_S)
        if not messages:
            return Measurement(problem=f"only {received} of {workload.records} records arrived")
        received += sum(1 for message in messages if message.error() is None)
    seconds = time.perf_counter() - started_s
    consumer.close()
    return Measurement(seconds, received)


def transactions(bootstrap: str, topic: str, workload: Workload) -> Measurement:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"oncelog-bench-{topic}", "linger.ms": 0})
    producer.init_transactions(30)
    value = bytes(workload.size_bytes)
    latencies_ms: list[float] = []
    started_s = time.perf_counter()
    for _ in range(workload.records):
        before_s = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(30)
        latencies_ms.append((time.perf_counter() - before_s) * 1000)
    return Measurement(time.perf_counter() - started_s, workload.records, latencies_ms)


if __name__ == "__main__":
    main()
