"""Which offset holds the newest record of each key: found out by the cleaner's first pass, asked by the second.

The memory is bounded by a number of entries. A key longer than a digest is represented by its digest, so that an entry
costs the same whatever the keys are; a shorter one stands for itself, which spares the hashing, and can never equal a
digest. Kafka keeps 24 bytes per key in one block of memory. A Python dictionary takes several times that, so fewer
keys fit the same `log.cleaner.dedupe.buffer.size` and a log may need more passes, each of which takes up where the
last one was full.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from oncelog.storage.record_slices import RecordSlice

DIGEST_BYTES: Final = 16
ENTRY_BYTES: Final = 192
"""A key of 16 bytes (49), an offset (32), and a slot of the table (36 to 72, and half as much again while it grows)."""

NO_OFFSET_SEEN: Final = -1


class OffsetMap:
    def __init__(self, memory_bytes: int) -> None:
        self.entries_max = max(1, memory_bytes // ENTRY_BYTES)
        self.latest_offset = NO_OFFSET_SEEN
        """All records up to here are in the map, except those of aborted transactions and those without a key."""
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, key: bytes) -> int:
        """The offset of the key's newest record in the map, or -1."""
        return self._offsets.get(key if len(key) < DIGEST_BYTES else _digest(key), NO_OFFSET_SEEN)

    def put(self, key: bytes, offset: int) -> bool:
        """Take over the only record of a batch. False if the map is full."""
        if len(self._offsets) >= self.entries_max:
            return False
        self._offsets[key if len(key) < DIGEST_BYTES else _digest(key)] = offset
        return True

    def add(self, base_offset: int, records: Sequence[RecordSlice], first_offset: int) -> bool:
        """Take over the records of a batch from `first_offset` on. False if the map was full before the last of them.

        Kafka stops at the first record that meets a full map, whether its key is new or not. So does this.
        """
        offsets, entries_max = self._offsets, self.entries_max
        for record in records:
            offset, key = base_offset + record.offset_delta, record.key
            if key is None or offset < first_offset:
                continue
            if len(offsets) >= entries_max:
                return False
            offsets[key if len(key) < DIGEST_BYTES else _digest(key)] = offset
            self.latest_offset = offset
        return True


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=DIGEST_BYTES).digest()
