"""The figures that each kind of workload yields, in the order in which they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    label: str
    unit: str
    more_is_better: bool = False
    has_ratio: bool = True
    """Brokers of growth curves are restarted in every round, so that a JVM never gets warm under load: the shape of the
    curve can be compared, the rate cannot."""
    flatness: float | None = None
    """On a growth curve: the largest exponent of its cost over x that is still accepted. See comparison.py."""


FLAT: Final = 0.15
LINEAR: Final = 1.15

RATE = Metric("records_per_s", "rate", "records/s", more_is_better=True)
BYTES = Metric("mb_per_s", "bytes", "MB/s", more_is_better=True)
TRANSACTIONS = Metric("transactions_per_s", "transactions", "/s", more_is_better=True)
START = Metric("start_s", "start to first acknowledged record", "s", flatness=LINEAR)
REST = Metric("memory_mb", "memory", "MB", flatness=LINEAR)


def percentiles(distribution: str, label: str) -> tuple[Metric, ...]:
    names = (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"))
    return tuple(Metric(f"{distribution}_{name}_ms", f"{label} {shown}", "ms") for name, shown in names)


METRICS: Final[dict[str, tuple[Metric, ...]]] = {
    "produce": (RATE, BYTES),
    "consume": (RATE, BYTES),
    "latency": (
        *percentiles("latency", "end to end"),
        Metric("sent_per_s", "sent", "records/s", more_is_better=True, has_ratio=False),
    ),
    "transactions": (TRANSACTIONS, RATE, *percentiles("commit", "commit")),
    "commit-cost": (
        Metric("lost_percent", "throughput lost", "%", has_ratio=False),
        Metric("plain_mb_per_s", "plain idempotent", "MB/s", more_is_better=True),
        Metric("transactional_mb_per_s", "transactional", "MB/s", more_is_better=True),
        Metric("commits_per_s", "commits", "/s", more_is_better=True),
        # A round has too few commits for any other percentile.
        Metric("commit_p50_ms", "commit and what is left to send, p50", "ms"),
    ),
    "groups": (
        Metric("join_ms", "first member joins", "ms"),
        Metric("rebalance_ms", "rebalance when one more joins", "ms"),
        Metric("commits_per_s", "offset commits", "/s", more_is_better=True),
        *percentiles("offset_commit", "offset commit"),
    ),
    "start": (START,),
    "memory": (
        Metric("memory_mb", "memory at rest", "MB"),
        Metric("memory_loaded_mb", "memory after load", "MB"),
    ),
    "recovery": (Metric("recovery_s", "kill -9, then start to first acknowledged record", "s", flatness=LINEAR),),
    "aborted-growth": (
        Metric(
            "read_us_per_transaction", "read_committed, per aborted transaction", "us", has_ratio=False, flatness=FLAT
        ),
        Metric("tail_fetch_ms", "read_committed fetch at the end of the log", "ms", has_ratio=False, flatness=FLAT),
        START,
        Metric("recovery_s", "start after kill -9", "s", flatness=LINEAR),
    ),
    "partition-growth": (
        Metric("us_per_record", "produce, per record", "us", has_ratio=False, flatness=LINEAR),
        Metric("create_s", "creating them", "s", has_ratio=False, flatness=LINEAR),
        START,
        REST,
    ),
    "id-growth": (
        Metric("ms_per_transaction", "one transaction", "ms", has_ratio=False, flatness=FLAT),
        START,
        REST,
    ),
}


def metric(kind: str, name: str) -> Metric:
    return next(entry for entry in METRICS[kind] if entry.name == name)
