"""Reads topics into a sink, until it is told to stop.

1. Claim every partition: this ends the rights of an older instance, and tells where to go on.
2. Check that the topic still has what comes next; seek there. The group's offsets are not asked.
3. Read committed records until the batch is full or has waited long enough.
4. Check that the topics are still those that were claimed: they may have been deleted and made again.
5. Write rows and offsets in one transaction of the database. While there is more to read, a thread does that, and the
   next batch is read and prepared meanwhile. There is never more than one transaction.
6. Commit the offsets to the group too, for tools that show lag. Nothing depends on it.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple, Self

from oncelog.client import Admin, Consumer, ConsumerRecord, CorruptBatch, TopicPartition
from oncelog.connect.database_sink import OFFSETS_TABLE
from oncelog.connect.progress import Progress
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Batch, Move, Sink, Start
from oncelog.connect.sink_records import RecordColumns, joined
from oncelog.connect.sink_resume import Extent, check_claim, check_topic
from oncelog.core.failpoints import hit

POLL_MS: Final = 200
POLL_WHILE_WRITING_MS: Final = 10
LOOK_AROUND_S: Final = 10.0
"""How often an idle sink looks for new partitions, and stores offsets that moved over aborted records."""
FETCH_BYTES: Final = 8 * 1024 * 1024
GROUP_PREFIX: Final = "connect-"
logger = logging.getLogger("oncelog.connect")


class _Writing(NamedTuple):
    """A batch that a thread is writing."""

    outcome: Future[int]
    records: int
    positions: dict[TopicPartition, int]
    """The offsets after its last records, by partition."""


class SinkTask:
    def __init__(self, settings: SinkSettings, sink: Sink, progress: Progress | None = None) -> None:
        self.settings = settings
        self.progress = progress or Progress()
        self._sink = sink
        self._admin = Admin({**settings.client, "allow.auto.create.topics": False})
        self._consumer = Consumer(
            {
                **settings.client,
                "group.id": GROUP_PREFIX + settings.name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "none",
                "max.poll.records": settings.batch_rows,
                "max.partition.fetch.bytes": FETCH_BYTES,
                "allow.auto.create.topics": False,
                "oncelog.skip.corrupt.batches": settings.corrupt_batches == "skip",
            }
        )
        self._has_columns = _has_columns()
        self._unread: RecordColumns | None = None
        """Records that were read and are in no batch yet."""
        self._positions: dict[TopicPartition, int] = {}
        """The offsets after the last batch, which may still be being written."""
        self._ends_at_start: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._looked_s = 0.0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{settings.name}-writer")
        self._writing: _Writing | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._consumer.close()
        self._admin.close()

    def run(self, stopping: Callable[[], bool]) -> None:
        self.start()
        while not stopping():
            self.step()
            self.progress.is_current = self._has_reached_ends()
        self._finish()

    def start(self) -> None:
        hit("sink.before_claim")
        self._claim(self._new_partitions())
        hit("sink.after_claim")

    def step(self) -> bool:
        """One batch. False if there was nothing to write."""
        try:
            records = self._collect()
        except CorruptBatch:
            self._finish()  # what is before it is not lost
            raise
        hit("sink.after_read")
        is_due = time.monotonic() - self._looked_s > LOOK_AROUND_S
        if not records and not is_due:
            self._finish()
            return False
        prepared = self._sink.prepare(records)
        new = self._new_partitions()
        if new:
            self._finish()
            self._claim(new)
        moves = self._moves()
        if not moves:
            self._finish()
            self._sink.verify()
            return False
        self._write(Batch(records, moves, prepared))
        if len(records) < self.settings.batch_rows:
            self._finish()
        return True

    def _write(self, batch: Batch) -> None:
        """The database does not wait for what there is to tell about the batch before."""
        written, self._writing = self._writing, None
        failed = 0 if written is None else written.outcome.result()
        self._positions.update({partition: move.new for partition, move in batch.moves.items()})
        outcome = self._writer.submit(self._sink.write, batch)
        self._writing = _Writing(outcome, len(batch.records), dict(self._positions))
        if written is not None:
            self._report(written, failed)

    def _finish(self) -> None:
        """Wait for the batch that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._report(writing, writing.outcome.result())

    def _has_reached_ends(self) -> bool:
        is_idle = self._writing is None and not self._unread
        return is_idle and all(self._consumer.position(place) >= end for place, end in self._ends_at_start.items())

    def _new_partitions(self) -> set[TopicPartition]:
        """Those that are to be claimed. Refuses topics that were made again. Does not touch the database, where a batch
        may be being written.
        """
        self._looked_s = time.monotonic()
        found = self._admin.describe_topics(self.settings.topics)
        for name, topic in found.items():
            check_topic(name, self._topic_ids.get(name, ""), _text(topic.topic_id), OFFSETS_TABLE)
            self._topic_ids[name] = _text(topic.topic_id)
        partitions = {TopicPartition(name, number) for name, t in found.items() for number in range(len(t.partitions))}
        return partitions - self._positions.keys()

    def _claim(self, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        beginnings = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        if not self._positions:
            self._ends_at_start = ends
        # A partition that is added to a topic while it is read starts at its beginning.
        first = ends if self.settings.start == "latest" and not self._positions else beginnings
        starts = {place: Start(first[place], self._topic_ids[place.topic]) for place in partitions}
        claimed = self._sink.claim(starts)
        for place, stored in claimed.items():
            extent = Extent(self._topic_ids[place.topic], beginnings[place], max(ends[place], first[place]))
            check_claim(place, stored, extent, OFFSETS_TABLE)
            self._positions[place] = stored.next_offset
        self._consumer.assign(self._positions)
        for place, stored in claimed.items():
            self._consumer.seek(place, stored.next_offset)

    def _collect(self) -> Sequence[ConsumerRecord]:
        return self._collect_columns() if self._has_columns else self._collect_records()

    def _collect_records(self) -> list[ConsumerRecord]:
        wanted = self.settings.batch_rows
        records = self._consumer.poll(timeout_ms=self._first_poll_ms(), max_records=wanted)
        deadline_s = time.monotonic() + self.settings.batch_ms / 1000
        with suppress(CorruptBatch):  # what was read before is written; the next poll raises it again
            while records and len(records) < wanted and (left_s := deadline_s - time.monotonic()) > 0:
                records += self._consumer.poll(timeout_ms=left_s * 1000, max_records=wanted - len(records))
        return records

    def _collect_columns(self) -> RecordColumns:
        """All that has come is taken at once; what is more than a batch waits for the next one."""
        wanted = self.settings.batch_rows
        records = self._unread or RecordColumns(self._consumer.poll_columns(timeout_ms=self._first_poll_ms()))
        deadline_s = time.monotonic() + self.settings.batch_ms / 1000
        with suppress(CorruptBatch):  # as above
            while records and len(records) < wanted and (left_s := deadline_s - time.monotonic()) > 0:
                more = RecordColumns(self._consumer.poll_columns(timeout_ms=left_s * 1000))
                records = joined([records, more]) if more else records
        self._unread = records[wanted:]
        return records[:wanted]

    def _first_poll_ms(self) -> int:
        """Short while a batch is written: there may be nothing to read for long, and the write is to be reported."""
        return POLL_MS if self._writing is None else POLL_WHILE_WRITING_MS

    def _moves(self) -> dict[TopicPartition, Move]:
        unread = self._unread.first_offsets() if self._unread else {}
        now = {place: unread.get(place, self._consumer.position(place)) for place in self._positions}
        return {place: Move(old, now[place]) for place, old in self._positions.items() if now[place] != old}

    def _report(self, written: _Writing, failed: int) -> None:
        self.progress.dead_letters += failed
        position = ", ".join(f"{place}: {offset}" for place, offset in sorted(written.positions.items()))
        ends = self._consumer.end_offsets(written.positions)
        lag = sum(max(0, ends[place] - offset) for place, offset in written.positions.items())
        self.progress.committed(written.records, position, lag)
        self._consumer.commit_async(written.positions, _log_failure)


def _has_columns() -> bool:
    """Whether the extra `client` is there; a sink into SQLite needs nothing but Python."""
    return importlib.util.find_spec("pyarrow") is not None


def _text(topic_id: object) -> str:
    """Empty for brokers that give topics no id."""
    text = str(topic_id)
    return "" if set(text) <= {"0", "-"} else text


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        logger.info("the offsets for lag tools were not committed: %s", error)
