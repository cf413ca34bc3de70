"""Reading only what is committed, and what the other isolation level shows.

    python -m examples.client.read_committed_reader 127.0.0.1:9092 TOPIC

A read_committed reader stops before the first record of an open transaction and leaves out aborted ones. Offsets have
gaps by that, and by the markers that end transactions: never expect the next offset to be the last one plus one.
"""

from __future__ import annotations

import argparse
import sys

from oncelog.client import Admin, Consumer, TopicPartition


def run(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """All values that are readable now, partition by partition; None is a tombstone."""
    config = {"bootstrap.servers": servers, "isolation.level": isolation}
    values: list[bytes | None] = []
    with Consumer(config) as consumer:
        consumer.assign(partitions_of(consumer, topic))
        consumer.seek_to_beginning()
        while any(consumer.lag(partition) for partition in consumer.assignment()):
            values += [record.value for record in consumer.poll(timeout_ms=1000)]
    return values


def partitions_of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    with Admin(consumer.config) as admin:
        info = admin.describe_topics([topic])[topic]
    return [TopicPartition(topic, partition.partition) for partition in info.partitions]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    parser.add_argument("topic", metavar="TOPIC")
    options = parser.parse_args()
    for value in run(options.servers, options.topic):
        # A value may be any bytes: what is not UTF-8 is shown as escapes.
        sys.stdout.write(f"{'(none)' if value is None else value.decode(errors='backslashreplace')}\n")
