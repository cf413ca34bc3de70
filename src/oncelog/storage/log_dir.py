"""A data folder: its lock, its identity, its checkpoints and the logs in it.

    .lock                               held while a broker uses the folder
    meta.properties                     whose folder it is
    .kafka_cleanshutdown                only while no broker uses it, after a clean stop
    *-checkpoint                        offsets of all logs
    oncelog-checkpoint-sums             checksums of these
    <topic>-<partition>/                one folder per log
    <topic>-<partition>.<id>-delete/    a deleted log, to be removed

After a clean stop with both checkpoints at hand nothing is read but these files and the names of the folders, so that
a start takes the same time whatever the logs hold. `__cluster_metadata` is the log of Kafka's own controllers: it has
no meaning here and is left alone.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Final

from oncelog.core import failpoints
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.steps import at_once
from oncelog.protocol.batch import CorruptBatchError
from oncelog.storage import checkpoints, clean_shutdown
from oncelog.storage.atomic_file import TEMPORARY_SUFFIX, sync_path
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.checkpoints import CheckpointFiles
from oncelog.storage.deletions import DeletionQueue, FolderRenames, unlink_all
from oncelog.storage.file_cache import OPEN_FILES_MAX, FileCache
from oncelog.storage.flush_work import FlushWork
from oncelog.storage.folder_lock import FolderInUseError, FolderLock
from oncelog.storage.folder_names import DELETE_MARK, STRAY_MARK, marked_name, parse_folder_name
from oncelog.storage.leader_epochs import first_epoch_start
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from oncelog.storage.meta_properties import MetaProperties, MetaPropertiesError, ensure_meta_properties
from oncelog.storage.progress_log import ProgressLog

logger = logging.getLogger("oncelog.storage")

_LOGS_PER_STEP: Final = 100
_OF_ALL_LOGS: Final = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS)
"""In the order in which they are written."""


class LogDirError(Exception):
    """The folder cannot be used. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    failed: Mapping[TopicPartition, OSError]
    """Logs that are not on disk. Their recovery points have stayed."""
    not_written: OSError | None
    """Why the files could not be replaced, if so; the old checkpoints are as good then."""


@dataclass(frozen=True, slots=True)
class CheckpointWork:
    """fsyncs, and the files that may be written when they are done. May run on a worker thread."""

    files: CheckpointFiles
    number: int
    flushes: tuple[tuple[Log, FlushWork], ...]
    """The logs are for the owner of the broker's state."""
    offsets: Mapping[str, Mapping[TopicPartition, int]]
    """The offsets as they are without the fsyncs."""

    def run(self) -> CheckpointResult:
        failed: dict[TopicPartition, OSError] = {}
        recovery_points = dict(self.offsets[checkpoints.RECOVERY_POINTS])
        for _, flush in self.flushes:
            try:
                flush.run()
            except OSError as error:
                failed[flush.partition] = error
            else:
                if flush.is_complete and flush.partition in recovery_points:
                    recovery_points[flush.partition] = flush.end_offset
        try:
            self.files.write({**self.offsets, checkpoints.RECOVERY_POINTS: recovery_points}, self.number)
        except OSError as error:
            return CheckpointResult(failed, error)
        return CheckpointResult(failed, None)


class OwnFolder(NamedTuple):
    lock: FolderLock
    meta: MetaProperties


def take_folder(path: Path, *, cluster_id: str | None, node_id: int) -> OwnFolder:
    """Lock a data folder and read or write whose it is. Raises LogDirError when it is not ours to use."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
    except FolderInUseError as error:
        raise LogDirError(str(error)) from error
    except PermissionError as error:
        raise LogDirError(
            f"{path} cannot be used as a data folder: this user may not write there; allow it, or set another log.dirs"
        ) from error
    except OSError as error:
        raise LogDirError(f"{path} cannot be used as a data folder: {error.strerror or error}") from error
    try:
        return OwnFolder(lock, ensure_meta_properties(path, cluster_id=cluster_id, node_id=node_id))
    except MetaPropertiesError as error:
        lock.release()
        raise LogDirError(str(error)) from error
    except BaseException:
        lock.release()
        raise


class LogDir:
    """Made by `LogDir.open`. Belongs to the thread that owns the broker's state."""

    def __init__(
        self, path: Path, lock: FolderLock, meta: MetaProperties, *, was_clean: bool, now_ms: int, open_files_max: int
    ) -> None:
        self.path = path
        self.meta = meta
        self.was_clean = was_clean
        """Whether the last stop was clean: otherwise every log was recovered."""
        self.logs: dict[TopicPartition, Log] = {}
        self.deletions = DeletionQueue()
        self.checkpoint_files = CheckpointFiles(path)
        self.high_watermarks: dict[TopicPartition, int] = {}
        """The high watermarks of the last checkpoint."""
        self._gone: set[TopicPartition] = set()
        """Partitions that are not here, but in the checkpoints on disk. A new log must not inherit their offsets."""
        self._lock = lock
        self._now_ms = now_ms
        self._files = FileCache(open_files_max)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        node_id: int,
        config_for: Callable[[str], LogConfig],
        now_ms: int,
        cluster_id: str | None = None,
        open_files_max: int = OPEN_FILES_MAX,
        on_locked: Callable[[], None] = lambda: None,
    ) -> LogDir:
        """Take possession of a folder and open all logs in it. Without `cluster_id` the folder's is taken.

        `on_locked` is called once the folder is ours, before any log is opened or its configuration asked for.

        Raises LogDirError when the folder is not ours to use.
        """
        lock, meta = take_folder(path, cluster_id=cluster_id, node_id=node_id)
        try:
            unlink_all(list(path.glob(f"*{TEMPORARY_SUFFIX}")))
            on_locked()
            was_clean = clean_shutdown.take_clean_stop(path)
            log_dir = cls(path, lock, meta, was_clean=was_clean, now_ms=now_ms, open_files_max=open_files_max)
        except BaseException:
            lock.release()
            raise
        try:
            log_dir._open_logs(config_for)
        except BaseException:
            log_dir.abandon()
            raise
        return log_dir

    def _open_logs(self, config_for: Callable[[str], LogConfig]) -> None:
        recovery_points = self._read_checkpoint(checkpoints.RECOVERY_POINTS)
        log_starts = self._read_log_starts()
        self.high_watermarks = self._read_checkpoint(checkpoints.HIGH_WATERMARKS)
        configs: dict[str, LogConfig] = {}
        found = list(self._find_logs())
        progress = ProgressLog(f"opening the logs of {self.path}", len(found), "logs")
        for partition in found:
            if partition.topic not in configs:
                configs[partition.topic] = config_for(partition.topic)
            try:
                self.logs[partition] = Log(
                    self._place(partition, self._now_ms),
                    configs[partition.topic],
                    clean=self.was_clean,
                    log_start_offset=log_starts.get(partition),
                    recovery_point=recovery_points.get(partition),
                    on_truncated=self._write_recovery_points,
                )
            except CorruptBatchError as error:
                raise LogDirError(
                    f"{partition} cannot be opened: {error.message}. That is below the recovery point, so the log is "
                    f"not cut there. `oncelog log verify {self.path}` shows what is damaged. Restore the folder of the "
                    f"partition from a copy, or move it away. Or remove {self.path / checkpoints.RECOVERY_POINTS}: the "
                    "next start reads all logs and cuts this one there, and the records from there on are lost"
                ) from error
            progress.add(1)
        self._gone = (recovery_points.keys() | log_starts.keys() | self.high_watermarks.keys()) - self.logs.keys()

    def _read_checkpoint(self, name: str, *, needs_sum: bool = True) -> dict[TopicPartition, int]:
        """A damaged checkpoint costs time, not data: offsets are found out from the logs, all of which are read."""
        try:
            return self.checkpoint_files.read(name, needs_sum=needs_sum)
        except CorruptCheckpointError as error:
            logger.warning("ignoring a checkpoint: %s", error)
            return {}

    def _read_log_starts(self) -> dict[TopicPartition, int]:
        """Without a checksum a log start is believed if the leader epochs, which move along, begin no earlier.

        What is below it is deleted sooner or later. Otherwise deleted records may be back, and no other is lost.
        """
        starts = self._read_checkpoint(checkpoints.LOG_START_OFFSETS, needs_sum=False)
        if self.checkpoint_files.has_sum(checkpoints.LOG_START_OFFSETS):
            return starts
        for partition, start in list(starts.items()):
            first = first_epoch_start(self.path / str(partition)) if start else 0
            if first < start:
                logger.warning(
                    "%s: its log start offset %d is not used, because by its leader epochs the log starts at %d",
                    partition,
                    start,
                    first,
                )
                # A log whose start is not known is opened at once, and starts with its first segment.
                del starts[partition]
                starts |= {partition: first} if first else {}
        return starts

    def read_cleaner_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each log is compacted. What is not known, or of a log that is gone, is cleaned from its start.

        So is all of a folder without checksums: an offset that is too high would let tombstones go before the records
        that they delete.
        """
        offsets = self._read_checkpoint(checkpoints.CLEANER_OFFSETS)
        if not self.checkpoint_files.has_sum(checkpoints.CLEANER_OFFSETS):
            return {}
        return {partition: offset for partition, offset in offsets.items() if partition in self.logs}

    def _find_logs(self) -> Iterable[TopicPartition]:
        with os.scandir(self.path) as entries:
            names = {entry.name: entry.is_symlink() for entry in entries if entry.is_dir()}
        for name, is_link in sorted(names.items()):
            found = parse_folder_name(name)
            if found is None:
                logger.warning("leaving %s alone: it is not named like a partition", self.path / name)
            elif found.mark == DELETE_MARK:
                self.deletions.add([self.path / name], 0)
            elif found.mark is not None:
                logger.warning("leaving %s alone: it is marked as %s", self.path / name, found.mark)
            elif found.partition.topic != CLUSTER_METADATA_TOPIC:
                if is_link:
                    raise LogDirError(
                        f"{self.path / name} is a symbolic link, and what it points at is not locked: move the folder "
                        "here, or mount its disk here"
                    )
                yield found.partition

    def _place(self, partition: TopicPartition, now_ms: int) -> LogPlace:
        return LogPlace(self.path / str(partition), partition, now_ms, self._files, self.deletions.add)

    # Logs

    def create_log(self, partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig, *, now_ms: int) -> Log:
        if partition in self.logs:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{partition} is in {self.path} already")
        try:
            if partition in self._gone:
                self._write_checkpoints()
        except OSError as error:
            message = f"could not create {partition}: checkpoints still name the one that was deleted: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        try:
            log = Log.create(self._place(partition, now_ms), config, topic_id, on_truncated=self._write_recovery_points)
        except FileExistsError as error:
            message = f"could not create {partition}: {error.filename} is there already, remove it"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        except OSError as error:
            unlink_all([self.path / str(partition)])
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"could not create {partition}: {error}") from error
        self.logs[partition] = log
        return log

    def take_out(self, partition: TopicPartition) -> list[Log]:
        """Of use, for `close_deleted`. Nothing if there is no such log."""
        log = self.logs.pop(partition, None)
        if log is None:
            return []
        self._forget(log)
        return [log]

    def close_deleted(self, logs: list[Log]) -> Generator[None, None, FolderRenames]:
        """Closes logs that are not in use, in steps, and returns what renames their folders."""
        renames = FolderRenames(self.path)
        while logs:
            log = logs.pop()
            log.close(clean=False)
            renames.add(log.folder, log.topic_partition, log.config.file_delete_delay_ms)
            yield
        return renames

    def set_aside(self, partition: TopicPartition) -> None:
        """Take a log that belongs to no replica of this broker out of use, and keep its folder under another name."""
        log = self.logs.pop(partition)
        self._forget(log)
        log.close(clean=False)
        target = self.path / marked_name(partition, STRAY_MARK)
        try:
            log.folder.rename(target)
            sync_path(self.path)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"could not set {partition} aside: {error}") from error
        logger.warning(
            "%s is no replica of this broker and is set aside; remove %s if nobody misses it", partition, target
        )

    def _forget(self, log: Log) -> None:
        self._gone.add(log.topic_partition)
        self.high_watermarks.pop(log.topic_partition, None)
        log.end_appends()

    # Checkpoints

    def has_remains_of(self, partition: TopicPartition) -> bool:
        """Whether checkpoints on disk may name a deleted log of that name, or its folder still has the name: a
        checkpoint that was written in between does not name it any more."""
        return partition in self._gone or (self.path / str(partition)).exists()

    @property
    def names_deleted_logs(self) -> bool:
        """Whether checkpoints on disk may name logs that are no longer here."""
        return bool(self._gone)

    def prepare_checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointWork:
        """All that has been appended to be fsynced, and the offsets that hold then."""
        return at_once(self.prepare_in_steps(high_watermarks.get))

    def prepare_in_steps(
        self, high_watermark: Callable[[TopicPartition], int | None], flushed: Iterable[Log] | None = None
    ) -> Generator[None, None, CheckpointWork]:
        """The same in steps: other work may be done at a yield.

        The number is taken first, so that what is written meanwhile, as after a truncation, counts as newer. All
        offsets of a log are taken in one step: if it is deleted later, they are of one that is gone, and otherwise none
        of them gets to disk.
        """
        number = self.checkpoint_files.take_number()
        flushes: list[tuple[Log, FlushWork]] = []
        for count, log in enumerate(list(self.logs.values() if flushed is None else flushed), start=1):
            work = log.prepare_flush()
            if work is not None:
                flushes.append((log, work))
            if work is not None or count % _LOGS_PER_STEP == 0:
                yield
        offsets: dict[str, dict[TopicPartition, int]] = {name: {} for name in _OF_ALL_LOGS}
        for count, partition in enumerate(list(self.logs), start=1):
            if partition in self.logs:
                known = high_watermark(partition)
                if known is not None:
                    self.high_watermarks[partition] = known
                self._add_offsets(partition, offsets)
            if count % _LOGS_PER_STEP == 0:
                yield
        return CheckpointWork(self.checkpoint_files, number, tuple(flushes), offsets)

    def _add_offsets(self, partition: TopicPartition, offsets: Mapping[str, dict[TopicPartition, int]]) -> None:
        log = self.logs[partition]
        offsets[checkpoints.RECOVERY_POINTS][partition] = log.recovery_point
        offsets[checkpoints.LOG_START_OFFSETS][partition] = log.log_start_offset
        high_watermark = self.high_watermarks.get(partition)
        if high_watermark is not None:
            offsets[checkpoints.HIGH_WATERMARKS][partition] = high_watermark

    def _offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """What the checkpoints would say now."""
        offsets: dict[str, dict[TopicPartition, int]] = {name: {} for name in _OF_ALL_LOGS}
        for partition in self.logs:
            self._add_offsets(partition, offsets)
        return offsets

    def finish_checkpoint(self, work: CheckpointWork, result: CheckpointResult) -> None:
        at_once(self.finish_in_steps(work, result))

    def finish_in_steps(self, work: CheckpointWork, result: CheckpointResult) -> Generator[None, None, None]:
        """If it was overtaken by another, which did not wait for its fsyncs, the next one makes up for it."""
        for count, (log, flush) in enumerate(work.flushes, start=1):
            if self.logs.get(flush.partition) is log:
                error = result.failed.get(flush.partition)
                log.finish_flush(flush, error)
                if error is not None:
                    outcome = "could not be flushed" + (" and will be tried again" if not log.has_failed else "")
                    logger.error("%s %s: %s", log.topic_partition, outcome, error)
            if count % _LOGS_PER_STEP == 0:
                yield
        if self.checkpoint_files.has_newest(work.number, work.offsets):
            # What is neither among the logs nor in `_gone` is not on disk either.
            named = work.offsets[checkpoints.RECOVERY_POINTS]
            self._gone = {partition for partition in self._gone if partition in named}
        elif result.not_written is not None:
            logger.error(
                "the checkpoint of %s was not written and will be tried again: %s", self.path, result.not_written
            )

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Everything appended so far is on disk, and the checkpoints say so, when this returns."""
        work = self.prepare_checkpoint(high_watermarks)
        result = work.run()
        self.finish_checkpoint(work, result)
        for error in (*result.failed.values(), result.not_written):
            if error is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"checkpoint of {self.path} failed: {error}") from error

    def _write_recovery_points(self) -> None:
        name = checkpoints.RECOVERY_POINTS
        self.checkpoint_files.write({name: self._offsets()[name]})

    def _write_checkpoints(self) -> None:
        """Write the offsets as they are, without an fsync of the logs, to remove deleted logs from the files."""
        self.checkpoint_files.write(self._offsets())
        self._gone.clear()

    # Stopping

    def close(self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int = -1) -> bool:
        """Write and fsync everything, in order, and leave the marker of a clean stop. Returns whether it was one."""
        try:
            is_clean = self._close_logs()
            self.checkpoint(high_watermarks)
            unlink_all(self.deletions.take_all())
            failpoints.hit("log_dir.close.before_marker")
            if is_clean:
                is_clean = self._write_clean_marker(broker_epoch)
            else:
                logger.error("%s: a log has failed, so the next start will recover all logs", self.path)
        finally:
            self.abandon()
        return is_clean

    def _write_clean_marker(self, broker_epoch: int) -> bool:
        try:
            clean_shutdown.write_clean_stop(self.path, broker_epoch)
        except OSError as error:
            logger.error(
                "%s: the marker of this clean stop could not be written, so the next start will recover all logs: %s",
                self.path,
                error,
            )
            return False
        return True

    def _close_logs(self) -> bool:
        """All of them, also when one cannot be closed."""
        are_clean = []
        for log in self.logs.values():
            try:
                are_clean.append(log.close())
            except KafkaError as error:
                logger.error("%s", error)
                are_clean.append(False)
        return all(are_clean)

    def abandon(self) -> None:
        """Give the folder back as it is, like a crash does."""
        self._files.close_all()
        self._lock.release()
