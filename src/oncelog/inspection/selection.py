"""Which batches and records somebody wants to see: by producer, offset, time and key."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.inspection.batch_file import DecodedRecord
from oncelog.protocol.batch import BatchHeader

Range = tuple[int | None, int | None]
"""First and last, both included; None leaves an end open."""
EVERYTHING: Range = (None, None)


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that is set must hold."""

    producer_ids: frozenset[int] | None = None
    transactional_id: str | None = None
    """For `__transaction_state`, whose records name the id itself."""
    offsets: Range = EVERYTHING
    times: Range = EVERYTHING
    key: bytes | None = None
    text: bytes | None = None
    """Occurs in the value."""

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    @property
    def needs_records(self) -> bool:
        return self.key is not None or self.text is not None

    def takes_batch(self, header: BatchHeader) -> bool:
        return (
            (self.producer_ids is None or header.producer_id in self.producer_ids)
            and _overlaps(self.offsets, header.base_offset, header.last_offset)
            and (self.times[0] is None or header.max_timestamp >= self.times[0])
        )

    def takes_record(self, record: DecodedRecord) -> bool:
        return (
            _overlaps(self.offsets, record.offset, record.offset)
            and _overlaps(self.times, record.timestamp, record.timestamp)
            and (self.key is None or record.key == self.key)
            and (self.text is None or (record.value is not None and self.text in record.value))
        )


def _overlaps(wanted: Range, first: int, last: int) -> bool:
    low, high = wanted
    return (low is None or last >= low) and (high is None or first <= high)
