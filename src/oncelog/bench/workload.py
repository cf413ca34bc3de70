"""What is measured, as data: a workload travels as JSON to the process that runs it, its result travels back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Workload:
    """One measurement. The same object is run on every cluster that is compared."""

    kind: str
    """produce, consume or transactions"""
    records: int
    size_bytes: int
    partitions: int = 1
    compression: str = "none"
    isolation: str = "read_committed"

    @property
    def name(self) -> str:
        if self.kind == "transactions":
            return f"transactions of one record, {self.size_bytes} B"
        return f"{self.kind} {self.size_bytes} B"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a driver saw. `problem` is set when something did not arrive: then there is no rate to speak of."""

    seconds: float = 0.0
    records: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    problem: str | None = None

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0
