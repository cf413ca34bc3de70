"""The suite and, behind its transactions, the same with other clients, and produce and consume with security.

They do not keep a millisecond to themselves as librdkafka does, so that one sees more of the broker.
"""

from __future__ import annotations

from typing import Final

from oncelog.bench.catalogue import FULL, Group
from oncelog.bench.workload import Goal, Workload
from peers.replicated import FOLLOWER, LEADER, OTHER, SAME
from peers.secured import CLIENT_SETTINGS, VARIANT

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

_SECURED: Final = tuple(CLIENT_SETTINGS.items())
_NINE_TENTHS: Final = (Goal("records_per_s", at_least=0.9),)

SECURITY: Final = Group("security", "With TLS, a login and ACLs", (
    Workload("secured-produce-100B", "produce", "produce 100 B", 1_000_000, 100, settings=_SECURED, goals=_NINE_TENTHS),
    Workload("secured-produce-1KB", "produce", "produce 1 KB", 200_000, 1000, settings=_SECURED, goals=_NINE_TENTHS),
    Workload("secured-consume-1KB", "consume", "consume 1 KB, read_committed", 300_000, 1000, settings=_SECURED,
             goals=_NINE_TENTHS),
), rounds=3, variant=VARIANT)  # fmt: skip


def _replicated(name: str, title: str, variant: str, goals: tuple[Goal, ...]) -> Group:
    def load(size: str, records: int, size_bytes: int) -> Workload:
        return Workload(
            f"{name}-{size.replace(' ', '')}", "produce", f"produce {size}", records, size_bytes,
            replicas=(LEADER, FOLLOWER), goals=goals,
        )  # fmt: skip

    return Group(
        name, title, (load("100 B", 500_000, 100), load("1 KB", 100_000, 1000)), rounds=3, warm_ups=2, variant=variant
    )


REPLICATION: Final = (
    _replicated("replication", "acks=all to two replicas, leader and follower of the same kind", SAME, _NINE_TENTHS),
    _replicated("replication-mixed", "acks=all to two replicas, the follower of the other kind", OTHER, ()),
)

_BEHIND: Final = 1 + next(place for place, group in enumerate(FULL) if group.name == "transactions")
EVERYTHING: Final = (*FULL[:_BEHIND], CLIENTS, SECURITY, *REPLICATION, *FULL[_BEHIND:])
