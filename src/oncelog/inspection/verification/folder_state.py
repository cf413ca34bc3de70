"""What a data folder says about all its partitions: how it was left, and the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition
from oncelog.inspection import entries
from oncelog.inspection.topic_settings import compacted_topics
from oncelog.inspection.verification.finding import Report
from oncelog.storage import checkpoints, clean_shutdown
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.checkpoints import CheckpointFiles

Offsets = dict[TopicPartition, int]


@dataclass(slots=True)
class FolderState:
    path: Path
    is_clean: bool = False
    """Left by a broker that stopped in order."""
    recovery_points: Offsets = field(default_factory=dict)
    high_watermarks: Offsets = field(default_factory=dict)
    log_starts: Offsets = field(default_factory=dict)
    cleaner_offsets: Offsets = field(default_factory=dict)
    compacted_topics: set[str] = field(default_factory=set)

    def is_compacted(self, partition: TopicPartition) -> bool:
        """Whether compaction may have taken records out. The cleaner's checkpoint lists what it has worked on."""
        return (
            partition.topic in INTERNAL_TOPICS
            or partition.topic in self.compacted_topics
            or partition in self.cleaner_offsets
        )


def read_folder_state(data_folder: Path, report: Report) -> FolderState:
    state = FolderState(data_folder, (data_folder / clean_shutdown.FILE_NAME).exists())
    state.compacted_topics = compacted_topics(data_folder)
    for name, offsets in (
        (checkpoints.RECOVERY_POINTS, state.recovery_points),
        (checkpoints.HIGH_WATERMARKS, state.high_watermarks),
        (checkpoints.LOG_START_OFFSETS, state.log_starts),
        (checkpoints.CLEANER_OFFSETS, state.cleaner_offsets),
    ):
        path = data_folder / name
        if not path.exists():
            continue
        report.files += 1
        try:
            offsets.update(entries.read_checkpoint(path))
            _check_sum(data_folder, name)
        except (entries.Unreadable, CorruptCheckpointError) as error:
            offsets.clear()
            report.error(
                "checkpoint.unreadable",
                path,
                f"the file cannot be read: {error}",
                "goes without it and reads every log to find the offsets out",
            )
    return state


def _check_sum(data_folder: Path, name: str) -> None:
    """Raises CorruptCheckpointError if the file is not what Oncelog wrote.

    Once more if it was replaced between a look at the sums and one at the file.
    """
    try:
        CheckpointFiles(data_folder).read(name)
    except CorruptCheckpointError:
        CheckpointFiles(data_folder).read(name)
