"""The leader epochs in the batches against `leader-epoch-checkpoint`."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from oncelog.inspection import entries
from oncelog.inspection.batch_file import InspectedBatch
from oncelog.inspection.layout import PartitionFolder
from oncelog.inspection.verification.finding import Report
from oncelog.storage import leader_epochs
from oncelog.storage.leader_epochs import EpochStart

_REBUILT = "rebuilds it from the batches"


class EpochChecks:
    def __init__(self, folder: PartitionFolder, report: Report) -> None:
        self._report = report
        self.path: Path = folder.path / leader_epochs.FILE_NAME
        self._problem = ""
        self._stored: list[EpochStart] = []
        self._latest = -1
        if not self.path.exists():
            self._problem = "the file is missing"
            return
        report.files += 1
        try:
            self._stored = entries.read_epochs(self.path)
            self._problem = "" if self._stored else "the file is empty"
        except entries.Unreadable as error:
            self._problem = f"the file cannot be read: {error}"

    def feed(self, path: Path, batch: InspectedBatch) -> None:
        epoch, offset = batch.header.leader_epoch, batch.header.base_offset
        if self._problem or epoch < 0:
            return
        if epoch < self._latest:
            self._report.error(
                "epochs.order",
                path,
                f"leader epoch {epoch} follows {self._latest}",
                "takes it as it is; a follower may cut its log in the wrong place",
                offset=offset,
                position=batch.position,
            )
        self._latest = max(self._latest, epoch)
        index = bisect_right(self._stored, offset, key=lambda entry: entry.start_offset) - 1
        if index < 0 and epoch <= self._stored[0].epoch:
            # Below the log start offset: the entries of what was deleted are gone, its batches not yet.
            return
        stored = self._stored[index].epoch if index >= 0 else leader_epochs.NO_EPOCH
        if stored != epoch:
            self._report.error(
                "epochs.differ",
                self.path,
                f"offset {offset} was written in leader epoch {epoch}, the file says {stored}",
                "believes the file; a follower may cut its log in the wrong place",
                offset=offset,
            )

    def finish(self, end_offset: int, *, has_batches: bool) -> None:
        if self._problem and has_batches:
            self._report.error("epochs.unreadable", self.path, self._problem, _REBUILT)
        for entry in self._stored:
            if entry.start_offset > end_offset:
                self._report.error(
                    "epochs.beyond",
                    self.path,
                    f"epoch {entry.epoch} starts at offset {entry.start_offset}, but the log ends at {end_offset}",
                    "forgets the entry",
                    offset=entry.start_offset,
                )
