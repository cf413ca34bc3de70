"""Idempotence, which is on by default: a batch that is sent again after a lost answer is written once.

    python -m examples.client.idempotent 127.0.0.1:9092

Nothing needs to be configured; what would weaken it (acks, retries, more than five requests in flight) is refused by
name as soon as `enable.idempotence` is asked for.
"""

from __future__ import annotations

import argparse
import sys

from oncelog.client import ConfigurationError, Producer, RecordMetadata


def run(servers: str, topic: str = "example-idempotent", count: int = 1000) -> list[RecordMetadata]:
    """Send records and return where each of them is."""
    with Producer({"bootstrap.servers": servers}) as producer:
        futures = [producer.send(topic, f"value {number}", key=str(number % 10)) for number in range(count)]
        producer.flush()
        return [future.result() for future in futures]


def contradiction(servers: str) -> str:
    """What a producer says that is to be idempotent and not to wait for all replicas."""
    try:
        Producer({"bootstrap.servers": servers, "enable.idempotence": True, "acks": "1"}).close()
    except ConfigurationError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    servers = parser.parse_args().servers
    records = run(servers)
    sys.stdout.write(f"{len(records)} records, the last one at {records[-1]}\n{contradiction(servers)}\n")
