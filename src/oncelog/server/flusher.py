"""fsyncs away from the thread that owns the broker's state, shared by all who wait for one.

With `oncelog.acks.fsync` the high watermark of a partition follows what is on disk instead of the end of its log, and
everything that waits for an append to be safe waits for the high watermark: producers with acks=all, decisions of
coordinators, markers, readers. Appends only report that there is something to do. One round of fsyncs runs at a time;
what is appended meanwhile is taken along by the next one, so that a hundred producers share one fsync, and one alone
does not wait for others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from oncelog.cluster.partition import Partition
from oncelog.core.clock import Scheduler
from oncelog.core.promise import Promise, gather
from oncelog.core.worker import Worker
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.storage.flush_work import FileNotOpened, FlushWork
from oncelog.storage.log import Log

log = logging.getLogger("oncelog.server")

PARALLEL_FLUSHES_MAX: Final = 3
"""fsyncs of different files that wait for the disk together cost little more than one of them."""
RETRY_MS: Final = 100
"""The pause after a file could not be opened for its fsync. It doubles with each attempt that fails."""
RETRY_MAX_MS: Final = 5_000


class Flusher:
    def __init__(self, scheduler: Scheduler, worker: Worker) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._uncommitted: dict[Partition, None] = {}
        self._put_off: dict[Partition, None] = {}
        self._retry_ms = RETRY_MS
        self._errors = RepeatedErrors(log)
        self._is_running = False
        self._stopped = False
        self.rounds = 0

    @property
    def is_idle(self) -> bool:
        """Nothing is flushed or about to be. What was put off does not count: it may never succeed."""
        return not self._is_running

    def stop(self) -> None:
        """The logs are about to be closed, which flushes the rest."""
        self._stopped = True

    def flush(self, partition_log: Log, *, batches_only: bool = False) -> Promise[bool]:
        """Promises whether everything that was appended up to now is on disk. If not, the log may have failed."""
        work = partition_log.prepare_flush(batches_only=batches_only)
        if work is None:
            return Promise.resolved(not partition_log.has_failed)
        return self._worker.run(work.run).map(lambda error: self._finish(partition_log, work, error))

    # Group commit

    def stored_end(self, partition_log: Log) -> int:
        return partition_log.durable_offset

    def on_append(self, partition: Partition) -> None:
        self._uncommitted[partition] = None
        if not self._is_running:
            # Not at once: what else is appended in this turn of the loop comes along.
            self._is_running = True
            self._scheduler.call_later_ms(0, self._run)

    def _run(self) -> None:
        if self._stopped:
            return
        self.rounds += 1
        partitions, self._uncommitted = list(self._uncommitted), {}
        works = [(partition, partition.log.prepare_flush(batches_only=True)) for partition in partitions]
        jobs = [(partition, work) for partition, work in works if work is not None]
        shares = [jobs[first::PARALLEL_FLUSHES_MAX] for first in range(min(PARALLEL_FLUSHES_MAX, len(jobs)))]
        runs = [self._worker.run(_run_all([work for _, work in share])) for share in shares]

        def done(results: list[list[Exception | None] | Exception]) -> None:
            for share, errors in zip(shares, results, strict=True):
                for number, (partition, work) in enumerate(share):
                    error = errors if isinstance(errors, Exception) else errors[number]
                    if not self._finish(partition.log, work, error) and not partition.log.has_failed:
                        self._retry_later(partition)
            self._commit(partitions)

        gather(runs).then(done)

    def _retry_later(self, partition: Partition) -> None:
        if not self._put_off:
            self._scheduler.call_later_ms(self._retry_ms, self._retry)
            self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)
        self._put_off[partition] = None

    def _retry(self) -> None:
        partitions, self._put_off = self._put_off, {}
        for partition in partitions:
            self.on_append(partition)

    def _finish(self, partition_log: Log, work: FlushWork, error: Exception | None) -> bool:
        """Whatever went wrong: what is not known to be on disk must not be acknowledged."""
        partition_log.finish_flush(work, error)
        if isinstance(error, FileNotOpened):
            message = "%s is not flushed yet and will be tried again: %s"
            self._errors.report(work.partition, message, work.partition, error)
            return False
        self._errors.clear(work.partition)
        if error is not None:
            log.error("%s cannot be flushed", work.partition, exc_info=error)
            return False
        self._retry_ms = RETRY_MS
        return True

    def _commit(self, partitions: Sequence[Partition]) -> None:
        self._is_running = bool(self._uncommitted)
        if self._is_running:
            self._scheduler.call_later_ms(0, self._run)
        for partition in partitions:
            if partition.log.has_failed:
                partition.give_up_waiting()
            else:
                partition.update_high_watermark()


def _run_all(works: Sequence[FlushWork]) -> Callable[[], list[Exception | None]]:
    def run() -> list[Exception | None]:
        errors: list[Exception | None] = []
        for work in works:
            try:
                work.run()
                errors.append(None)
            except OSError as error:
                errors.append(error)
        return errors

    return run
