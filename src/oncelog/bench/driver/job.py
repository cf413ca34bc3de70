"""One order to a driver process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from oncelog.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Job:
    action: str
    """What is to be done: one of the driver's actions, or `module:function` from elsewhere."""
    bootstrap_servers: str
    topic: str
    workload: Workload
    expected: int | None = None
    """Records that a reader must find; None is what the workload says."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        entries = json.loads(text)
        return cls(**{**entries, "workload": Workload.from_dict(entries["workload"])})
