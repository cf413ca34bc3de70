"""One workload on one side: prepared once, measured in every round, cleaned up at the end."""

from __future__ import annotations

from typing import Final

from oncelog.bench.cells.cell import Bench, Cell
from oncelog.bench.cells.growth import AbortedGrowth, IdGrowth, PartitionGrowth
from oncelog.bench.cells.lifecycle import MemoryCell, RecoveryCell, StartCell
from oncelog.bench.cells.load import ConsumeCell, LoadCell

CELLS: Final[dict[str, type[Cell]]] = {
    "produce": LoadCell,
    "latency": LoadCell,
    "transactions": LoadCell,
    "groups": LoadCell,
    "commit-cost": LoadCell,
    "consume": ConsumeCell,
    "start": StartCell,
    "memory": MemoryCell,
    "recovery": RecoveryCell,
    "aborted-growth": AbortedGrowth,
    "partition-growth": PartitionGrowth,
    "id-growth": IdGrowth,
}

__all__ = ["CELLS", "Bench", "Cell"]
