"""Exactly-once pipelines: what each micro-batch did, attempt by attempt.

A sink commits the offsets of its input in the transaction of its output, each with a note of query and batch
(`core/sink_note`). So the offsets of its group name its queries. The history of its transactional id has every attempt,
also those that were aborted, and the records of `__consumer_offsets` say which batch an attempt was for: they carry the
producer id and the epoch of the transaction they belong to, and each attempt has an epoch of its own.

How far back this goes depends on compaction of the two topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Final

from oncelog.client.admin import Admin
from oncelog.client.consumer_records import iter_records
from oncelog.coordinator.group.records import OffsetRecord, decode
from oncelog.core.dataclass import dataclass
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TopicPartition
from oncelog.core.sink_note import Note
from oncelog.monitoring.groups import Group
from oncelog.monitoring.offsets import partition_offsets
from oncelog.monitoring.range_reader import reader_of
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

TAKE_OVER_MS: Final = 2_000
"""A client that fences another one asks again within this time, and is initialised then: its pauses end at 1 s."""
STOPPED_AFTER_MS: Final = 60_000
STOPPED_PAUSES: Final = 10
"""A query with input that has begun nothing for a minute, and ten times as long as it usually pauses, has stopped."""
OWN_ABORT: Final = "its driver aborted it"
TAKEN_OVER: Final = "a new driver took over"

_WHY_FAILED: Final = {ABORTING: OWN_ABORT, TIMED_OUT: "it took longer than its time-out"}
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
    offsets_ms: int | None = None
    """When it began to write its offsets: the output was written by then."""
    decided_ms: int | None = None
    ended_ms: int | None = None
    why_failed: str = ""
    aborted_by_epoch: int = -1
    """The epoch of the record of its abort: that of the attempt, unless it was fenced or bumps epochs itself."""
    taken_over_ms: int | None = None
    """When another driver was initialised, if that is what ended it."""
    partitions: tuple[TopicPartition, ...] = ()
    batch_id: int | None = None
    """None if the attempt ended before its offsets were written, or if they are gone."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets of the input, committed together with the output."""

    def as_row(self, now_ms: int) -> dict[str, Any]:
        end_ms = self.ended_ms if self.ended_ms is not None else now_ms
        moments = (self.began_ms, self.offsets_ms, self.decided_ms, self.ended_ms)
        names = ("write_ms", "offsets_ms", "commit_ms")
        parts = {name: _between(*ends) for name, ends in zip(names, pairwise(moments), strict=True)}
        return {
            "batch": self.batch_id,
            "outcome": self.outcome,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "began_ms": self.began_ms,
            "lasted_ms": max(end_ms - self.began_ms, 0),
            **parts,
            "why_failed": self.why_failed or None,
            "new_driver": self.is_new_driver,
            "output": [str(one) for one in self.partitions if one.topic != GROUP_METADATA_TOPIC],
            "offsets": {str(place): offset for place, offset in sorted(self.offsets.items())},
        }


def _between(first_ms: int | None, last_ms: int | None) -> int | None:
    return None if first_ms is None or last_ms is None else max(last_ms - first_ms, 0)


def attempts_of(events: Iterable[TransactionEvent]) -> list[Attempt]:
    """The transactions in the history of an id, in order. One whose beginning is gone is left out."""
    attempts: list[Attempt] = []
    current: Attempt | None = None
    is_new_driver = False
    for event in events:
        if event.what == INITIALISED:
            if attempts and not is_new_driver and _is_taken_over(attempts[-1], event):
                attempts[-1].why_failed, attempts[-1].taken_over_ms = TAKEN_OVER, event.time_ms
            is_new_driver, current = True, None
        elif event.what == BEGAN:
            current = Attempt(event.producer_id, event.producer_epoch, event.time_ms, is_new_driver)
            attempts.append(current)
            _add_partitions(current, event)
            is_new_driver = False
        elif current is not None:
            _follow(current, event)
    return attempts


def _is_taken_over(attempt: Attempt, initialised: TransactionEvent) -> bool:
    """Whether an abort was the first half of this initialisation.

    The coordinator fences with a higher epoch. Since transaction.version 2 an abort by the driver itself has one too:
    then the two are told apart by how soon the initialisation follows.
    """
    if attempt.outcome != "aborted" or attempt.aborted_by_epoch == attempt.producer_epoch or attempt.ended_ms is None:
        return False
    return initialised.time_ms - attempt.ended_ms <= TAKE_OVER_MS


def _follow(attempt: Attempt, event: TransactionEvent) -> None:
    if event.what == GREW:
        _add_partitions(attempt, event)
    elif event.what in _OUTCOME_OF:
        attempt.outcome = _OUTCOME_OF[event.what]
        attempt.why_failed = _WHY_FAILED.get(event.what, "")
        attempt.aborted_by_epoch = event.producer_epoch
        attempt.partitions = event.partitions or attempt.partitions
        attempt.decided_ms = attempt.ended_ms = event.time_ms
    elif event.what in (COMMITTED, ABORTED):
        attempt.ended_ms = event.time_ms


def _add_partitions(attempt: Attempt, event: TransactionEvent) -> None:
    attempt.partitions = event.partitions
    if attempt.offsets_ms is None and any(one.topic == GROUP_METADATA_TOPIC for one in event.partitions):
        attempt.offsets_ms = event.time_ms


def state_of(attempts: Sequence[Attempt], now_ms: int, *, has_input: bool = False) -> dict[str, Any]:
    """What the sink does now, and for how long. A cluster sees transactions, not drivers: `stopped` is a conclusion."""
    if not attempts:
        return {"state": "unknown", "for_ms": None}
    last = attempts[-1]
    if last.outcome == "open":
        return {"state": "in a batch", "for_ms": max(now_ms - last.began_ms, 0)}
    since_ms = last.ended_ms if last.ended_ms is not None else last.began_ms
    state = "waiting" if last.outcome == "committed" else "failed"
    if last.taken_over_ms is not None:
        state, since_ms = "fenced by another driver", last.taken_over_ms
    if has_input and now_ms - since_ms > max(STOPPED_AFTER_MS, STOPPED_PAUSES * _usual_pause_ms(attempts)):
        state = "stopped"
    return {"state": state, "for_ms": max(now_ms - since_ms, 0)}


def _usual_pause_ms(attempts: Sequence[Attempt]) -> int:
    """The median time from the end of one attempt to the beginning of the next."""
    pauses = sorted(
        max(after.began_ms - before.ended_ms, 0) for before, after in pairwise(attempts) if before.ended_ms is not None
    )
    return pauses[len(pauses) // 2] if pauses else 0


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
    with reader_of(admin, check_crcs=True) as reader:
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
