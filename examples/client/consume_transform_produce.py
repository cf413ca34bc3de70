"""Consume, transform, produce: output and input offsets in one transaction, so every input counts exactly once.

    python -m examples.client.consume_transform_produce 127.0.0.1:9092 INPUT OUTPUT INSTANCE

Start it twice with different INSTANCE names and kill one: the other goes on where the last committed transaction ended.
Four things make it exactly-once: `enable.auto.commit` is off, offsets go through the producer, the consumer's group
metadata goes with them (a consumer that lost its partitions cannot commit any more), and after an abort the consumer
goes back to what is committed.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable

from oncelog.client import AbortableError, CommitFailed, Consumer, ConsumerRecord, Producer, TimedOut, TopicPartition
from oncelog.client.transaction_state import State

GROUP = "example-transform"


def run(
    servers: str,
    source: str,
    target: str,
    instance: str,
    *,
    group: str = GROUP,
    until: Callable[[int], bool] = lambda processed: False,
) -> int:
    """Process records until `until` says so; it is given how many were committed. Returns that number."""
    processed = 0
    with (
        Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 6000,
            }
        ) as consumer,
        Producer({"bootstrap.servers": servers, "transactional.id": f"{group}-{instance}"}) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])
        while not until(processed):
            records = consumer.poll(timeout_ms=200, max_records=50)
            if records and process(producer, consumer, records, target):
                processed += len(records)
    return processed


def process(producer: Producer, consumer: Consumer, records: list[ConsumerRecord], target: str) -> bool:
    """One transaction; whether it was committed."""
    try:
        with producer.transaction():
            for record in records:
                producer.send(target, transform(record), key=record.key)
            producer.send_offsets_to_transaction(next_offsets(records), consumer.group_metadata())
    except (AbortableError, CommitFailed):
        consumer.seek_to_committed()
        return False
    except TimedOut:
        # The answer to the commit is missing; asking again finds out what became of it.
        if producer.state is not State.COMMITTING:
            raise
        producer.commit_transaction()
    return True


def transform(record: ConsumerRecord) -> bytes | None:
    """A record without a value, a tombstone, stays one."""
    return None if record.value is None else bytes(record.value).upper()


def next_offsets(records: list[ConsumerRecord]) -> dict[TopicPartition, int]:
    """What to read next: the last offset of each partition plus one."""
    return {record.topic_partition: record.offset + 1 for record in records}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    parser.add_argument("source", metavar="INPUT")
    parser.add_argument("target", metavar="OUTPUT")
    parser.add_argument("instance", metavar="INSTANCE")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        run(options.servers, options.source, options.target, options.instance)
