"""Reads topics into a sink, until it is told to stop.

1. Claim every partition: this ends the rights of an older instance, and tells where to go on.
2. Check that the topic still has what comes next; seek there. The group's offsets are not asked.
3. Read committed records until the batch is full or has waited long enough.
4. Check that the topics are still those that were claimed: they may have been deleted and made again.
5. Write rows and offsets in one transaction of the database.
6. Commit the offsets to the group too, for tools that show lag. Nothing depends on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Self

from oncelog.client import Admin, Consumer, ConsumerRecord, TopicPartition
from oncelog.connect.database_sink import OFFSETS_TABLE
from oncelog.connect.progress import Progress
from oncelog.connect.settings import SinkSettings
from oncelog.connect.sink import Batch, Move, Sink, Start
from oncelog.connect.sink_resume import Extent, check_claim, check_topic
from oncelog.core.failpoints import hit

POLL_MS: Final = 200
LOOK_AROUND_S: Final = 10.0
"""How often an idle sink looks for new partitions, and stores offsets that moved over aborted records."""
FETCH_BYTES: Final = 8 * 1024 * 1024
GROUP_PREFIX: Final = "connect-"
logger = logging.getLogger("oncelog.connect")


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
            }
        )
        self._positions: dict[TopicPartition, int] = {}
        self._ends_at_start: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._looked_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._admin.close()

    def run(self, stopping: Callable[[], bool]) -> None:
        self.start()
        while not stopping():
            self.step()
            self.progress.is_current = self._has_reached_ends()

    def start(self) -> None:
        hit("sink.before_claim")
        self._look_around()
        hit("sink.after_claim")

    def step(self) -> bool:
        """One batch. False if there was nothing to write."""
        records = self._collect()
        hit("sink.after_read")
        is_due = time.monotonic() - self._looked_s > LOOK_AROUND_S
        if not records and not is_due:
            return False
        self._look_around()
        moves = self._moves()
        if not moves:
            return False
        failed = self._sink.write(Batch(records, moves))
        self._positions.update({partition: move.new for partition, move in moves.items()})
        self._report(len(records), failed)
        return True

    def _has_reached_ends(self) -> bool:
        return all(self._consumer.position(place) >= end for place, end in self._ends_at_start.items())

    def _look_around(self) -> None:
        """Claim partitions that are new; refuse topics that were made again."""
        self._looked_s = time.monotonic()
        found = self._admin.describe_topics(self.settings.topics)
        for name, topic in found.items():
            check_topic(name, self._topic_ids.get(name, ""), _text(topic.topic_id), OFFSETS_TABLE)
            self._topic_ids[name] = _text(topic.topic_id)
        partitions = {TopicPartition(name, number) for name, t in found.items() for number in range(len(t.partitions))}
        new = partitions - self._positions.keys()
        if new:
            self._claim(new)

    def _claim(self, partitions: Iterable[TopicPartition]) -> None:
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

    def _collect(self) -> list[ConsumerRecord]:
        wanted = self.settings.batch_rows
        records = self._consumer.poll(timeout_ms=POLL_MS, max_records=wanted)
        deadline_s = time.monotonic() + self.settings.batch_ms / 1000
        while records and len(records) < wanted and (left_s := deadline_s - time.monotonic()) > 0:
            records += self._consumer.poll(timeout_ms=left_s * 1000, max_records=wanted - len(records))
        return records

    def _moves(self) -> dict[TopicPartition, Move]:
        now = {place: self._consumer.position(place) for place in self._positions}
        return {place: Move(old, now[place]) for place, old in self._positions.items() if now[place] != old}

    def _report(self, records: int, failed: int) -> None:
        self.progress.dead_letters += failed
        position = ", ".join(f"{place}: {offset}" for place, offset in sorted(self._positions.items()))
        lag = sum(self._consumer.lag(place) for place in self._positions)
        self.progress.committed(records, position, lag)
        self._consumer.commit_async(dict(self._positions), _log_failure)


def _text(topic_id: object) -> str:
    """Empty for brokers that give topics no id."""
    text = str(topic_id)
    return "" if set(text) <= {"0", "-"} else text


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        logger.info("the offsets for lag tools were not committed: %s", error)
