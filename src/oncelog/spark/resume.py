"""Whether a micro-batch still has to be written: what the group's committed offsets say about it. Pure.

Theory of operation. Every transaction of the sink commits the end offsets of its batch for the sink's group, and with
each offset a note: the query, the batch and its plan. Data, offsets and note become visible together or not at all, so
the note is the truth about what was written, whatever Spark's checkpoint remembers:

    the newest note of this query          and the batch                                       then
    is of this batch, of the same plan                                                         skip: it was written, and
                                                                                               Spark did not note that
    is of an earlier batch                 begins where the group stands                       write
    is of another batch or plan            lies behind where the query has come, by its own    skip
                                           notes, and the query keeps no state
                                           reaches beyond, or cannot be compared               refuse: the checkpoint
                                                                                               is an old copy
    there is none, the group is new        was planned by an earlier run, after others that    refuse: the group that
                                           were done and noted                                 knew of it is gone
                                           is new, or the very first                           write
    there is none, the group is another's  is the query's first and begins where the group     write
                                           stands
    there is none, and the group is not    is the query's first, and was about to be           refuse: it may have been
    as it was before the first commit      committed before                                    written
                                           is its first and does not                           refuse: a new checkpoint
                                           is a later one                                      refuse: two queries share
                                                                                               the group
    any, and another query's lies over it  reads on in that partition                          refuse: the same
    is of an earlier batch, or there is    was run before, and nothing is left where its       refuse: it may have been
    none                                   commit would have left a note                       written
    any, and another query's lies          begins there for the first time, and where the      write
    elsewhere                              group stands
                                           begins there for the first time, elsewhere          refuse: the same
    any, and a consumer or a tool has      does not begin where it has                         refuse: the offsets were
    committed an offset                                                                        changed

The first transaction of a query commits all its positions, so that whoever writes one of them later is another query.
Later ones commit the first of them and what has moved, and from time to time all, so that none expires while the others
are in use.
A query that is about to write over notes of another one has the transactional ids in them fenced first.
The sink looks again right before it commits: a group whose offsets have moved since the verdict is judged anew.

Offsets compare batches only when all sources have Kafka's and no partition is read at two positions. Otherwise only
plans and the numbers of batches do, and a batch is written when it is the next one. What a query with state gives
depends on how its input was cut into batches, so that another cut cannot be skipped even where its input was read.

A source without Kafka offsets has its batch id committed as an offset of the output topic (`batch_id_partition`), with
the same note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from enum import Enum

from oncelog.client import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.core.sink_note import WRITER_CHARACTERS_MAX, Note
from oncelog.spark.first_commit import mark_of
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.offsets import Offsets, to_wire
from oncelog.spark.planning import bounds_number, ends_of_bounds


class NewCheckpoint(Enum):
    """What to do when a new checkpoint does not start where the group stands."""

    REFUSE = "refuse"
    REPROCESS = "reprocess"


class Verdict(Enum):
    WRITE = "write"
    SKIP = "skip"


class CannotResume(RuntimeError):
    """The checkpoint and the group's committed offsets contradict each other; the text says how to choose."""


Committed = Mapping[TopicPartition, OffsetAndMetadata]


def offsets_to_commit(
    batch: MicroBatch, batch_id_partition: TopicPartition | None, writer: str | None = None, tables: str | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the transaction of this batch commits for the group.

    `writer` is the sink's transactional id; `tables` is what was read beside the streams, and only one note has it.
    """
    one = min(batch.end) if batch.has_kafka_source else batch_id_partition

    def note(place: TopicPartition) -> str:
        ends, read = batch.uneven_end.get(place, ()), tables if place == one else None
        return Note(batch.query_id, batch.batch_id, batch.planned_ms, ends, writer=writer, tables=read).to_text()

    if batch.has_kafka_source:
        return {p: OffsetAndMetadata(offset, note(p)) for p, offset in batch.end.items()}
    if batch_id_partition is None:
        raise CannotResume(
            "the query has no Kafka source, so its batch ids are kept under the output topic: give the option topic"
        )
    return {batch_id_partition: OffsetAndMetadata(batch.batch_id, note(batch_id_partition))}


def committed_places(batch: MicroBatch, batch_id_partition: TopicPartition | None) -> Collection[TopicPartition]:
    """What a batch commits offsets for."""
    if batch.has_kafka_source:
        return batch.end.keys()
    return () if batch_id_partition is None else (batch_id_partition,)


def changed_offsets(
    batch: MicroBatch, offsets: Committed, committed: Committed
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Those of a batch's offsets that the group does not have yet, and those that must have a note of this batch."""
    noted = _noted_places(batch, offsets)
    return {p: offset for p, offset in offsets.items() if p in noted or _is_new(offset, committed.get(p))}


def _noted_places(batch: MicroBatch, places: Collection[TopicPartition]) -> set[TopicPartition]:
    """Where every commit of this batch leaves a note, of what a batch commits offsets for: in all that it moves, and in
    the first one, if it moves nothing."""
    start, uneven_start, uneven_end = batch.start or {}, batch.uneven_start, batch.uneven_end
    moved = {p for p, end in batch.end.items() if (start.get(p), uneven_start.get(p)) != (end, uneven_end.get(p))}
    return {min(places), *moved}


def _is_new(offset: OffsetAndMetadata, before: OffsetAndMetadata | None) -> bool:
    if before is None or before.offset != offset.offset:
        return True
    old, new = Note.from_text(before.metadata), Note.from_text(offset.metadata)
    return old is None or new is None or (old.query_id, old.ends) != (new.query_id, new.ends)


def check_tables(batch: MicroBatch, committed: Committed, tables: str) -> None:
    """Raise CannotResume for a batch that was committed and would read other tables now, run again for its state."""
    notes = (Note.from_text(value.metadata) for value in committed.values())
    own = (note for note in notes if note and (note.query_id, note.batch_id) == (batch.query_id, batch.batch_id))
    check_tables_read(batch, next((note.tables for note in own if note.tables is not None), None), tables)


def check_tables_read(batch: MicroBatch, before: str | int | None, tables: str) -> None:
    """As `check_tables`, by what was kept of the tables before: the text, its number, or nothing."""
    if before is not None and before not in (tables, bounds_number(tables)):
        raise CannotResume(_other_tables(batch, None if isinstance(before, int) else ends_of_bounds(before)))


def judge(
    batch: MicroBatch,
    committed: Committed,
    *,
    batch_id_partition: TopicPartition | None,
    group: str,
    on_new_checkpoint: NewCheckpoint,
    keeps_state: Callable[[], bool],
    marks_left: Callable[[], Collection[str]],
    has_committed: bool = False,
    tried_on: Committed | None = None,
) -> Verdict:
    """Write or skip; raises CannotResume when either would lose or repeat input.

    `marks_left` are those of `first_commit`. `has_committed`: this run of the query has committed a batch, so that a
    note of its own must be there. `tried_on`: what the group had when this run tried to commit this very batch.
    """
    own = _newest_own(batch, committed)
    places = committed_places(batch, batch_id_partition)
    if own is not None or has_committed:
        _check_not_shared(batch, committed, places, group)
    is_untold = _is_untold(batch, committed, places, is_known=own is not None, tried_on=tried_on)
    if own is None:
        if on_new_checkpoint is NewCheckpoint.REFUSE:
            if batch.is_first_to_commit:
                _check_never_committed(batch, committed, places, group, marks_left())
            _check_new_checkpoint(batch, committed, batch_id_partition, group)
            if is_untold and not batch.is_first_to_commit:
                raise CannotResume(_no_trace(batch, committed, places, group))
        return Verdict.WRITE
    behind = _lies_behind(batch.end, committed)
    if _is_noted(batch, own, committed, behind=behind):
        return Verdict.SKIP
    mismatch = _start_mismatch(batch, committed, on_new_checkpoint)
    is_next = _is_next(batch, own)
    if is_next and mismatch is None:
        if is_untold and on_new_checkpoint is NewCheckpoint.REFUSE:
            raise CannotResume(_no_trace(batch, committed, places, group))
        return Verdict.WRITE
    if batch.offsets_tell_all and behind and _has_read(batch, committed) and not keeps_state():
        return Verdict.SKIP
    if is_next and mismatch is not None and _start_mismatch(batch, committed, NewCheckpoint.REPROCESS) is None:
        raise CannotResume(_set_by_another(batch, committed, *mismatch, group, is_untold=is_untold))
    raise CannotResume(_old_copy(batch, own, committed, group, None if mismatch is None else mismatch[1]))


def former_id(batch: MicroBatch, committed: Committed, transactional_id: str) -> str | None:
    """The transactional id under which the query has committed before, if it was another one."""
    own = _newest_own(batch, committed)
    if own is None or own.writer is None or own.writer == transactional_id[:WRITER_CHARACTERS_MAX]:
        return None
    # One that was cut is no id.
    return own.writer if len(own.writer) < WRITER_CHARACTERS_MAX else None


def writers_before(
    batch: MicroBatch, committed: Committed, batch_id_partition: TopicPartition | None, transactional_id: str
) -> set[str]:
    """The transactional ids of other queries whose positions the batch is about to write over."""
    places = committed_places(batch, batch_id_partition)
    notes = (Note.from_text(committed[place].metadata) for place in places if place in committed)
    writers = {note.writer for note in notes if note is not None and note.query_id != batch.query_id}
    # One that was cut is no id.
    whole = {writer for writer in writers if writer is not None and len(writer) < WRITER_CHARACTERS_MAX}
    return whole - {transactional_id}


def _newest_own(batch: MicroBatch, committed: Committed) -> Note | None:
    notes = (Note.from_text(value.metadata) for value in committed.values())
    own = [note for note in notes if note is not None and note.query_id == batch.query_id]
    return max(own, key=lambda note: note.batch_id, default=None)


def _is_next(batch: MicroBatch, own: Note) -> bool:
    """Batches of an old copy that were skipped leave a gap in the numbers, which offsets can bridge."""
    if batch.offsets_tell_all:
        return batch.batch_id > own.batch_id
    return batch.batch_id == own.batch_id + 1


def _lies_behind(end: Offsets, committed: Committed) -> bool:
    return all(partition in committed and offset <= committed[partition].offset for partition, offset in end.items())


def _is_noted(batch: MicroBatch, own: Note, committed: Committed, *, behind: bool) -> bool:
    """Whether the newest note is of this very batch, wherever others have set the group since."""
    if own.batch_id != batch.batch_id or own.plan not in (batch.planned_ms, None):
        return False
    # Without the plan, as in notes of earlier versions, the batch may be another one of that number.
    if own.plan is None:
        return behind
    return _lies_behind({p: end for p, end in batch.end.items() if _is_own(batch, committed.get(p))}, committed)


def _has_read(batch: MicroBatch, committed: Committed) -> bool:
    """Whether the offsets of all that the batch reads are this query's own, and of what it reads now."""
    start = batch.start or {}
    read = {p for p, offset in batch.end.items() if start.get(p) != offset}
    return not read & batch.set_back and all(_is_own(batch, committed[p]) for p in read)


def _is_own(batch: MicroBatch, committed: OffsetAndMetadata | None) -> bool:
    note = None if committed is None else Note.from_text(committed.metadata)
    return note is not None and note.query_id == batch.query_id


def _start_mismatch(
    batch: MicroBatch, committed: Committed, policy: NewCheckpoint
) -> tuple[TopicPartition, str] | None:
    """Which partition the batch does not begin where the group stands, in words too. None: it continues everywhere.

    What several sources had come to is not known from notes of earlier versions.
    """
    for partition in sorted((batch.end.keys() & committed.keys()) - batch.set_back):
        note = Note.from_text(committed[partition].metadata)
        if policy is NewCheckpoint.REPROCESS and (note is None or note.query_id != batch.query_id):
            continue
        start = (batch.start or {}).get(partition)
        if start != committed[partition].offset:
            return partition, _positions(partition, start, committed[partition].offset)
        starts = batch.uneven_start.get(partition, ())
        ends = () if note is None else note.ends
        if starts != ends and (note is None or note.plan is not None):
            both = f"{_listed(starts or (start,))}, they had come to {_listed(ends or (start,))}"
            return partition, f"several sources of the query start {partition} at {both}"
    return None


def _check_not_shared(batch: MicroBatch, committed: Committed, places: Collection[TopicPartition], group: str) -> None:
    """Raise CannotResume for a position of this query that another one has written since."""
    own = set(places) - (batch.appeared - batch.set_back)
    for partition in sorted(own & committed.keys()):
        note = Note.from_text(committed[partition].metadata)
        if note is not None and note.query_id != batch.query_id:
            raise CannotResume(_shared(batch, partition, committed[partition].offset, note, group))


def _is_untold(
    batch: MicroBatch,
    committed: Committed,
    places: Collection[TopicPartition],
    *,
    is_known: bool,
    tried_on: Committed | None,
) -> bool:
    """Whether a batch without a note may have had one: it was run before, and nothing is left where it would be.

    Where an older note of the query is, the batch was not committed; nor where there is no offset, if there was none
    before and nothing else was deleted. `is_known`: the group has notes of the query at all, so that not all were.
    """
    if not batch.planned_before and tried_on is None:
        return False
    had: Collection[TopicPartition] = batch.end.keys()
    if tried_on is not None:
        had = tried_on.keys()
    elif is_known:
        had = (batch.start or {}).keys() - batch.appeared
    noted, is_whole = _noted_places(batch, places), all(p in committed for p in places if p in had)
    return not any(_is_own(batch, committed[p]) if p in committed else is_whole and p not in had for p in noted)


def _check_new_checkpoint(
    batch: MicroBatch, committed: Committed, batch_id_partition: TopicPartition | None, group: str
) -> None:
    if batch.batch_id > 0:
        _check_not_shared(batch, committed, committed_places(batch, batch_id_partition), group)
    if not batch.has_kafka_source and batch_id_partition is not None and batch_id_partition in committed:
        if batch.batch_id > 0:
            offset = committed[batch_id_partition].offset
            why = f"it has {offset} in {batch_id_partition}, where the batch ids of the query are kept"
            raise CannotResume(
                _set_by_another(batch, committed, batch_id_partition, why, group, is_untold=batch.planned_before)
            )
        why = "the source has no Kafka offsets to compare"
        raise CannotResume(_new_checkpoint(batch, committed, group, why))
    concerned = sorted(batch.end.keys() & committed.keys())
    if not concerned:
        was_noted = batch_id_partition is not None or not batch.is_first_to_read
        if batch.planned_before and batch.batch_id > 0 and was_noted:
            raise CannotResume(_forgotten(batch, group))
        return
    if batch.start is None:
        why = "the first offsets of the source cannot be seen"
        raise CannotResume(_new_checkpoint(batch, committed, group, why))
    for partition in concerned:
        start, stands = batch.start.get(partition), committed[partition]
        note = Note.from_text(stands.metadata)
        if note is not None and note.ends:
            raise CannotResume(_read_twice(batch, group, f"had come to {_listed(note.ends)} in {partition}"))
        if partition in batch.uneven_start:
            starts = _listed(batch.uneven_start[partition])
            raise CannotResume(_read_twice(batch, group, f"start {partition} at {starts}"))
        if start != stands.offset:
            why = _positions(partition, start, stands.offset)
            if batch.is_first_to_commit:
                raise CannotResume(_new_checkpoint(batch, committed, group, why))
            is_untold = batch.planned_before
            raise CannotResume(_set_by_another(batch, committed, partition, why, group, is_untold=is_untold))


def _check_never_committed(
    batch: MicroBatch,
    committed: Committed,
    places: Collection[TopicPartition],
    group: str,
    marks: Collection[str],
) -> None:
    """Raise CannotResume for a first batch without a note that may have had one."""
    if not marks or mark_of(group, committed, places) in marks:
        return
    notes = ((place, Note.from_text(committed[place].metadata)) for place in sorted(places) if place in committed)
    other = next(((place, note) for place, note in notes if note is not None), None)
    raise CannotResume(_not_as_it_was(batch, group, *(other or (None, None))))


def _listed(offsets: tuple[int, ...]) -> str:
    return " and ".join(str(offset) for offset in offsets)


def _positions(partition: TopicPartition, start: int | None, stands: int) -> str:
    begins = "from its beginning" if start is None else f"at {start}"
    return f"the query starts {partition} {begins}, the group stands at {stands}"


def _to_continue(batch: MicroBatch, committed: Committed, group: str) -> str:
    stands = json.dumps(to_wire({p: committed[p].offset for p in batch.end if p in committed}))
    return (
        f'.option("startingOffsets", "committed").option("kafka.group.id", "{group}") to continue where the group '
        f"stands (Spark's own kafka source has no such value: give it startingOffsets as JSON, {stands})"
    )


def _new_checkpoint(batch: MicroBatch, committed: Committed, group: str, why: str) -> str:
    how = (
        f"delete this one, which keeps where it began, and read with {_to_continue(batch, committed, group)}; "
        if batch.has_kafka_source
        else ""
    )
    return (
        f"checkpoint {batch.checkpoint} is new to group {group}, which another query has written for: {why}. "
        f"Going on would repeat or lose input. Choose one: keep the old checkpoint; {how}"
        'or pass on_new_checkpoint="reprocess" to write this input again on purpose.'
    )


def _read_twice(batch: MicroBatch, group: str, what: str) -> str:
    return (
        f"checkpoint {batch.checkpoint} is new to group {group}, and several sources of one query {what}: a group has "
        "one offset for a partition, so it cannot tell where each source is to go on. Choose one: keep the old "
        "checkpoint; or delete this one, give each source its startingOffsets as JSON and pass "
        'on_new_checkpoint="reprocess", which writes what lies before those of the others again.'
    )


def _written_by(note: Note) -> str:
    return "" if note.writer is None else f" (transactional id {note.writer})"


def _shared(batch: MicroBatch, partition: TopicPartition, stands: int, note: Note, group: str) -> str:
    return (
        f"two queries use group {group}: this is query {batch.query_id} of checkpoint {batch.checkpoint}, which has "
        f"written its position in {partition} there, and query {note.query_id}{_written_by(note)} has written another "
        f"over it, at offset {stands}. A group belongs to one query, or each takes the other's offsets for its own: "
        "stop one of them and give it a group_id of its own. If that is this one, look whether its output has batch "
        f'{batch.batch_id}, and if not, pass on_new_checkpoint="reprocess" as well. If the other query has replaced '
        "this one for good, let this one end"
    )


def _set_by_another(
    batch: MicroBatch, committed: Committed, partition: TopicPartition, why: str, group: str, *, is_untold: bool
) -> str:
    this = f"query {batch.query_id} of checkpoint {batch.checkpoint}"
    note = Note.from_text(committed[partition].metadata)
    if note is not None:
        return (
            f"two queries use group {group}: this is {this}, which begins with {partition} now, and query "
            f"{note.query_id}{_written_by(note)} has written its position there: {why}. A group belongs to one "
            "query, or each takes the other's offsets for its own: stop one of them and give it a group_id of its own. "
            'If the other query has ended for good, pass on_new_checkpoint="reprocess" to read that input again on '
            "purpose"
        )
    looked = ", after a look whether the output has this batch, which was run before" if is_untold else ""
    how = f"; or delete it, and read with {_to_continue(batch, committed, group)}" if batch.has_kafka_source else ""
    return (
        f"batch {batch.batch_id} of {this} does not begin where group {group} stands: {why}. A consumer or a tool has "
        "committed that: the group's offsets were changed. A group belongs to one query: let nothing else commit for "
        f'it. Then pass on_new_checkpoint="reprocess" to go on where the checkpoint is{looked}{how}'
    )


def _not_as_it_was(batch: MicroBatch, group: str, place: TopicPartition | None, note: Note | None) -> str:
    what = "its offsets were changed or deleted, or group_id was changed"
    if note is not None:
        what = f"query {note.query_id}{_written_by(note)} has committed an offset of {place} since"
    return (
        f"batch {batch.batch_id} of query {batch.query_id}, checkpoint {batch.checkpoint}, was about to be committed "
        f"when it was run before, and group {group} is not as it was then: {what}. So the group does not tell whether "
        "the batch was written. A group belongs to one query: give each a group_id of its own. Then choose one: look "
        'whether the output has the batch, and if not, pass on_new_checkpoint="reprocess" to write it; if it has, '
        "start a new checkpoint behind it."
    )


def _forgotten(batch: MicroBatch, group: str) -> str:
    return (
        f"batch {batch.batch_id} of checkpoint {batch.checkpoint} was planned by an earlier run of the query, which "
        f"may have written it, and group {group} knows nothing of this query: group_id was changed, or the group was "
        "deleted or has expired (offsets.retention.minutes). Choose one: give the group_id of the earlier run; or "
        "look whether the output has the batch, and if not, pass "
        'on_new_checkpoint="reprocess" to write it; if it has, start a new checkpoint behind it.'
    )


def _no_trace(batch: MicroBatch, committed: Committed, places: Collection[TopicPartition], group: str) -> str:
    noted = _noted_places(batch, places)
    place = min(noted - batch.appeared or noted)
    what = "was deleted"
    if place in committed:
        what = f"is {committed[place].offset} now, which somebody else has committed"
    return (
        f"batch {batch.batch_id} of query {batch.query_id}, checkpoint {batch.checkpoint}, was run before and may have "
        f"been written, and group {group} does not tell: its offset of {place} {what}. A group belongs to one query: "
        "let nothing else use it. Then choose one: look whether the output has the batch, and if not, pass "
        'on_new_checkpoint="reprocess" to write it; if it has, start a new checkpoint behind it.'
    )


def _other_tables(batch: MicroBatch, ends: Offsets | None) -> str:
    how = (
        ""
        if not ends
        else (
            " run the query once with the tables as they were, giving read_table options={'endingOffsets': "
            f"'{json.dumps(to_wire(ends))}'}} (0 for partitions that are not named); or"
        )
    )
    return (
        f"batch {batch.batch_id} of checkpoint {batch.checkpoint} was committed before Spark noted it, and must run "
        "again for the query's state; but a topic that the query reads as a table has changed since, so that state "
        f"and output would disagree. Choose one:{how} start a new checkpoint, with the state rebuilt from a changelog"
    )


def _old_copy(batch: MicroBatch, own: Note, committed: Committed, group: str, mismatch: str | None) -> str:
    why = "" if mismatch is None else f" ({mismatch})"
    how = f", with {_to_continue(batch, committed, group)}" if batch.has_kafka_source else " behind what was written"
    return (
        f"checkpoint {batch.checkpoint} is about to run batch {batch.batch_id}, but group {group} has committed batch "
        f"{own.batch_id} of this very query{why}: the checkpoint is an older copy, or the group's offsets were "
        f"changed. Restore the newest checkpoint, or start a new one{how}."
    )
