"""All batches of a partition, segment after segment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oncelog.inspection.batch_file import BatchFile, StoredBatch
from oncelog.inspection.layout import Kind, PartitionFolder, StoredFile


class PlacedBatch(NamedTuple):
    file: StoredFile
    batch: StoredBatch


def walk(folder: PartitionFolder, *, start_offset: int = 0, whole: bool = True) -> Iterator[PlacedBatch]:
    """From the segment that can hold `start_offset` on. What is torn is passed over: `verify` tells of it."""
    logs = folder.of_kind(Kind.LOG)
    for number, file in enumerate(logs):
        if number + 1 < len(logs) and logs[number + 1].base_offset <= start_offset:
            continue
        for batch in BatchFile(file.path).batches(whole=whole):
            if batch.header.last_offset >= start_offset:
                yield PlacedBatch(file, batch)
