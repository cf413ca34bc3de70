"""Workloads as data, passed as JSON to the process that runs them and stored in the results."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

_CONNECTING: Final = ("sasl.", "ssl.", "security.")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should reach: `of` is "ratio" (first side over the other) or "value" (the first side alone)."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    of: str = "ratio"

    def is_met(self, figure: float) -> bool:
        above = self.at_least is None or figure >= self.at_least
        return above and (self.at_most is None or figure <= self.at_most)


@dataclass(frozen=True, slots=True)
class Workload:
    """One measurement, run with the same settings and the same data on every side. Not every kind uses every field."""

    name: str
    """Identifies it in results and after --only; letters, digits, dots and dashes."""
    kind: str
    title: str
    records: int = 0
    size_bytes: int = 100
    partitions: int = 1
    # Settings of the producing client.
    batch_bytes: int = 262_144
    linger_ms: float = 5
    compression: str = "none"
    acks: str = "all"
    idempotence: bool = True
    rate_per_s: int = 0
    """Records per second; 0 means without a limit."""
    # Settings of the consuming client.
    isolation: str = "read_committed"
    # Transactions.
    transactions: int = 0
    per_transaction: int = 1
    aborted_percent: int = 0
    commit_interval_ms: int = 0
    """Commits by time instead of by count."""
    producers: int = 1
    seconds: float = 0
    """For loads that last a time instead of a number of records."""
    members: int = 1
    # Where it stands on a growth curve.
    curve: str = ""
    x: int = 0
    driver: str = ""
    """`module:function` of a driver from elsewhere, which takes the place of the kind's own."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further settings of the client, under librdkafka's names."""
    goals: tuple[Goal, ...] = ()
    replicas: tuple[int, ...] = ()
    """Brokers that keep each partition and have to acknowledge records, the leader first; or the cluster's default."""

    @property
    def shown_settings(self) -> tuple[tuple[str, str], ...]:
        """Without settings for the connection: passwords must not be in a report."""
        return tuple((name, value) for name, value in self.settings if not name.startswith(_CONNECTING))

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        chosen = {name: value for name, value in entries.items() if name in known}
        chosen["settings"] = tuple((name, value) for name, value in chosen.get("settings", ()))
        chosen["replicas"] = tuple(chosen.get("replicas", ()))
        chosen["goals"] = tuple(Goal(**goal) for goal in chosen.get("goals", ()))
        return cls(**chosen)

    def scaled(self, share: float) -> Self:
        """The same with less of everything that takes time, for a quick look."""
        return replace(
            self,
            records=_share(self.records, share),
            transactions=_share(self.transactions, share),
            seconds=self.seconds * share,
        )


def _share(amount: int, share: float) -> int:
    return max(1, int(amount * share)) if amount else 0
