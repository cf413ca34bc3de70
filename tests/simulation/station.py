"""One data folder and the broker that lives on it, dies on it and is started again.

A crash drops the broker object where it stands: no promise is resolved any more, no timer of it fires, nothing is
closed in order. What it wrote is in the files, because a killed process leaves the page cache alone; a torn write and
a power cut are extra: they cut what was not acknowledged, or not fsynced.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from oncelog.cluster.partition import Partition
from oncelog.core import failpoints
from oncelog.core.address import LOOPBACK
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.clock import Timer
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker, Worker
from oncelog.protocol.messages.broker_registration import Listener
from oncelog.server.broker import Broker, Environment
from oncelog.server.turns import Turns
from tests.virtual_clock import VirtualScheduler

T = TypeVar("T")

WAIT_MS_MAX: Final = 60_000
"""For a start or a stop."""

CRASH_POINTS: Final = (
    "log.append.before_write",
    "log.append.after_write",
    "log.append.after_indexes",
    "log.append.before_txn_index",
    "txn_index.append.before_write",
    "txn.record.before_append",
    "txn.record.after_append",
    "txn.record.after_apply",
    "txn.marker.before_write",
    "log.roll.before",
    "log.roll.before_create",
    "log.roll.before_snapshot",
    "log.roll.after",
    "log.snapshot.before_write",
    "log.snapshot.after_write",
    "segment.create.after_log_file",
    "checkpoint.recovery-point-offset-checkpoint",
    "checkpoint.before_fsync",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "log.flush.before_fsync",
    "log.flush.after_fsync",
    "log_dir.close.before_marker",
    "log.delete.before_rename",
    "segment.delete.before_rename",
    "cleaner.before_fsync",
    "cleaner.swap.before_rename",
    "cleaner.swap.after",
    "checkpoint.cleaner-offset-checkpoint",
)
"""All failpoints of the broker that can be met here: see the calls of `hit` in src/oncelog."""

_APPEND_ONLY: Final = frozenset({".log", ".index", ".timeindex", ".txnindex"})


class SimulatedCrash(BaseException):
    """The process is gone. Not an Exception, so that nothing in the broker can stop it on its way."""


class IncarnationScheduler:
    """The clock of one broker object: it goes on after the broker's death, but calls nobody back.

    The time it shows may be wrong; how long it takes until something is due does not depend on that.
    """

    def __init__(self, clock: VirtualScheduler, skew_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._skew_ms = skew_ms
        self.alive = True

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later_ms(delay_ms, lambda: callback() if self.alive else None)


class SlowWorker:
    """Does its jobs some time later, and tells of it later still, as threads do."""

    def __init__(self, scheduler: IncarnationScheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._jobs: list[_Job] = []

    def run(self, job: Callable[[], T]) -> Promise[T | Exception]:
        begun = _Job(job)
        self._jobs.append(begun)

        def work() -> None:
            begun.work()
            self._scheduler.call_later_ms(self._rng.randrange(50), lambda: self._deliver(begun))

        self._scheduler.call_later_ms(self._rng.randrange(200), work)
        return begun.promise

    def until_idle(self) -> None:
        """Before a clean stop: as a server does it."""
        while self._jobs:
            self._jobs[0].work()
            self._deliver(self._jobs[0])

    def _deliver(self, job: _Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            job.promise.resolve(job.result)


class _Job:
    def __init__(self, job: Callable[[], Any]) -> None:
        self._job: Callable[[], Any] | None = job
        self.promise: Promise[Any] = Promise()
        self.result: Any = None

    def work(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            self.result = InlineWorker().run(job).value


class ErrorLog(logging.Handler):
    """Collects what the broker logs as an error: an exception that was caught and logged is still a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self.messages.append(text)


class DurableSizes:
    """How much of each file was fsynced, by inode."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def note(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._sizes[status.st_ino] = status.st_size

    def cut_tails(self, folder: Path, rng: random.Random) -> None:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _APPEND_ONLY and path.is_file():
                status = path.stat()
                durable = min(self._sizes.get(status.st_ino, 0), status.st_size)
                os.truncate(path, rng.randint(durable, status.st_size))


class Station:
    """Where the broker runs. `broker` is None while it is down."""

    def __init__(
        self,
        folder: Path,
        clock: VirtualScheduler,
        rng: random.Random,
        settings: Mapping[str, str],
        *,
        slow_worker: bool = False,
        power_cuts: bool = False,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.broker: Broker | None = None
        self._starting: Broker | None = None
        self.starts = 0
        self.errors = ErrorLog()
        self.on_down: list[Callable[[], None]] = []
        self.skew_ms = 0
        """By how much the clock of the machine is wrong."""
        self.lag_ms: Callable[[], int] = lambda: 0
        """How long the high watermark trails an append, as with replicas: asked for each append."""
        self.turn_ms: Callable[[], int] = lambda: 0
        """How long work in steps waits for its next turn: asked for each turn."""
        self.turns = 0
        """How many there were."""
        self._rng = rng
        self._settings = BROKER_CONFIG.parse(settings)
        self._slow_worker = slow_worker
        self._power_cuts = power_cuts
        self._durable = DurableSizes()
        self._scheduler: IncarnationScheduler | None = None
        self._worker: Worker | None = None

    @property
    def running(self) -> Broker:
        if self.broker is None:
            raise RuntimeError("the broker is down")
        return self.broker

    @property
    def is_starting(self) -> bool:
        return self._starting is not None

    @contextmanager
    def installed(self) -> Iterator[Station]:
        """Hooks into the broker's modules, for as long as a history runs."""
        logger = logging.getLogger("oncelog")
        before = logger.handlers[:], logger.level, logger.propagate
        logger.handlers, logger.propagate = [self.errors], False
        logger.setLevel(logging.ERROR)
        advance, fsync, fdatasync = Partition.advance_high_watermark, os.fsync, os.fdatasync
        take_turn = Turns._take_turn
        station = self

        def lagging(partition: Partition, offset: int) -> None:
            delay_ms = station.lag_ms()
            if delay_ms and station._scheduler is not None:
                station._scheduler.call_later_ms(delay_ms, lambda: advance(partition, offset))
            else:
                advance(partition, offset)

        def late(turns: Turns) -> None:
            station.turns += 1
            delay_ms = station.turn_ms()
            if delay_ms and station._scheduler is not None:
                station._scheduler.call_later_ms(delay_ms, lambda: take_turn(turns))
            else:
                take_turn(turns)

        def noted(original: Callable[[int], None]) -> Callable[[int], None]:
            def sync(descriptor: int) -> None:
                original(descriptor)
                station._durable.note(descriptor)

            return sync

        Partition.advance_high_watermark = lagging  # type: ignore[method-assign]
        Turns._take_turn = late  # type: ignore[method-assign]
        os.fsync, os.fdatasync = noted(fsync), noted(fdatasync)  # type: ignore[assignment]
        try:
            yield self
        finally:
            failpoints.disarm_all()
            Partition.advance_high_watermark = advance  # type: ignore[method-assign]
            Turns._take_turn = take_turn  # type: ignore[method-assign]
            os.fsync, os.fdatasync = fsync, fdatasync
            logger.handlers, level, logger.propagate = before
            logger.setLevel(level)
            self.abandon()

    def start(self) -> None:
        """A new broker on the folder. SimulatedCrash may come out of it, as out of everything it does later."""
        self.starts += 1
        scheduler = IncarnationScheduler(self.clock, lambda: self.skew_ms)
        worker = self._worker = SlowWorker(scheduler, self._rng) if self._slow_worker else InlineWorker()
        rng = random.Random(self._rng.random())
        environment = Environment(
            scheduler, worker, lambda: uuid.UUID(int=rng.getrandbits(128)), rng.randrange, boot_id="one boot"
        )
        self._scheduler = scheduler
        try:
            self._starting = Broker(self.folder, self._settings, environment)
            self._join(self._starting)
            self._starting.start()
            self.broker, self._starting = self._starting, None
        except BaseException:
            self.abandon()
            raise

    def _join(self, broker: Broker) -> None:
        """As a server does it: nobody is served before."""
        membership = broker.join_own([Listener(name="PLAINTEXT", host=LOOPBACK, port=9092)], "PLAINTEXT")
        self._until(membership.loaded, membership.ended)
        membership.ready()
        self._until(membership.serving, membership.ended)

    def _until(self, *promises: Promise[Any]) -> None:
        """Others go on meanwhile, and may kill the broker."""
        scheduler = self._scheduler
        for _ in range(WAIT_MS_MAX):
            if any(promise.done for promise in promises) or scheduler is None or not scheduler.alive:
                return
            self.clock.advance_ms(1)
        raise RuntimeError("the broker does not start, or does not stop")

    def stop(self) -> None:
        """An orderly stop: whoever waits is answered, and the next start finds the marker of a clean stop."""
        broker = self.running
        if broker.membership is not None:
            broker.membership.leave()
            self._until(broker.membership.ended)
        if self.broker is not broker:
            return  # it was killed while it stopped
        self.broker = None
        try:
            broker.end_work()
            if isinstance(self._worker, SlowWorker):
                self._worker.until_idle()
            broker.stop()
        except BaseException:
            self.broker = broker
            raise
        self._let_go()

    def crash(self, point: str | None = None) -> None:
        """What is left of the process after SimulatedCrash, or at any other moment."""
        torn = self._unfinished_write() if point == "log.append.after_write" else None
        self.abandon()
        if torn is not None:
            path, whole_bytes = torn
            os.truncate(path, self._rng.randint(whole_bytes, path.stat().st_size))
        if self._power_cuts:
            self._durable.cut_tails(self.folder, self._rng)

    def abandon(self) -> None:
        for broker in (self.broker, self._starting):
            if broker is not None:
                broker.log_dir.abandon()
        self.broker = self._starting = None
        self._let_go()

    def _let_go(self) -> None:
        if self._scheduler is not None:
            self._scheduler.alive = False
        for callback in self.on_down:
            callback()

    def _unfinished_write(self) -> tuple[Path, int] | None:
        """The file in which the last append lies that was not taken over, and its size without it."""
        if self.broker is None:
            return None
        for log in self.broker.log_dir.logs.values():
            if log.is_loaded:
                active = log.segments[-1]
                if active.log_file.path.stat().st_size > active.size_bytes:
                    return active.log_file.path, active.size_bytes
        return None

    def arm_crash(self, point: str, count: int) -> None:
        def crash() -> None:
            raise SimulatedCrash(point)

        failpoints.arm(point, failpoints.on_nth_hit(count, crash))

    def arm_disk_trouble(self, point: str, strikes: Callable[[], bool]) -> None:
        def fail() -> None:
            if strikes():
                raise OSError(errno.ENOSPC, "no space left on the simulated device")

        failpoints.arm(point, fail)

    @staticmethod
    def disarm() -> None:
        failpoints.disarm_all()


def memory_folder() -> Path | None:
    """A memory file system, if there is one: histories write a lot of small files."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A history is short and dies as a whole; collecting in the middle of it costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
