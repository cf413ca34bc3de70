"""Whether a micro-batch still has to be written: what the group's committed offsets say about it. Pure.

Theory of operation. Every transaction of the sink commits the end offsets of its batch for the sink's group, and with
each offset the note `{"queryId": ..., "batchId": ...}`. Data, offsets and note become visible together or not at all,
so the note is the truth about what was written, whatever Spark's checkpoint remembers:

    the note of this query is older than the batch   write it
    it is this batch                                 it was written and Spark did not get to record that: skip it
    it is newer                                      the checkpoint is an old copy: skip what lies behind the
                                                     committed offsets, refuse what would reach past them
    there is no note of this query                   a new checkpoint: write if it starts exactly where the group
                                                     stands (or the group is new), else refuse and say how to choose

A source without Kafka offsets has its batch id committed as the offset of a stand-in partition, with the same note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from oncelog.client.offsets import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.spark.offsets import Offsets
from oncelog.spark.progress import MicroBatch


class NewCheckpoint(Enum):
    """What to do when a new checkpoint does not start where the group stands."""

    REFUSE = "refuse"
    REPROCESS = "reprocess"


class Verdict(Enum):
    WRITE = "write"
    SKIP = "skip"


class CannotResume(RuntimeError):
    """The checkpoint and the group's committed offsets contradict each other; the text says how to choose."""


@dataclass(frozen=True, slots=True)
class Note:
    """Stored as the metadata of every offset the sink commits."""

    query_id: str
    batch_id: int

    def to_text(self) -> str:
        return json.dumps({"queryId": self.query_id, "batchId": self.batch_id}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Note | None:
        try:
            value = json.loads(text)
            return cls(str(value["queryId"]), int(value["batchId"]))
        except (ValueError, KeyError, TypeError):
            return None


Committed = Mapping[TopicPartition, OffsetAndMetadata]


def offsets_to_commit(batch: MicroBatch, stand_in: TopicPartition | None) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the transaction of this batch commits for the group."""
    note = Note(batch.query_id, batch.batch_id).to_text()
    if batch.has_kafka_source:
        return {partition: OffsetAndMetadata(offset, note) for partition, offset in batch.end.items()}
    if stand_in is None:
        raise CannotResume(
            "the query has no Kafka source, so its batch ids are kept under the output topic: give the option topic"
        )
    return {stand_in: OffsetAndMetadata(batch.batch_id, note)}


def judge(
    batch: MicroBatch,
    committed: Committed,
    *,
    stand_in: TopicPartition | None,
    group: str,
    on_new_checkpoint: NewCheckpoint,
) -> Verdict:
    """Write or skip; raises CannotResume when either would lose or repeat input."""
    notes = [note for value in committed.values() if (note := Note.from_text(value.metadata)) is not None]
    own = max((note.batch_id for note in notes if note.query_id == batch.query_id), default=None)
    if own is None:
        _check_new_checkpoint(batch, committed, stand_in, group, on_new_checkpoint)
        return Verdict.WRITE
    if batch.batch_id > own:
        return Verdict.WRITE
    if batch.has_kafka_source:
        if _reaches_past(batch.end, committed):
            raise CannotResume(_old_copy(batch, own, group))
    elif batch.batch_id < own:
        raise CannotResume(_old_copy(batch, own, group))
    return Verdict.SKIP


def _check_new_checkpoint(
    batch: MicroBatch, committed: Committed, stand_in: TopicPartition | None, group: str, policy: NewCheckpoint
) -> None:
    if policy is NewCheckpoint.REPROCESS:
        return
    if not batch.has_kafka_source:
        if stand_in in committed:
            raise CannotResume(_new_checkpoint(batch, group, "the source has no Kafka offsets to compare"))
        return
    concerned = {p: committed[p].offset for p in batch.end if p in committed}
    if not concerned:
        return
    if batch.start is None:
        raise CannotResume(_new_checkpoint(batch, group, "the first offsets of the source cannot be seen"))
    for partition, offset in sorted(concerned.items()):
        start = batch.start.get(partition)
        if start is not None and start != offset:
            raise CannotResume(
                _new_checkpoint(batch, group, f"the query starts {partition} at {start}, the group stands at {offset}")
            )


def _reaches_past(end: Offsets, committed: Committed) -> bool:
    return any(partition not in committed or offset > committed[partition].offset for partition, offset in end.items())


def _new_checkpoint(batch: MicroBatch, group: str, why: str) -> str:
    return (
        f"checkpoint {batch.checkpoint} is new to group {group}, which another query has written for: {why}. "
        "Going on would repeat or lose input. Choose one: keep the old checkpoint; read with "
        f'.option("startingOffsets", "committed").option("kafka.group.id", "{group}") to continue where the group '
        'stands; or pass on_new_checkpoint="reprocess" to write this input again on purpose.'
    )


def _old_copy(batch: MicroBatch, own: int, group: str) -> str:
    return (
        f"checkpoint {batch.checkpoint} is about to run batch {batch.batch_id}, but group {group} has committed batch "
        f"{own} of this very query: the checkpoint is an older copy. Restore the newest one, or start a new checkpoint "
        f'with .option("startingOffsets", "committed").option("kafka.group.id", "{group}").'
    )
