"""Which file of a data folder is what: kinds by name, folders of partitions, and what a path on a command line means.

    <data folder>/            meta.properties, *-checkpoint, .kafka_cleanshutdown, .lock, oncelog-metadata.journal
      <topic>-<partition>/    *.log, *.index, *.timeindex, *.txnindex, *.snapshot, leader-epoch-checkpoint, ...

A segment file may carry a second suffix: `.deleted` (to be removed), `.cleaned` and `.swap` (written by the cleaner).
While there is a `.swap` file, a broker that runs is putting it in the place of others, one file after the other. So a
folder is listed again then, but not for ever: a crash may have left the file behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from oncelog.cluster.kraft_metadata import parse_snapshot_name
from oncelog.cluster.node_facts import JOURNAL_FILE
from oncelog.core.ids import TopicPartition
from oncelog.storage import (
    checkpoints,
    clean_shutdown,
    leader_epochs,
    meta_properties,
    partition_metadata,
    segment_notes,
)
from oncelog.storage.folder_lock import LOCK_FILE
from oncelog.storage.folder_names import parse_folder_name
from oncelog.storage.interrupted_files import CLEANED_SUFFIX, SWAP_SUFFIX
from oncelog.storage.segment_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    offset_of,
)
from oncelog.storage.snapshot_files import SNAPSHOT_SUFFIX

QUORUM_STATE_FILE: Final = "quorum-state"
BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"

_SECOND_SUFFIXES: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
_SWAP_LOOKS_MAX: Final = 20
_SWAP_WAIT_S: Final = 0.01
"""A swap takes a millisecond, on a busy machine some more."""


class NotInspectable(Exception):
    """The path is no file or folder of a broker. The text says what was expected."""


class Kind(Enum):
    LOG = "log"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TXN_INDEX = "transaction index"
    SNAPSHOT = "producer snapshot"
    LEADER_EPOCHS = "leader epochs"
    PARTITION_METADATA = "partition metadata"
    METADATA_SNAPSHOT = "metadata snapshot"
    QUORUM_STATE = "quorum state"
    META_PROPERTIES = "meta properties"
    OFFSETS = "offset checkpoint"
    CLEAN_SHUTDOWN = "clean shutdown"
    JOURNAL = "metadata journal"
    LOCK = "lock"


SEGMENT_KINDS: Final = {
    LOG_SUFFIX: Kind.LOG,
    INDEX_SUFFIX: Kind.OFFSET_INDEX,
    TIME_INDEX_SUFFIX: Kind.TIME_INDEX,
    TXN_INDEX_SUFFIX: Kind.TXN_INDEX,
    SNAPSHOT_SUFFIX: Kind.SNAPSHOT,
}
_NAMES: Final = {
    leader_epochs.FILE_NAME: Kind.LEADER_EPOCHS,
    partition_metadata.FILE_NAME: Kind.PARTITION_METADATA,
    meta_properties.FILE_NAME: Kind.META_PROPERTIES,
    clean_shutdown.FILE_NAME: Kind.CLEAN_SHUTDOWN,
    checkpoints.RECOVERY_POINTS: Kind.OFFSETS,
    checkpoints.HIGH_WATERMARKS: Kind.OFFSETS,
    checkpoints.LOG_START_OFFSETS: Kind.OFFSETS,
    checkpoints.CLEANER_OFFSETS: Kind.OFFSETS,
    QUORUM_STATE_FILE: Kind.QUORUM_STATE,
    BOOTSTRAP_FILE: Kind.METADATA_SNAPSHOT,
    JOURNAL_FILE: Kind.JOURNAL,
    LOCK_FILE: Kind.LOCK,
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a known kind. `second_suffix` is not empty for one that a broker is about to remove or to swap in."""

    path: Path
    kind: Kind
    base_offset: int = -1
    second_suffix: str = ""

    @property
    def partition(self) -> TopicPartition | None:
        return partition_of(self.path.parent)

    @property
    def topic(self) -> str:
        partition = self.partition
        return partition.topic if partition is not None else ""

    def sibling(self, suffix: str) -> Path:
        """The file of the same segment with another suffix, deleted or swapped in alike."""
        return self.path.with_name(file_name(self.base_offset, suffix) + self.second_suffix)


def identify(path: Path) -> StoredFile | None:
    """What the file is by its name, or None."""
    name, second_suffix = path.name, ""
    if name in _NAMES:
        return StoredFile(path, _NAMES[name])
    if (snapshot := parse_snapshot_name(name)) is not None:
        return StoredFile(path, Kind.METADATA_SNAPSHOT, snapshot.end_offset)
    for candidate in _SECOND_SUFFIXES:
        if name.endswith(candidate):
            name, second_suffix = name.removesuffix(candidate), candidate
    base_offset = offset_of(name)
    kind = SEGMENT_KINDS.get(Path(name).suffix)
    if base_offset is None or kind is None:
        return None
    return StoredFile(path, kind, base_offset, second_suffix)


def partition_of(folder: Path) -> TopicPartition | None:
    """The partition that a folder is named after, also when it is marked to be deleted."""
    found = parse_folder_name(folder.resolve().name)
    return None if found is None else found.partition


class PartitionFolder:
    """The files of one partition."""

    def __init__(self, path: Path) -> None:
        partition = partition_of(path)
        if partition is None:
            raise NotInspectable(f"{path} is not named like the folder of a partition: <topic>-<number>")
        self.path = path
        self.partition: TopicPartition = partition
        self.files = _settled_files(path)

    @property
    def parent(self) -> Path:
        """The data folder, where the checkpoints are."""
        return self.path.resolve().parent

    def of_kind(self, kind: Kind) -> list[StoredFile]:
        """Files in use, by offset."""
        found = [file for file in self.files if file.kind is kind and not file.second_suffix]
        return sorted(found, key=lambda file: file.base_offset)


def _settled_files(folder: Path) -> list[StoredFile]:
    for _ in range(_SWAP_LOOKS_MAX):
        files = list(_known_files(folder))
        if all(file.second_suffix != SWAP_SUFFIX for file in files):
            break
        time.sleep(_SWAP_WAIT_S)
    return files


def _known_files(folder: Path) -> Iterator[StoredFile]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and (file := identify(path)) is not None:
            yield file


def partition_folders(data_folder: Path) -> list[PartitionFolder]:
    """The folders of partitions that are in use, by topic and number."""
    found = [
        PartitionFolder(path)
        for path in data_folder.iterdir()
        if path.is_dir() and (name := parse_folder_name(path.resolve().name)) is not None and name.mark is None
    ]
    return sorted(found, key=lambda folder: folder.partition)


def is_data_folder(path: Path) -> bool:
    return path.is_dir() and (
        any((path / name).exists() for name in (meta_properties.FILE_NAME, checkpoints.RECOVERY_POINTS, JOURNAL_FILE))
        or any(child.is_dir() and partition_of(child) is not None for child in path.iterdir())
    )


def files_of(path: Path) -> list[StoredFile]:
    """The file itself, or all known files in the folder of a partition, or all in a data folder, in a fixed order."""
    if not path.exists():
        raise NotInspectable(f"{path} does not exist")
    if path.is_file():
        file = identify(path)
        if path.name in (segment_notes.FILE_NAME, checkpoints.SUMS):
            raise NotInspectable(
                f"{path.name} has counts and checksums of the files beside it, and nothing else to show"
            )
        if file is None:
            raise NotInspectable(
                f"{path.name} is not a file of a broker: expected <20 digits>.log, .index, .timeindex, .txnindex or "
                f".snapshot, or one of {', '.join(sorted(_NAMES))}"
            )
        return [file]
    if is_data_folder(path):
        own = list(_known_files(path))
        return own + [file for folder in partition_folders(path) for file in folder.files]
    if partition_of(path) is not None:
        return PartitionFolder(path).files
    raise NotInspectable(f"{path} is neither a data folder (log.dirs) nor the folder of a partition in one")


def folders_of(path: Path) -> list[PartitionFolder]:
    """The partitions that a path stands for: those of a data folder, or the one, also by one of its files."""
    if not path.exists():
        raise NotInspectable(f"{path} does not exist")
    if path.is_dir() and is_data_folder(path):
        return partition_folders(path)
    folder = path if path.is_dir() else path.resolve().parent
    if partition_of(folder) is None:
        raise NotInspectable(f"{path} is neither a data folder (log.dirs) nor in the folder of a partition")
    return [PartitionFolder(folder)]
