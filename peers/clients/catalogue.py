"""The suite and, behind its transactions, the same with other clients.

They do not keep a millisecond to themselves as librdkafka does, so that one sees more of the broker.
"""

from __future__ import annotations

from typing import Final

from oncelog.bench.catalogue import FULL, Group
from oncelog.bench.workload import Goal, Workload

_GOALS: Final = (Goal("transactions_per_s", at_least=3.0), Goal("commit_p99_ms", at_most=0.2))


def _load(name: str, client: str, driver: str, transactions: int) -> Workload:
    return Workload(
        f"transactions-{name}", "transactions", f"one record each, {client}", transactions=transactions, linger_ms=0,
        driver=driver, goals=_GOALS,
    )  # fmt: skip


CLIENTS: Final = Group("clients", "Transactions with other clients", (
    _load("java", "Apache Kafka's Java client", "peers.clients.java:transactions", 1000),
    _load("aiokafka", "aiokafka", "peers.clients.python:aiokafka_transactions", 200),
    _load("kafka-python", "kafka-python", "peers.clients.python:kafka_python_transactions", 200),
), rounds=3, warm_ups=2)  # fmt: skip

_BEHIND: Final = 1 + next(place for place, group in enumerate(FULL) if group.name == "transactions")
EVERYTHING: Final = (*FULL[:_BEHIND], CLIENTS, *FULL[_BEHIND:])
