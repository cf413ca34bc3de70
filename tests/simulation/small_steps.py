"""Work that is done in steps, made of as many as there can be, with others between them.

Time stands still while something is done here, and logs are small: whatever takes turns in a real broker would be done
at once. So each turn makes one step, and parts that are done without one are as small as they can be.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple


class Bound(NamedTuple):
    """A constant that says how much is done at once."""

    module: str
    name: str
    small: int

    def usual(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    def replace(self, before: int, after: int) -> None:
        """Everywhere: modules that are imported meanwhile take it from the others."""
        for name, module in list(sys.modules.items()):
            is_known = name == self.module or (name.startswith("oncelog.") and not self.name.startswith("_"))
            if is_known and getattr(module, self.name, None) == before:
                setattr(module, self.name, after)


_AT_ONCE: Final = (
    Bound("oncelog.server.turns", "_ITEMS_PER_STEP", 1),
    Bound("oncelog.server.cleaning", "_LOGS_PER_STEP", 1),
    Bound("oncelog.server.markers", "MARKERS_PER_STEP", 1),
    Bound("oncelog.server.offset_parts", "OFFSETS_PER_PART", 1),
    Bound("oncelog.server.controller_node", "SLICE_MS", 0),
    Bound("oncelog.server.shard_log", "LOAD_SLICE_RECORDS", 1),
    Bound("oncelog.server.aborted_transactions", "NAMED_MAX", 2),
    Bound("oncelog.server.handlers.h01_fetch", "_PARTITIONS_PER_STEP", 1),
    Bound("oncelog.server.own_controller", "LONG_LOG_BYTES", 300),
    Bound("oncelog.coordinator.group.machine", "OFFSETS_DELETED_AT_ONCE_MAX", 1),
    Bound("oncelog.storage.durability", "ROLLED_SEGMENTS_MAX", 2),
    Bound("oncelog.storage.log", "SEGMENTS_DELETED_AT_ONCE_MAX", 1),
    Bound("oncelog.storage.log", "SMALL_SEGMENTS_MAX", 4),
    Bound("oncelog.storage.log", "SMALL_SEGMENT_BYTES", 500),
    Bound("oncelog.storage.log_dir", "_LOGS_PER_STEP", 1),
    Bound("oncelog.storage.producer_replay", "BATCHES_PER_STEP", 1),
    Bound("oncelog.storage.recovery", "CHECKED_WHEN_OPENED_BYTES_MAX", 0),
    Bound("oncelog.storage.segment_batches", "_MARKERS_PER_STEP", 1),
    Bound("oncelog.storage.txn_index", "_READ_CHUNK_ENTRIES", 1),
    Bound("oncelog.storage.txn_index_keeper", "_SEGMENTS_PER_STEP", 1),
    Bound("oncelog.storage.txn_index_keeper", "_ENTRIES_PER_STEP", 1),
)


@contextmanager
def small_steps(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    turns = importlib.import_module("oncelog.server.turns")
    slice_ms, turns.SLICE_MS = turns.SLICE_MS, 0  # type: ignore[attr-defined]
    usual = [(bound, bound.usual()) for bound in _AT_ONCE]
    for bound, before in usual:
        bound.replace(before, bound.small)
    try:
        yield
    finally:
        turns.SLICE_MS = slice_ms  # type: ignore[attr-defined]
        for bound, before in usual:
            bound.replace(bound.small, before)
