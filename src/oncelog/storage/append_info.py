"""What an append has done."""

from __future__ import annotations

from dataclasses import field

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NO_TIMESTAMP
from oncelog.storage.producer_state import CompletedTxn, DuplicateBatch


@dataclass(slots=True)
class AppendInfo:
    first_offset: int
    last_offset: int
    log_append_time: int = NO_TIMESTAMP
    """-1 with CreateTime. A duplicate is answered with the timestamp it was written with."""
    max_timestamp: int = NO_TIMESTAMP
    log_start_offset: int = 0
    duplicate: bool = False
    completed: list[CompletedTxn] = field(default_factory=list)

    @classmethod
    def of_duplicate(cls, original: DuplicateBatch, log_start_offset: int) -> AppendInfo:
        return cls(
            first_offset=original.base_offset,
            last_offset=original.last_offset,
            log_append_time=original.timestamp,
            max_timestamp=original.timestamp,
            log_start_offset=log_start_offset,
            duplicate=True,
        )
