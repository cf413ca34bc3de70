"""Exactly-once pipelines: what each micro-batch did, attempt by attempt.

A sink commits the offsets of its input in the transaction of its output, each with a note of query and batch
(`core/sink_note`). So the offsets of its group name its queries. The history of its transactional id has every attempt,
also those that were aborted, and the records of `__consumer_offsets` say which batch an attempt was for: they carry the
producer id and the epoch of the transaction they belong to, and each attempt has an epoch of its own.

How far back this goes depends on compaction of the two topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer_records import iter_records
from oncelog.client.fetcher import RangeReader
from oncelog.client.visibility import IsolationLevel
from oncelog.coordinator.group.records import OffsetRecord, decode
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TopicPartition
from oncelog.core.sink_note import Note
from oncelog.monitoring.groups import Group
from oncelog.monitoring.offsets import partition_offsets
from oncelog.monitoring.transaction_history import (
    ABORTED,
    ABORTING,
    BEGAN,
    COMMITTED,
    COMMITTING,
    GREW,
    INITIALISED,
    TIMED_OUT,
    TransactionEvent,
    read_history,
)

OFFSETS_MAX: Final = 20_000
"""How many offsets at the end of each of the two topics are read."""

_OUTCOME_OF: Final = {COMMITTING: "committed", ABORTING: "aborted", TIMED_OUT: "timed out"}

Identity = tuple[int, int]
"""Producer id and epoch."""
Written = Mapping[TopicPartition, tuple[int, str]]
"""Offsets of a group, with their notes."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The last committed batch of a query, by the notes in its group."""

    group_id: str
    query_id: str
    batch_id: int
    writer: str | None
    """The transactional id; None if the note does not say, as those of plain writes."""
    lag: int

    def as_row(self) -> dict[str, Any]:
        return {
            "group": self.group_id,
            "query": self.query_id,
            "batch": self.batch_id,
            "writer": self.writer,
            "lag": self.lag,
        }


def pipeline_of(group: Group) -> Pipeline | None:
    """None for a group whose offsets have no notes of a sink."""
    notes = [note for one in group.partitions if (note := Note.from_text(one.note)) is not None]
    if not notes:
        return None
    last = max(notes, key=lambda note: note.batch_id)
    return Pipeline(group.description.group_id, last.query_id, last.batch_id, last.writer, group.lag)


@dataclass(slots=True)
class Attempt:
    """One transaction of a sink."""

    producer_id: int
    producer_epoch: int
    began_ms: int
    is_new_driver: bool
    """The id was initialised before it: a driver has started, and earlier ones are fenced."""
    outcome: str = "open"
    ended_ms: int | None = None
    partitions: tuple[TopicPartition, ...] = ()
    batch_id: int | None = None
    """None if the attempt ended before its offsets were written, or if they are gone."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets of the input, committed together with the output."""

    def as_row(self, now_ms: int) -> dict[str, Any]:
        end_ms = self.ended_ms if self.ended_ms is not None else now_ms
        return {
            "batch": self.batch_id,
            "outcome": self.outcome,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "began_ms": self.began_ms,
            "lasted_ms": max(end_ms - self.began_ms, 0),
            "new_driver": self.is_new_driver,
            "output": [str(one) for one in self.partitions if one.topic != GROUP_METADATA_TOPIC],
            "offsets": {str(place): offset for place, offset in sorted(self.offsets.items())},
        }


def attempts_of(events: Iterable[TransactionEvent]) -> list[Attempt]:
    """The transactions in the history of an id, in order. One whose beginning is gone is left out."""
    attempts: list[Attempt] = []
    current: Attempt | None = None
    is_new_driver = False
    for event in events:
        if event.what == INITIALISED:
            is_new_driver, current = True, None
        elif event.what == BEGAN:
            current = Attempt(event.producer_id, event.producer_epoch, event.time_ms, is_new_driver)
            current.partitions = event.partitions
            attempts.append(current)
            is_new_driver = False
        elif current is not None:
            _follow(current, event)
    return attempts


def _follow(attempt: Attempt, event: TransactionEvent) -> None:
    if event.what == GREW:
        attempt.partitions = event.partitions
    elif event.what in _OUTCOME_OF:
        attempt.outcome = _OUTCOME_OF[event.what]
        attempt.partitions = event.partitions or attempt.partitions
        attempt.ended_ms = event.time_ms
    elif event.what in (COMMITTED, ABORTED):
        attempt.ended_ms = event.time_ms


def join_offsets(attempts: Iterable[Attempt], written: Mapping[Identity, Written]) -> None:
    """Give attempts the batch and the offsets that were written with their producer id and epoch."""
    for attempt in attempts:
        found = written.get((attempt.producer_id, attempt.producer_epoch), {})
        attempt.offsets = {place: offset for place, (offset, _) in found.items()}
        notes = [note for _, text in found.values() if (note := Note.from_text(text)) is not None]
        attempt.batch_id = max((note.batch_id for note in notes), default=None)


def read_attempts(admin: Admin, pipeline: Pipeline) -> list[Attempt]:
    """Oldest first; none for a pipeline whose notes do not name its transactional id."""
    if pipeline.writer is None:
        return []
    attempts = attempts_of(read_history(admin, pipeline.writer, offsets_max=OFFSETS_MAX))
    join_offsets(attempts, _written_offsets(admin, pipeline.group_id))
    return attempts


def _written_offsets(admin: Admin, group_id: str) -> dict[Identity, dict[TopicPartition, tuple[int, str]]]:
    """Offsets and notes of the group in transactions, committed or not, by who wrote them."""
    info = admin.list_topics(internal=True).get(GROUP_METADATA_TOPIC)
    if info is None:
        return {}
    place = TopicPartition(GROUP_METADATA_TOPIC, coordinator_partition(group_id, len(info.partitions)))
    offsets = partition_offsets(admin, [place])[place]
    start = max(offsets.start, offsets.end - OFFSETS_MAX)
    written: dict[Identity, dict[TopicPartition, tuple[int, str]]] = {}
    with RangeReader(admin, isolation=IsolationLevel.READ_UNCOMMITTED) as reader:
        for chunk in reader.read(*place, start, offsets.end):
            for batch in chunk.batches:
                header = batch[1]
                if not header.is_transactional:
                    continue
                own = written.setdefault((header.producer_id, header.producer_epoch), {})
                for record in iter_records(chunk._replace(batches=[batch])):
                    found = decode(record.key or b"", record.value, record.offset)
                    if isinstance(found, OffsetRecord) and found.group_id == group_id and found.offset is not None:
                        own[found.partition] = (found.offset.offset, found.offset.metadata)
    return written
