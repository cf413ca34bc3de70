"""A transaction over several topics and partitions: all of its records appear, or none does.

    python -m examples.client.write_only_transaction 127.0.0.1:9092

An order and its invoice belong together. The second order is refused after its first record was already written; a
read_committed reader never sees any of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from oncelog.client import Producer

ORDERS = {"order-1": 120, "order-2": -5, "order-3": 80}


def run(servers: str, topic: str = "example-orders", transactional_id: str = "example-orders") -> list[str]:
    """Write each order with its invoice in one transaction. Returns the orders that were committed."""
    committed = []
    with Producer({"bootstrap.servers": servers, "transactional.id": transactional_id}) as producer:
        producer.init_transactions()
        for order, amount in ORDERS.items():
            try:
                with producer.transaction():
                    write(producer, topic, order, amount)
                committed.append(order)
            except ValueError as refusal:
                sys.stderr.write(f"{refusal}: nothing of it is seen by anyone\n")
    return committed


def write(producer: Producer, topic: str, order: str, amount: int) -> None:
    headers: Mapping[str, str] = {"amount": str(amount)}
    producer.send(topic, f"order {amount}", key=order, headers=headers)
    if amount < 0:
        raise ValueError(f"{order} has a negative amount")
    producer.send(f"{topic}-invoices", f"invoice {amount}", key=order, headers=headers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", metavar="HOST:PORT")
    sys.stdout.write(f"committed: {', '.join(run(parser.parse_args().servers))}\n")
