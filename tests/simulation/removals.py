"""What the broker may have removed, and why: DeleteRecords, age, or a newer record of the same key.

A record that is missing for another reason is lost. Ages are compared with the highest time that the broker's clock
has ever shown, because a clock that jumps forward makes records old.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.wire import Place, is_tombstone

if TYPE_CHECKING:
    from tests.simulation.model import SentRecord

TOMBSTONES_STAY_MS: Final = 10**9
"""A `delete.retention.ms` beyond the end of every history."""


class Removals:
    def __init__(self) -> None:
        self.retention_ms: dict[Place, int] = {}
        """Of partitions that have one."""
        self.tables: dict[Place, int] = {}
        """Compacted partitions, and how long their tombstones stay after they were cleaned."""
        self.latest_wall_ms = 0
        self.asked: dict[Place, int] = {}
        """The highest offset that a DeleteRecords which reached the broker has named."""
        self.deleted: dict[Place, int] = {}
        """Up to where the broker has said that records are deleted."""

    def affects(self, place: Place) -> bool:
        return place in self.retention_ms or place in self.tables or place in self.asked

    def deleting(self, place: Place, offset: int) -> tuple[Callable[[], None], Callable[[Any], None]]:
        """Witnesses of one DeleteRecords: its arrival and its answer."""

        def arrived() -> None:
            self.asked[place] = max(self.asked.get(place, 0), offset)

        def answered(response: Any) -> None:
            part = response.topics[0].partitions[0]
            if part.error_code == 0:
                self.deleted[place] = max(self.deleted.get(place, 0), part.low_watermark)

        return arrived, answered

    def may_be_missing(self, record: SentRecord, newest_shown: int, rivals: Collection[SentRecord]) -> bool:
        """`newest_shown`: of the record's key, -1 if none is. `rivals`: records of that key that are not aborted."""
        place, offset = record.place, record.acknowledged_at
        if not self.affects(place):
            return False
        if offset is None or offset < self.asked.get(place, 0) or self.is_old(record):
            return True
        if place not in self.tables or newest_shown > offset:
            return place in self.tables
        newer = [rival for rival in rivals if rival.acknowledged_at is None or rival.acknowledged_at >= offset]
        return self.tables[place] < TOMBSTONES_STAY_MS and any(is_tombstone(rival.value) for rival in newer)

    def is_old(self, record: SentRecord) -> bool:
        retention_ms = self.retention_ms.get(record.place)
        return retention_ms is not None and record.sent_ms + retention_ms < self.latest_wall_ms
