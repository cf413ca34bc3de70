"""A side of a comparison: a cluster that runs somewhere, or brokers that can be started here.

Starting, memory and recovery are measured only on brokers that were started here: they belong to nobody else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol


class Broker(Protocol):
    """A broker process on a folder. After `stop` or `kill` it starts again on the same folder and the same port."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None:
        """kill -9."""
        ...


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    launch: Callable[[Path], Broker] | None = None
    """A broker on a new folder, not started yet."""
    bootstrap_servers: str = ""
    """Where it runs already, if it is not ours to start."""
    description: str = ""
    variants: Mapping[str, Callable[[Path], Broker]] = field(default_factory=dict)
    """Brokers with other settings, for groups that ask for one by name."""

    def variant(self, name: str) -> Side:
        """Without brokers if it has none of the name."""
        return self if not name else replace(self, launch=self.variants.get(name))

    @property
    def is_ours(self) -> bool:
        return self.launch is not None


def resident_mb(pid: int) -> float:
    """Memory of the process that is in RAM, as the system counts it. Raises RuntimeError if it has ended."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    else:
        lines = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True).stdout.split()
    if not lines:
        raise RuntimeError(f"the process {pid} has ended")
    return int(lines[0]) / 1024
