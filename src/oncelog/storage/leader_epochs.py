"""The `leader-epoch-checkpoint` of a log: from which offset on each leader epoch has written. See `checkpoint_lines`.

    0 0         epoch, start offset; both ascend
    3 1500

A follower asks a leader where an epoch ended to find out where their logs part. The file is replaced by renaming but
not fsynced at once: the flush that moves the recovery point fsyncs it first, and entries above the recovery point are
found again when the log is replayed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Final

from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.storage.atomic_file import read_file, replace_file
from oncelog.storage.checkpoint_lines import CorruptCheckpointError, decode_lines, encode_lines

FILE_NAME: Final = "leader-epoch-checkpoint"
NO_EPOCH: Final = -1
NO_EPOCH_OFFSET: Final = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Epoch and exclusive end; (-1, -1) when nothing can be said."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    def __init__(self, path: Path, entries: list[EpochStart] | None = None) -> None:
        self.path = path
        self.entries: list[EpochStart] = entries or []
        self.is_unsynced = False
        """Whether it was written since the last fsync. Cleared by the code that does the fsync."""

    @classmethod
    def load(cls, path: Path) -> LeaderEpochs:
        """FileNotFoundError or CorruptCheckpointError when it must be rebuilt.

        Kafka leaves an empty file in the folder of a partition that was never written to. In another it is a torn one.
        """
        try:
            return cls(path, decode_epochs(read_file(path)))
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{path}: {error}") from error

    @property
    def latest_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    @property
    def earliest(self) -> EpochStart | None:
        return self.entries[0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` writes from `start_offset` on. Entries that contradict it go; a repetition changes nothing."""
        invariant(epoch >= 0 and start_offset >= 0, "epoch %s cannot start at %s", epoch, start_offset)
        entries = self.entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return
        kept = [entry for entry in entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self.replace([*kept, EpochStart(epoch, start_offset)])

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else NO_EPOCH

    def start_offset_from(self, epoch: int, log_end_offset: int) -> int:
        """Where the batches of `epoch` and later ones start."""
        first = bisect_left(self.entries, epoch, key=lambda entry: entry.epoch)
        return self.entries[first].start_offset if first < len(self.entries) else log_end_offset

    def end_offset_for_epoch(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest known epoch that is not above `epoch`, and where the next one starts."""
        if epoch == NO_EPOCH or not self.entries or epoch > self.latest_epoch:
            return EpochEnd(NO_EPOCH, NO_EPOCH_OFFSET)
        if epoch == self.latest_epoch:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        end_offset = self.entries[higher].start_offset
        # Below all that is known the data is gone; the follower may go on from where the first known epoch starts.
        return EpochEnd(self.entries[higher - 1].epoch if higher else epoch, end_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at or after `end_offset`."""
        if self.entries and self.entries[-1].start_offset >= end_offset:
            self.replace([entry for entry in self.entries if entry.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended below `start_offset`; the one that covers it starts there now."""
        covering = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset) - 1
        if covering < 0 or (covering == 0 and self.entries[0].start_offset == start_offset):
            return
        first = EpochStart(self.entries[covering].epoch, start_offset)
        self.replace([first, *self.entries[covering + 1 :]])

    def clear(self) -> None:
        if self.entries:
            self.replace([])

    def replace(self, entries: list[EpochStart]) -> None:
        """On OSError nothing has changed."""
        replace_file(self.path, encode_epochs(entries), durable=False)
        self.entries = entries
        self.is_unsynced = True


def first_epoch_start(folder: Path) -> int:
    """The start offset of the first leader epoch in the folder of a log; 0 if there is none, or the file is damaged."""
    try:
        first = LeaderEpochs.load(folder / FILE_NAME).earliest
    except (FileNotFoundError, CorruptCheckpointError):
        return 0
    return first.start_offset if first is not None else 0


def encode_epochs(entries: list[EpochStart]) -> bytes:
    return encode_lines(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def decode_epochs(content: bytes) -> list[EpochStart]:
    entries = decode_lines(content, _parse_epoch)
    for before, after in pairwise(entries):
        if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
            raise CorruptCheckpointError(f"{after} does not follow {before}")
    return entries


def _parse_epoch(fields: list[str]) -> EpochStart:
    epoch, start_offset = fields
    return EpochStart(int(epoch), int(start_offset))
