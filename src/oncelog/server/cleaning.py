"""Compaction in the background: looks for the dirtiest log, has it cleaned on a worker, and swaps in the result.

One log is cleaned at a time. The steps of `storage.cleaner` alternate between the worker, which reads and writes
files, and the thread that owns the broker's state, which decides and swaps. The whole log is fsynced before, because a
record must not be removed for a newer one that a power cut could take, or whose marker it could take, which may lie
behind the bound; and the swap is fsynced before the checkpoint says that the log is clean.

Deviation from Kafka: logs of internal topics are rolled early, when the active segment has outgrown the part that is
clean and its share of `INTERNAL_ACTIVE_BYTES`, one after the other and each right before it is cleaned. Kafka waits for
100 MB, so that a coordinator has to read up to that much per partition when it starts; in Python that would take
minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.cluster.partition import Partition
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition
from oncelog.server.log_upkeep import OURSELVES
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.turns import Steps, caught
from oncelog.storage import checkpoints
from oncelog.storage.atomic_file import sync_path
from oncelog.storage.cleaner_pace import CleaningStopped
from oncelog.storage.cleaner_plan import Cleanable, find_cleanable
from oncelog.storage.deletions import unlink_all
from oncelog.storage.log import Log
from oncelog.storage.segment_swap import CleanedSegment
from oncelog.storage.txn_index_keeper import SegmentGoneError

if TYPE_CHECKING:
    from oncelog.server.broker import Broker
    from oncelog.server.context import HangUp
    from oncelog.storage.cleaner import CleaningPass

log = logging.getLogger("oncelog.cleaner")

T = TypeVar("T")

INTERNAL_ACTIVE_BYTES: Final = 6 * 1024 * 1024
"""Of all partitions of an internal topic together: about fifty thousand records. With less, the cleaner would not
keep up with groups that commit as fast as they can: each of its passes costs the same few fsyncs."""
INTERNAL_LOOK_INTERVAL_MS: Final = 1_000
"""The interval of checks while there is work. Every check that finds none doubles it."""
INTERNAL_LOOK_INTERVAL_MAX_MS: Final = 4_000
"""Groups that begin to commit as fast as they can write about as much until then as they may leave."""
POSTPONED_LOOKS: Final = 4
"""A log whose cleaning failed comes after all others for so many times `log.cleaner.backoff.ms`."""
INTERNAL_CHECKPOINT_INTERVAL_MS: Final = 1_000
"""Passes over internal logs are small and many; if their checkpoint is lost, they are done again."""
_LOGS_PER_STEP: Final = 20
COLD_LOGS_PER_LOOK: Final = 16
"""Logs that nobody has used since the start and that one look may open."""


class LogCleaner:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.first_dirty: dict[TopicPartition, int] = {}
        self.uncleanable: set[TopicPartition] = set()
        """Damaged logs. They are not cleaned before the next start."""
        self._postponed: dict[TopicPartition, int] = {}
        """Logs that failed for a reason that may pass, and the time until which all others come first."""
        self._errors = RepeatedErrors(log)
        self.passes = 0
        self._current: CleaningPass | None = None
        self._timer: Timer | None = None
        self._interval_ms = INTERNAL_LOOK_INTERVAL_MS
        self._next_full_look_ms = 0
        self._swapped: set[Path] = set()
        """Folders of logs that were cleaned since the checkpoint was written."""
        self._checkpoint_ms = 0
        """When it was written last."""
        self._stopped = False

    def start(self) -> None:
        settings = self._broker.settings
        if not settings.boolean("log.cleaner.enable"):
            return
        self.first_dirty = self._broker.log_dir.read_cleaner_offsets()
        self._next_full_look_ms = self._broker.steady_ms() + settings.integer("log.cleaner.backoff.ms")
        self._look_later()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._current is not None:
            self._current.pace.stop()

    def on_topics_deleted(self, names: Set[str]) -> None:
        """A topic that is created again under the name must not inherit offsets."""
        deleted = [partition for partition in self.first_dirty if partition.topic in names]
        for partition in deleted:
            del self.first_dirty[partition]
        self.uncleanable = {partition for partition in self.uncleanable if partition.topic not in names}
        self._errors.clear_if(lambda subject: isinstance(subject, TopicPartition) and subject.topic in names)
        if deleted and not self._stopped:
            self._write_checkpoint(lambda: None)

    # Looking for something to clean

    def _look_later(self, delay_ms: int | None = None) -> None:
        if self._stopped:
            return
        if delay_ms is None:
            until_full_ms = self._next_full_look_ms - self._broker.steady_ms()
            delay_ms = max(1, min(until_full_ms, self._interval_ms))
            self._interval_ms *= 2
        self._timer = self._broker.scheduler.call_later_ms(delay_ms, self._look)

    def _look(self) -> None:
        """All logs, as often as `log.cleaner.backoff.ms` says, and internal ones more often."""
        now_ms = self._broker.cautious_ms()
        looks_at_all = self._broker.steady_ms() >= self._next_full_look_ms
        steps = caught(self._dirtiest(now_ms, internal_only=not looks_at_all))
        looked = self._broker.turns.begin(steps, OURSELVES, to_the_end=True)
        looked.then(lambda found: self._looked(found, now_ms, looks_at_all=looks_at_all))

    def _looked(self, found: Cleanable | Exception | HangUp | None, now_ms: int, *, looks_at_all: bool) -> None:
        if self._stopped:
            return
        try:
            if isinstance(found, Exception):
                raise found
            if isinstance(found, Cleanable):
                self._begin(found, now_ms)
                return
            if self._swapped:
                self._write_checkpoint(self._look_later)
                return
        except Exception:
            # Whatever it is must not end all cleaning.
            log.exception("looking for a log to clean failed and will be tried again")
        backoff_ms = self._broker.settings.integer("log.cleaner.backoff.ms")
        if looks_at_all:
            self._next_full_look_ms = self._broker.steady_ms() + backoff_ms
        self._interval_ms = min(self._interval_ms, INTERNAL_LOOK_INTERVAL_MAX_MS, backoff_ms)
        self._look_later()

    def _dirtiest(self, now_ms: int, *, internal_only: bool) -> Steps[Cleanable | None]:
        dirtiest: tuple[Partition, Cleanable] | None = None
        candidates = yield from self._candidates(internal_only)
        self._roll_early(candidates, now_ms)
        for number, partition in enumerate(candidates, 1):
            if number % _LOGS_PER_STEP == 0:
                yield
            found = self._find_due(partition, now_ms)
            if found is not None and (dirtiest is None or self._rank(found) > self._rank(dirtiest[1])):
                dirtiest = partition, found
        # As it is now: it may have been cut or deleted between the steps.
        return None if dirtiest is None else self._find_due(dirtiest[0], now_ms)

    def _find_due(self, partition: Partition, now_ms: int) -> Cleanable | None:
        if not self._is_in_use(partition.log) or len(partition.log.segments) == 1:
            return None
        with self._isolated(partition.log):
            found = find_cleanable(
                partition.log,
                self.first_dirty.get(partition.topic_partition),
                last_stable_offset=partition.last_stable_offset,
                now_ms=now_ms,
            )
            return found if found.is_due else None
        return None

    def _rank(self, cleanable: Cleanable) -> tuple[bool, float]:
        return not self._is_postponed(cleanable.log), cleanable.dirty_ratio

    def _is_postponed(self, partition_log: Log) -> bool:
        return self._broker.steady_ms() < self._postponed.get(partition_log.topic_partition, 0)

    def _candidates(self, internal_only: bool) -> Steps[list[Partition]]:
        found: list[Partition] = []
        cold = 0
        for number, (key, partition_log) in enumerate(list(self._broker.log_dir.logs.items()), 1):
            if number % _LOGS_PER_STEP == 0:
                yield
            if internal_only and key.topic not in INTERNAL_TOPICS:
                continue
            if (
                not self._is_in_use(partition_log)
                or not partition_log.config.is_compacted
                or key in self.uncleanable
                or partition_log.has_failed
                or partition_log.log_end_offset == partition_log.log_start_offset
            ):
                continue
            if not partition_log.is_loaded:
                if internal_only or cold >= COLD_LOGS_PER_LOOK:
                    continue
                cold += 1
                yield
            with self._isolated(partition_log):
                partition = self._broker.partitions.find(key.topic, key.partition)
                if partition is not None:
                    partition_log.load()
                    found.append(partition)
        return found

    def _roll_early(self, candidates: Sequence[Partition], now_ms: int) -> None:
        """Roll the internal log with most to clean. Not all at once: a roll takes the loop a millisecond, and logs
        that take turns have less between them at any time than logs that grow and are cleaned together."""
        due: list[tuple[int, Partition]] = []
        for partition in candidates:
            name = partition.topic_partition.topic
            topic = self._broker.metadata.topics.get(name) if name in INTERNAL_TOPICS else None
            if topic is not None and self._is_in_use(partition.log) and not self._is_postponed(partition.log):
                active_bytes = partition.log.segments[-1].size_bytes
                others_bytes = partition.log.size_bytes - active_bytes
                if active_bytes > max(others_bytes, INTERNAL_ACTIVE_BYTES // topic.partition_count):
                    due.append((active_bytes, partition))
        if due:
            self._interval_ms = INTERNAL_LOOK_INTERVAL_MS
            partition_log = max(due, key=lambda one: one[0])[1].log
            with self._isolated(partition_log):
                partition_log.roll(now_ms)

    # Cleaning one log

    def _begin(self, cleanable: Cleanable, now_ms: int) -> None:
        try:
            self._begin_pass(cleanable, now_ms)
        except Exception as error:  # noqa: BLE001  whatever it is concerns this log only
            self._fail(cleanable.log, error)

    def _begin_pass(self, cleanable: Cleanable, now_ms: int) -> None:
        from oncelog.storage.cleaner import CleaningPass  # which a start has no use for

        cleaning = CleaningPass(
            cleanable,
            map_memory_bytes=self._broker.settings.integer("log.cleaner.dedupe.buffer.size"),
            now_ms=now_ms,
        )
        self._current = cleaning
        self._interval_ms = INTERNAL_LOOK_INTERVAL_MS
        partition_log = cleanable.log

        def flushed(is_durable: bool) -> None:
            if is_durable and not self._stopped:
                self._step(cleaning, cleaning.build_map, lambda _: self._clean_groups(cleaning, 0))
            else:
                self._end_pass()

        def prepared(error: Exception | HangUp | None) -> None:
            if self._stopped:
                return
            if isinstance(error, Exception):
                self._fail(partition_log, error)
            elif partition_log.durable_offset >= partition_log.log_end_offset:
                flushed(True)
            else:
                self._broker.flusher.flush(partition_log, batches_only=True).then(flushed)

        self._broker.turns.begin(caught(cleaning.prepare()), OURSELVES, to_the_end=True).then(prepared)

    def _step(self, cleaning: CleaningPass, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job on a worker and go on with its result, unless it failed or the broker has stopped."""

        def finished(result: T | Exception) -> None:
            if self._stopped:
                return
            if isinstance(result, Exception):
                self._fail(cleaning.cleanable.log, result)
                return
            try:
                done(result)
            except Exception as error:  # noqa: BLE001  whatever it is must not end all cleaning
                self._fail(cleaning.cleanable.log, error)

        self._broker.worker.run(job).then(finished)

    def _clean_groups(self, cleaning: CleaningPass, number: int) -> None:
        if self._stopped:
            return
        if not self._is_current(cleaning):
            self._give_up(cleaning)
            return
        if number == len(cleaning.groups):
            self._finish(cleaning)
            return

        def swap(cleaned: CleanedSegment) -> None:
            if self._replace(cleaning, cleaned):
                # By the scheduler, so that others have their turn and the stack does not grow with the log.
                self._broker.scheduler.call_later_ms(0, lambda: self._clean_groups(cleaning, number + 1))

        self._step(cleaning, lambda: cleaning.clean(cleaning.groups[number]), swap)

    def _replace(self, cleaning: CleaningPass, cleaned: CleanedSegment) -> bool:
        partition_log = cleaning.cleanable.log
        is_replaced = self._is_current(cleaning) and partition_log.replace_segments(cleaned)
        if not is_replaced:
            self._unlink(cleaned.files)
            self._give_up(cleaning)
        return is_replaced

    def _is_current(self, cleaning: CleaningPass) -> bool:
        """Whether the log is still the one of that name, not deleted, and neither cut nor opened again since.

        Opening it again rebuilds transaction indexes, which a worker may have read when they were not whole.
        """
        partition_log = cleaning.cleanable.log
        return self._is_in_use(partition_log) and partition_log.generation == cleaning.generation

    def _is_in_use(self, partition_log: Log) -> bool:
        """It may have been deleted, and its partition is closed later."""
        return self._broker.log_dir.logs.get(partition_log.topic_partition) is partition_log

    def _give_up(self, cleaning: CleaningPass) -> None:
        log.info("%s has changed while it was cleaned: trying again later", cleaning.cleanable.log.topic_partition)
        self._end_pass()

    def _finish(self, cleaning: CleaningPass) -> None:
        partition_log = cleaning.cleanable.log
        stats = cleaning.stats
        self.passes += 1
        log.info(
            "%s: offsets %d to %d cleaned, %d of %d bytes and %d of %d segments are left",
            partition_log.topic_partition,
            cleaning.cleanable.first_dirty_offset,
            cleaning.end_offset,
            stats.kept_bytes,
            stats.read_bytes,
            stats.segments_after,
            stats.segments_before,
        )
        self.first_dirty[partition_log.topic_partition] = cleaning.end_offset
        self._errors.clear(partition_log.topic_partition)
        self._swapped.add(partition_log.folder)
        is_internal = partition_log.topic_partition.topic in INTERNAL_TOPICS
        if is_internal and self._broker.steady_ms() - self._checkpoint_ms < INTERNAL_CHECKPOINT_INTERVAL_MS:
            self._end_pass(look_at_once=True)
        else:
            self._write_checkpoint(lambda: self._end_pass(look_at_once=True))

    def _write_checkpoint(self, done: Callable[[], None]) -> None:
        """Write the first dirty offsets, after the renames in the folders of cleaned logs are durable."""
        log_dir = self._broker.log_dir
        offsets = {partition: offset for partition, offset in self.first_dirty.items() if partition in log_dir.logs}
        number = log_dir.checkpoint_files.take_number()
        folders, self._swapped = self._swapped, set()
        self._checkpoint_ms = self._broker.steady_ms()

        def write() -> None:
            for folder in folders:
                if folder.exists():
                    sync_path(folder)
            log_dir.checkpoint_files.write({checkpoints.CLEANER_OFFSETS: offsets}, number)

        def written(result: Exception | None) -> None:
            if result is not None:
                log.error("the cleaner's checkpoint could not be written, the next pass will do it: %s", result)
                self._swapped |= folders
            done()

        self._broker.worker.run(write).then(written)

    def _end_pass(self, *, look_at_once: bool = False) -> None:
        self._current = None
        self._look_later(0 if look_at_once else self._broker.settings.integer("log.cleaner.backoff.ms"))

    def _fail(self, partition_log: Log, error: Exception) -> None:
        self._on_error(partition_log, error)
        self._end_pass()

    @contextmanager
    def _isolated(self, partition_log: Log) -> Iterator[None]:
        """An error of one log does not keep the others from being cleaned."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is concerns this log only
            self._on_error(partition_log, error)

    def _on_error(self, partition_log: Log, error: Exception) -> None:
        """Clean the log later, or never again before the next start if it is damaged."""
        from oncelog.storage.cleaner import DamagedTxnIndexError

        partition = partition_log.topic_partition
        backoff_ms = self._broker.settings.integer("log.cleaner.backoff.ms")
        self._postponed[partition] = self._broker.steady_ms() + POSTPONED_LOOKS * backoff_ms
        if isinstance(error, FileNotFoundError | CleaningStopped | SegmentGoneError):
            log.info("%s lost segments while it was cleaned: trying again later", partition)
        elif isinstance(error, DamagedTxnIndexError):
            self._repair(partition_log, error.base_offset)
        elif isinstance(error, OSError) or (
            isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        ):
            self._errors.report(partition, "%s could not be cleaned and will be tried again: %s", partition, error)
        else:
            log.error("%s cannot be cleaned and is left alone from now on", partition, exc_info=error)
            self.uncleanable.add(partition)

    def _repair(self, partition_log: Log, base_offset: int) -> None:
        try:
            partition_log.files.txn_indexes.rebuild_at(base_offset)
        except (OSError, KafkaError) as error:
            log.error("%s: a transaction index could not be rebuilt: %s", partition_log.topic_partition, error)
            self.uncleanable.add(partition_log.topic_partition)

    def _unlink(self, paths: Sequence[Path]) -> None:
        self._broker.worker.run(lambda: unlink_all(paths)).then(lambda _: None)
