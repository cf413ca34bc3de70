"""A log's folder, opened: what is known of it, and what becomes of it after an error.

After a clean stop the start and the end of a log are known from checkpoints. Its folder is not even listed until
something else is asked of it: `_loaded` is made at first use.

An error before or during a write leaves the log as it was. One after it means that the batches are on disk and what
follows from them is not: such a log refuses to go on until it is opened again, which brings both together. The next
append tries that if the disk was full or no descriptor was left. After any other error only the operator can know what
the disk is worth.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.storage import partition_metadata
from oncelog.storage.atomic_file import replace_file
from oncelog.storage.file_cache import OUT_OF_DESCRIPTORS
from oncelog.storage.leader_epochs import LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_reader import LogReader
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.recovery import LoadedLog, LogPlace, load_log
from oncelog.storage.segment import Segment

_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, *OUT_OF_DESCRIPTORS)
"""What says nothing about the disk, or only that it is full."""

REPAIR_SPACE_BYTES: Final = 64 * 1024
"""Must be free on the disk before a log is repaired."""

logger = logging.getLogger("oncelog.storage")


def _nothing() -> None:
    return None


class OpenLog:
    topic_partition: TopicPartition
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    """Below it, batches and all that follows from them are on disk: recovery starts here."""
    durable_offset: int
    """Below it, batches are on disk. Never less than the recovery point."""

    def __init__(
        self,
        place: LogPlace,
        config: LogConfig,
        *,
        clean: bool,
        log_start_offset: int | None = None,
        recovery_point: int | None = None,
        is_start_certain: bool = True,
        on_truncated: Callable[[], None] = _nothing,
    ) -> None:
        """Open a folder. None for an offset means that no checkpoint has it.

        `is_start_certain` says that a checksum vouches for the log start.

        `on_truncated` is called before anything is appended to a log that was cut below its recovery point. It must
        write the recovery points down: the old one would vouch for batches that are not on disk.
        """
        self._place = place
        self.topic_partition = place.partition
        self.config = config
        self._clean = clean
        self._on_truncated = on_truncated
        self._given_recovery_point = recovery_point
        self._is_start_certain = is_start_certain
        self._failure = ""
        self._can_be_repaired = False
        self._is_closing = False
        self._generation = 0
        self._folder_changes = self._folder_changes_synced = 0
        self._rolled: dict[int, int] = {}
        """Base offsets of segments whose time index has got its last entry, and perhaps no fsync since; and how many
        changes the folder had had after that."""
        self._first_unflushed_ms: int | None = None
        self._latest_ms = place.now_ms
        """The clock at the last append, or when the log was opened."""
        self.log_start_offset = log_start_offset or 0
        self.log_end_offset = self.recovery_point = self.durable_offset = recovery_point or 0
        are_known = log_start_offset is not None and recovery_point is not None
        is_start_doubtful = self.log_start_offset > (self.recovery_point if is_start_certain else 0)
        if not clean or not are_known or is_start_doubtful:
            self.load()

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    @cached_property
    def topic_id(self) -> uuid.UUID | None:
        return partition_metadata.read_topic_id(self._place.folder)

    @cached_property
    def _loaded(self) -> LoadedLog:
        loaded = self._load(clean=self._clean, recovery_point=self._given_recovery_point)
        is_as_it_was_left = self._clean and loaded.recovery_point == self._given_recovery_point
        self._folder_changes += not is_as_it_was_left
        return loaded

    def _load(self, *, clean: bool, recovery_point: int | None) -> LoadedLog:
        loaded = load_log(
            replace(self._place, now_ms=self._latest_ms),
            self.config,
            clean=clean,
            log_start_offset=self.log_start_offset,
            recovery_point=recovery_point,
            is_start_certain=self._is_start_certain,
        )
        self._is_start_certain = True
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = self.durable_offset = loaded.recovery_point
        return loaded

    @cached_property
    def _reader(self) -> LogReader:
        return LogReader(self._loaded.segments)

    def load(self) -> None:
        """Read what is on disk now rather than at first use."""
        _ = self._loaded

    def _ready(self) -> LoadedLog:
        try:
            return self._loaded
        except OSError as error:
            raise self._storage_error(f"could not be opened: {error}") from error

    def reconfigure(self, config: LogConfig) -> None:
        """From the next append on; index settings with the next segment."""
        self.config = config
        if self.is_loaded:
            self.producer_state.producer_expiration_ms = config.producer_id_expiration_ms

    @property
    def is_loaded(self) -> bool:
        return "_loaded" in self.__dict__

    @property
    def producer_state(self) -> ProducerStateManager:
        return self._loaded.producer_state

    @property
    def leader_epochs(self) -> LeaderEpochs:
        return self._loaded.leader_epochs

    @property
    def segments(self) -> Sequence[Segment]:
        return self._loaded.segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._loaded.segments)

    @property
    def folder(self) -> Path:
        return self._place.folder

    @property
    def generation(self) -> int:
        """Changes whenever the log is cut or opened again, so that what was made from its files before is worthless."""
        return self._generation

    # After an error

    @property
    def has_failed(self) -> bool:
        return bool(self._failure)

    def _fail(self, what: str, error: Exception) -> None:
        is_passing = isinstance(error, OSError) and error.errno in _PASSING
        self._can_be_repaired = is_passing
        self._failure = f"{what} and the log must be recovered{'' if is_passing else '; restart the broker'}: {error}"

    def _repair(self) -> None:
        """Open the log again after an append that failed half way. Until that succeeds it can be read as it was."""
        if not self._can_be_repaired:
            raise self._storage_error(self._failure)
        before = self._loaded
        try:
            # Nothing may be touched on a disk that is still full.
            replace_file(self._place.folder / "space", bytes(REPAIR_SPACE_BYTES), durable=False)
            (self._place.folder / "space").unlink()
            loaded = self._load(clean=False, recovery_point=self.recovery_point)
        except OSError as error:
            raise self._storage_error(f"{self._failure}. It could not be recovered yet: {error}") from error
        for segment in before.segments:
            segment.close()
        loaded.producer_state.on_high_watermark(before.producer_state.high_watermark)
        self.__dict__.pop("_reader", None)
        self.__dict__["_loaded"] = loaded
        self._failure, self._can_be_repaired = "", False
        self._generation += 1
        self._folder_changes += 1
        logger.warning("%s: recovered, and goes on at offset %d", self.topic_partition, self.log_end_offset)

    def _storage_error(self, message: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} in {self._place.folder}: {message}")
