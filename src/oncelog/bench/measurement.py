"""What one round saw, and whether it may be trusted.

A measurement carries what was expected and what arrived beside its figures. `problem` is computed from them, so that
a driver that lost a record cannot report a rate: whoever wants a figure asks `problem` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

PERCENTS: Final = (0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9,
                   99.99, 100.0)  # fmt: skip
"""The percentiles that are kept of each distribution: enough for tables and plots, little enough for every round."""


@dataclass(frozen=True, slots=True)
class Distribution:
    count: int
    values: tuple[float, ...]
    """At PERCENTS."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        ordered = sorted(samples)
        if not ordered:
            return cls(0, ())
        last = len(ordered) - 1
        return cls(len(ordered), tuple(ordered[min(last, int(len(ordered) * percent / 100))] for percent in PERCENTS))

    def at(self, percent: float) -> float:
        return self.values[PERCENTS.index(percent)]


@dataclass(frozen=True, slots=True)
class Measurement:
    figures: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)
    expected: int = 0
    """Records that must have arrived."""
    arrived: int = 0
    errors: int = 0
    failure: str = ""
    """Why there is nothing to measure at all."""
    note: str = ""

    @property
    def problem(self) -> str:
        """Why the figures must not be used, or nothing."""
        if self.failure:
            return self.failure
        if self.errors:
            return f"{self.errors} errors"
        if self.arrived != self.expected:
            return f"{self.arrived:,} records where {self.expected:,} were expected"
        if not self.figures:
            return "nothing was measured"
        return ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "problem": self.problem}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> Self:
        distributions = {
            name: Distribution(entry["count"], tuple(entry["values"]))
            for name, entry in entries.get("distributions", {}).items()
        }
        # `problem` is written for readers of the file; here it is computed anew.
        plain = {name: value for name, value in entries.items() if name not in ("distributions", "problem")}
        return cls(**plain, distributions=distributions)

    @classmethod
    def failed(cls, why: str) -> Self:
        return cls(failure=why or "failed without a message")
