"""The folder of a log, and what it shares with other logs: open files and the queue of deletions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from oncelog.core.dataclass import dataclass
from oncelog.core.ids import TopicPartition
from oncelog.storage.deletions import unlink_at_once
from oncelog.storage.file_cache import FileCache


@dataclass(frozen=True, slots=True)
class LogPlace:
    folder: Path
    partition: TopicPartition
    now_ms: int
    """When the log was opened or created."""
    files: FileCache = field(default_factory=FileCache)
    delete_later: Callable[[Sequence[Path], int], None] = unlink_at_once
    """Takes files to be unlinked, and after how many milliseconds."""
