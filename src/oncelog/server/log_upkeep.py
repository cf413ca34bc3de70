"""The recurring work on all logs: retention, checkpoints, flushes, repairs, unlinking, expiry of producers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from oncelog.core.errors import KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.promise import Promise
from oncelog.server.context import Peer
from oncelog.server.repeated_errors import RepeatedErrors
from oncelog.server.turns import Steps, caught
from oncelog.storage.deletions import unlink_all
from oncelog.storage.log import SEGMENTS_DELETED_AT_ONCE_MAX, Log
from oncelog.storage.log_dir import CheckpointResult, CheckpointWork
from oncelog.storage.retention import delete_old_segments

if TYPE_CHECKING:
    from oncelog.server.broker import Broker

log = logging.getLogger("oncelog.server")

FLUSH_CHECK_INTERVAL_MS: Final = 1_000
REPAIR_CHECK_INTERVAL_MS: Final = 1_000
DELETE_CHECK_INTERVAL_MS: Final = 10_000
OURSELVES: Final = Peer("this broker", "")


class LogUpkeep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_checkpointing = False
        self._errors = RepeatedErrors(log)

    def start(self) -> None:
        every, interval_ms = self._broker.recurring.every, self._broker.settings.integer
        every("retention", interval_ms("log.retention.check.interval.ms"), self._delete_old_segments)
        every("checkpoint", interval_ms("log.flush.offset.checkpoint.interval.ms"), self._checkpoint)
        if self._broker.is_in_cluster:
            high_watermarks_ms = interval_ms("replica.high.watermark.checkpoint.interval.ms")
            every("high watermarks", high_watermarks_ms, lambda: self.write_checkpoint(()).then(_raise_error))
        every("flush", FLUSH_CHECK_INTERVAL_MS, self._flush_due_logs)
        every("repair", REPAIR_CHECK_INTERVAL_MS, self._repair_logs)
        every("deletes", DELETE_CHECK_INTERVAL_MS, self._unlink_deleted)
        every("producer expiry", interval_ms("producer.id.expiration.check.interval.ms"), self._expire_producers)

    def _delete_old_segments(self) -> None:
        self._broker.turns.begin(self._delete_in_steps(), OURSELVES, to_the_end=True)

    def _delete_in_steps(self) -> Steps[None]:
        for key in list(self._broker.log_dir.logs):
            while self._delete_some(key):
                yield
            yield

    def _delete_some(self, key: TopicPartition) -> bool:
        """Whether there may be more of them."""
        with self._isolated("retention", key):
            partition = self._broker.partitions.find(key.topic, key.partition)
            if partition is not None:
                now_ms = self._broker.cautious_ms()
                deleted = delete_old_segments(partition.log, now_ms, high_watermark=partition.high_watermark)
                if deleted:
                    log.info("%s: %d old segment(s) deleted", partition.topic_partition, deleted)
                return deleted >= SEGMENTS_DELETED_AT_ONCE_MAX
        return False

    @contextmanager
    def _isolated(self, work: str, key: TopicPartition) -> Iterator[None]:
        """An error of one log does not keep the others from their turn."""
        try:
            yield
        except (OSError, KafkaError) as error:
            self._errors.report((work, key), "%s of %s failed and will be tried again: %s", work, key, error)
        else:
            self._errors.clear((work, key))

    def _unlink_deleted(self) -> None:
        paths = self._broker.log_dir.deletions.take_due(self._broker.steady_ms())
        if paths:
            self._broker.worker.run(lambda: unlink_all(paths)).then(_raise_error)

    def _checkpoint(self) -> None:
        if self._is_checkpointing:
            return
        written = self.write_checkpoint()
        self._is_checkpointing = True

        def done(result: CheckpointResult | Exception) -> None:
            self._is_checkpointing = False
            _raise_error(result)

        written.then(done)

    def write_checkpoint(self, flushed: Iterable[Log] | None = None) -> Promise[CheckpointResult | Exception]:
        """The logs are asked in slices on the loop, and a worker writes the files."""
        steps = caught(self._broker.log_dir.prepare_in_steps(self._high_watermark, flushed))
        return self._broker.turns.begin(steps, OURSELVES, to_the_end=True).chain(self._write)

    def _write(self, work: CheckpointWork | Exception) -> Promise[CheckpointResult | Exception]:
        if isinstance(work, Exception):
            return Promise.resolved(work)

        def finish(result: CheckpointResult | Exception) -> Promise[CheckpointResult | Exception]:
            if self._broker.stopped or isinstance(result, Exception):
                return Promise.resolved(result)
            steps = self._broker.log_dir.finish_in_steps(work, result)
            return self._broker.turns.begin(steps, OURSELVES, to_the_end=True).map(lambda _: result)

        return self._broker.worker.run(work.run).chain(finish)

    def _high_watermark(self, key: TopicPartition) -> int | None:
        partition = self._broker.partitions.opened(key.topic, key.partition)
        return None if partition is None else partition.high_watermark

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition.topic_partition: partition.high_watermark for partition in self._broker.partitions}

    def _repair_logs(self) -> None:
        """Appends repair a log themselves, but a client that only reads would wait for one without end."""
        for partition in self._broker.partitions:
            if partition.log.can_be_repaired:
                with self._isolated("repair", partition.topic_partition):
                    partition.repair_log()

    def _flush_due_logs(self) -> None:
        self._broker.turns.begin(self._flush_in_steps(), OURSELVES, to_the_end=True)

    def _flush_in_steps(self) -> Steps[None]:
        now_ms = self._broker.now_ms()
        for partition in self._broker.partitions:
            if not partition.closed and partition.log.is_flush_due(now_ms):
                with self._isolated("flush", partition.topic_partition):
                    self._broker.flusher.flush(partition.log)
            yield

    def _expire_producers(self) -> None:
        self._broker.turns.begin(self._expire_in_steps(), OURSELVES, to_the_end=True)

    def _expire_in_steps(self) -> Steps[None]:
        now_ms, room = self._broker.cautious_ms(), self._broker.producer_room
        is_short = room.is_short()
        for partition in self._broker.partitions:
            if not partition.closed:
                producers = partition.log.producer_state
                producers.expire(now_ms, room.idle_ms(len(producers), is_short=is_short))
                yield


def _raise_error(result: object) -> None:
    if isinstance(result, Exception):
        raise result
