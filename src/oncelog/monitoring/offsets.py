"""How far a partition goes, how far readers may read, and how far a reader is behind both.

    start                      last stable offset         end
      |---- committed or aborted ----|---- held back ----|

read_committed readers stop at the last stable offset. It is below the end only while a transaction is open, and then
everything behind it is held back, also what others have committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from oncelog.client.admin import Admin, OffsetSpec
from oncelog.client.visibility import IsolationLevel
from oncelog.core.ids import TopicPartition

EMPTY: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class PartitionOffsets(NamedTuple):
    start: int
    last_stable: int
    end: int
    """The high watermark."""

    @property
    def held_back(self) -> int:
        """Offsets that an open transaction keeps from read_committed readers."""
        return self.end - self.last_stable

    def nearest(self, offset: int) -> int:
        """The nearest offset that the log has."""
        return min(max(offset, self.start), self.end)

    def limit(self, isolation: IsolationLevel) -> int:
        """The offset at which readers stop."""
        return self.last_stable if isolation is IsolationLevel.READ_COMMITTED else self.end


class Lag(NamedTuple):
    """How far a reader at an offset is behind the end. Negative if the log ends before that offset."""

    total: int
    held_back: int
    """The part of it that read_committed readers cannot get now."""

    @property
    def visible(self) -> int:
        """What a read_committed reader could get now."""
        return self.total - self.held_back


def lag_of(position: int, offsets: PartitionOffsets) -> Lag:
    total = offsets.end - position
    return Lag(total, min(max(total, 0), offsets.held_back))


def partition_offsets(
    admin: Admin, partitions: Collection[TopicPartition], known_starts: Mapping[TopicPartition, int] = EMPTY
) -> dict[TopicPartition, PartitionOffsets]:
    """The offsets of partitions that exist. Nobody is asked for starts that are known already."""
    if not partitions:
        return {}
    latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
    unknown = dict.fromkeys((p for p in partitions if p not in known_starts), OffsetSpec.EARLIEST)
    asked = {p: found.offset for p, found in admin.list_offsets(unknown).items()} if unknown else {}
    # The ends are asked for first. A last stable offset that is found below them afterwards is held back; the other way
    # round, records written between the two questions would look like an open transaction.
    ends = admin.list_offsets(latest)
    stable = admin.list_offsets(latest, isolation=IsolationLevel.READ_COMMITTED)
    return {
        partition: PartitionOffsets(
            asked[partition] if partition in asked else min(known_starts[partition], stable[partition].offset),
            stable[partition].offset,
            max(ends[partition].offset, stable[partition].offset),
        )
        for partition in partitions
    }
