"""All batches of a partition, segment after segment.

A broker that runs may remove a segment, or swap several for a cleaned one, between the listing of the folder and the
opening of the file. The folder is listed again then, and the walk goes on behind the last batch that was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from oncelog.inspection.batch_file import BatchFile, InspectedBatch
from oncelog.inspection.layout import Kind, PartitionFolder, StoredFile

LISTINGS_MAX: Final = 5
"""Attempts in a row that may find a listed file missing."""


class PlacedBatch(NamedTuple):
    file: StoredFile
    batch: InspectedBatch


def walk(folder: PartitionFolder, *, start_offset: int = 0) -> Iterator[PlacedBatch]:
    """Starts with the segment that can hold `start_offset`. Incomplete batches are skipped; `verify` reports them."""
    listings = 1
    while True:
        try:
            for placed in _walk_listed(folder, start_offset):
                yield placed
                start_offset = max(start_offset, placed.batch.header.next_offset)
                listings = 1
        except FileNotFoundError:
            if listings == LISTINGS_MAX:
                raise
            listings += 1
            folder = PartitionFolder(folder.path)
        else:
            return


def _walk_listed(folder: PartitionFolder, start_offset: int) -> Iterator[PlacedBatch]:
    logs = folder.of_kind(Kind.LOG)
    for number, file in enumerate(logs):
        if number + 1 < len(logs) and logs[number + 1].base_offset <= start_offset:
            continue
        for batch in BatchFile(file.path).batches():
            if batch.header.last_offset >= start_offset:
                yield PlacedBatch(file, batch)
