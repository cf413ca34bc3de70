"""The suite, as data: groups of workloads, each short enough to be run alone, with the goals of the project.

Goals compare the first side with the other one (Oncelog over Apache Kafka); those of growth curves are in metric.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from oncelog.bench.workload import Goal, Workload


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    title: str
    workloads: tuple[Workload, ...]
    rounds: int
    warm_ups: int = 1
    """Rounds of each workload that are run on each side and thrown away: connections, caches, the JVM's compiler."""
    variant: str = ""
    """The brokers that it needs, if not those with default settings: see `Side.variants`."""

    def only(self, workloads: Iterable[Workload]) -> Self:
        return replace(self, workloads=tuple(workloads))


def produce_workload(name: str, title: str, records: int, size_bytes: int, **fields: object) -> Workload:
    return replace(Workload(name, "produce", title, records, size_bytes), **fields)  # type: ignore[arg-type]


def _produce() -> Group:
    at_least_even = (Goal("records_per_s", at_least=1.0),)
    return Group("produce", "Producing", (
        produce_workload("produce-100B", "produce 100 B", 2_000_000, 100, goals=at_least_even),
        produce_workload("produce-1KB", "produce 1 KB", 400_000, 1000, goals=at_least_even),
    ), rounds=5, warm_ups=2)  # fmt: skip


def _produce_settings() -> Group:
    def variant(name: str, title: str, **fields: object) -> Workload:
        return produce_workload(f"produce-{name}", f"produce 1 KB, {title}", 200_000, 1000, **fields)

    plain = {"idempotence": False}
    return Group("settings", "Producing with other settings", (
        variant("batch-16K", "batches of 16 KB", batch_bytes=16_384),
        variant("batch-64K", "batches of 64 KB", batch_bytes=65_536),
        variant("batch-1M", "batches of 1 MB", batch_bytes=1_000_000),
        variant("lz4", "lz4", compression="lz4"),
        variant("zstd", "zstd", compression="zstd"),
        variant("snappy", "snappy", compression="snappy"),
        variant("gzip", "gzip", compression="gzip"),
        variant("acks-0", "acks=0", acks="0", **plain),
        variant("acks-1", "acks=1", acks="1", **plain),
        variant("acks-all", "acks=all, not idempotent", **plain),
        variant("partitions-4", "4 partitions", partitions=4),
        variant("partitions-16", "16 partitions", partitions=16),
    ), rounds=3)  # fmt: skip


def _consume() -> Group:
    def reading(size_bytes: int, records: int, isolation: str, **fields: object) -> Workload:
        size = "1KB" if size_bytes == 1000 else f"{size_bytes}B"
        suffix = "-aborted" if fields else ""
        title = f"consume {size.replace('KB', ' KB').replace('00B', '00 B')}, {isolation}"
        title += ", half of the transactions aborted" if fields else ""
        made = Workload(f"consume-{size}-{isolation.removeprefix('read_')}{suffix}", "consume", title, records,
                        size_bytes, isolation=isolation, goals=(Goal("records_per_s", at_least=0.9),))  # fmt: skip
        return replace(made, **fields)  # type: ignore[arg-type]

    aborted = {"transactions": 2000, "per_transaction": 1000, "aborted_percent": 50}
    return Group("consume", "Consuming", (
        reading(100, 2_000_000, "read_committed"),
        reading(100, 2_000_000, "read_uncommitted"),
        reading(1000, 600_000, "read_committed"),
        reading(1000, 600_000, "read_uncommitted"),
        reading(100, 2_000_000, "read_committed", **aborted),
        reading(100, 2_000_000, "read_uncommitted", **aborted),
    ), rounds=3)  # fmt: skip


def _latency() -> Group:
    return Group("latency", "End-to-end latency", (
        Workload("latency-1000", "latency", "1,000 records/s of 100 B", rate_per_s=1000, seconds=9, linger_ms=0),
    ), rounds=3, warm_ups=2)  # fmt: skip


def _transactions() -> Group:
    def load(name: str, title: str, transactions: int, **fields: object) -> Workload:
        made = Workload(f"transactions-{name}", "transactions", title, transactions=transactions, linger_ms=0)
        return replace(made, **fields)  # type: ignore[arg-type]

    goals = (Goal("transactions_per_s", at_least=3.0), Goal("commit_p99_ms", at_most=0.2))
    return Group("transactions", "Transactions", (
        load("1", "one record each", 3000, goals=goals),
        load("10", "10 records each", 1000, per_transaction=10),
        load("100", "100 records each", 1000, per_transaction=100),
        load("1000", "1,000 records each", 1000, per_transaction=1000),
        load("4-producers", "one record each, 4 producers", 2000, producers=4),
        load("16-producers", "one record each, 16 producers", 2400, producers=16),
    ), rounds=5, warm_ups=2)  # fmt: skip  # Apache Kafka gets faster for the first 6,000 or so.


def _commit_cost(name: str, title: str, intervals_ms: Iterable[int], rounds: int, *goals: Goal) -> Group:
    def cost(interval_ms: int) -> Workload:
        title = f"1 KB, 4 partitions, {interval_ms:,} ms of records in a transaction"
        made = Workload(f"commit-every-{interval_ms}ms", "commit-cost", title, size_bytes=1000, partitions=4)
        return replace(made, commit_interval_ms=interval_ms, seconds=4, goals=goals)

    # Many rounds: from one to the next the figure moves by more than the goal is.
    return Group(name, title, tuple(map(cost, intervals_ms)), rounds, warm_ups=1)


def _groups() -> Group:
    return Group("groups", "Consumer groups", (
        Workload("groups", "groups", "4 partitions", records=1000, partitions=4),
    ), rounds=3)  # fmt: skip


def _lifecycle() -> Group:
    return Group("lifecycle", "Start and memory", (
        Workload("start", "start", "start of a folder that was stopped in order",
                 goals=(Goal("start_s", at_most=0.2),)),
        Workload("memory", "memory", "100 B records and transactions", records=1_000_000,
                 transactions=300, goals=(Goal("memory_mb", at_most=0.2),)),
    ), rounds=3, warm_ups=0)  # fmt: skip


def _recovery() -> Group:
    sizes = ((64, 65_000), (256, 260_000), (1024, 1_040_000))
    return Group("recovery", "Recovery", tuple(
        Workload(f"recovery-{size_mb}MB", "recovery", f"{size_mb:,} MB of 1 KB records", records, 1000,
                 curve="MB of log", x=size_mb)
        for size_mb, records in sizes
    ), rounds=3, warm_ups=0)  # fmt: skip


def _growth(name: str, kind: str, title: str, curve: str, points: Iterable[int], records: int = 0) -> Group:
    return Group(name, title, tuple(
        Workload(f"{name}-{x}", kind, f"{x:,} {curve}", records, curve=curve, x=x) for x in points
    ), rounds=2, warm_ups=0)  # fmt: skip


FULL: Final = (
    _produce(),
    _produce_settings(),
    _consume(),
    _latency(),
    _transactions(),
    _commit_cost(
        "commit-cost", "What transactions cost at full speed", (100,), 12, Goal("lost_percent", at_most=3.0, of="value")
    ),
    _commit_cost("commit-intervals", "What transactions cost with other intervals", (10, 1000), 4),
    _groups(),
    _lifecycle(),
    _recovery(),
    _growth("aborted", "aborted-growth", "Many aborted transactions", "aborted transactions", (1000, 10_000, 100_000)),
    _growth("partitions", "partition-growth", "Many partitions", "partitions", (10, 100, 1000), 200_000),
    _growth("ids", "id-growth", "Many transactional ids", "transactional ids", (10, 100, 1000, 10_000)),
)

_QUICK_LOADS: Final = (
    "produce-100B",
    "produce-1KB",
    "consume-100B-committed",
    "consume-1KB-committed",
    "transactions-1",
)
_QUICK_LIFECYCLE: Final = ("start", "memory")
QUICK_SHARE: Final = 0.25


def find(name: str) -> Workload:
    """One workload of the suite; raises KeyError."""
    for group in FULL:
        for workload in group.workloads:
            if workload.name == name:
                return workload
    raise KeyError(name)


def quick() -> tuple[Group, ...]:
    """The figures with the most important goals, with less of everything, and on one broker as far as possible."""

    def part(name: str, title: str, names: Iterable[str], rounds: int, warm_ups: int) -> Group:
        return Group(name, title, tuple(find(entry).scaled(QUICK_SHARE) for entry in names), rounds, warm_ups)

    return (
        part("loads", "Loads", _QUICK_LOADS, rounds=2, warm_ups=2),
        part("lifecycle", "Start and memory", _QUICK_LIFECYCLE, rounds=1, warm_ups=0),
    )


def select(groups: Iterable[Group], names: Iterable[str]) -> tuple[Group, ...]:
    """Groups or single workloads by their names, or several groups by how their names begin, up to a dash.

    Raises KeyError with the first name that does not exist.
    """
    wanted = dict.fromkeys(names)
    found: list[Group] = []
    known: set[str] = set()
    for group in groups:
        names_of_group = {group.name, group.name.partition("-")[0]}
        known |= {*names_of_group, *(workload.name for workload in group.workloads)}
        chosen = [entry for entry in group.workloads if names_of_group & wanted.keys() or entry.name in wanted]
        if chosen:
            found.append(group.only(chosen))
    for name in wanted:
        if name not in known:
            raise KeyError(name)
    return tuple(found)
