"""The transaction indexes of a log: none is used before it was checked, and one that is wrong is rebuilt.

A reader that does not learn of an aborted transaction shows its records to the user, so that a right format is not
enough to use an index. If there is a note of what it must hold (see `segment_notes`), it is held against that,
which costs no more than reading it. If there is none, as in a folder that Kafka has left, the markers in the segment
are looked up, once, in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Iterable, Sequence
from itertools import islice, takewhile
from typing import Final

from oncelog.core.ids import TopicPartition
from oncelog.core.steps import at_once
from oncelog.protocol.batch import CorruptBatchError
from oncelog.storage.log_config import LogConfig
from oncelog.storage.producer_replay import BATCHES_PER_STEP, replay_batch, restore_in_steps
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_notes import SegmentNotes
from oncelog.storage.snapshot_files import SnapshotFiles
from oncelog.storage.txn_index import AbortedTxn, CorruptTxnIndexError, decode_entries

logger = logging.getLogger("oncelog.storage")

_SEGMENTS_PER_STEP: Final = 16
_ENTRIES_PER_STEP: Final = 500

Steps = Generator[None, None, None]
"""Other work may be done between them: SegmentGoneError if that has removed what is still to be looked at."""


class SegmentGoneError(Exception):
    """What was read of the log goes with indexes that are no longer there: it is to be read again."""


class TxnIndexKeeper:
    """Works on the lists of segments and snapshots that the log itself changes."""

    def __init__(
        self,
        partition: TopicPartition,
        config: LogConfig,
        segments: Sequence[Segment],
        snapshots: SnapshotFiles,
        notes: SegmentNotes,
        now_ms: int,
    ) -> None:
        self.notes = notes
        self._partition = partition
        self._config = config
        self._segments = segments
        self._snapshots = snapshots
        self._now_ms = now_ms
        self._noted_end = 0
        """Segments that start below it have a note that says what is in their files."""
        self._begun: dict[Segment, Steps] = {}
        """Checks that have not ended."""

    def check(self, segment: Segment) -> None:
        """Check the index of a segment before its first use. Afterwards it is right."""
        at_once(self._checked(segment))

    def check_again(self, segment: Segment) -> None:
        """Before entries are cut off: of an index that was damaged since it was checked, others would be."""
        self.check(segment)
        try:
            segment.txn_index.sanity_check()
        except CorruptTxnIndexError as error:
            logger.warning("%s: %s", self._partition, error)
            self.rebuild(segment)

    def check_below(self, end_offset: int) -> Steps:
        """Check the indexes of all segments that start below `end_offset`."""
        for count, segment in enumerate(list(takewhile(lambda each: each.base_offset < end_offset, self._segments)), 1):
            if count % _SEGMENTS_PER_STEP == 0:
                yield
            self._require(segment)
            yield from self._checked(segment)

    def _checked(self, segment: Segment) -> Steps:
        """Check it in steps. A check that somebody has begun is ended by whoever goes on: in a folder of Kafka's it may
        take longer than a client waits."""
        while not segment.is_txn_index_checked:
            steps = self._begun.get(segment)
            if steps is None:
                self._begun = {each: steps for each, steps in self._begun.items() if self._has(each)}
                steps = self._begun[segment] = self._check(segment)
            try:
                next(steps)
            except StopIteration:
                break
            except Exception:
                del self._begun[segment]
                raise
            yield
            self._require(segment)
        self._begun.pop(segment, None)

    def begin_anew(self) -> None:
        """Before a segment or its files go: checks of later ones read there what was open, and would read other bytes
        under the same name, or none."""
        self._begun.clear()

    def _check(self, segment: Segment) -> Steps:
        is_noted = segment.note is not None
        if not (self._is_as_noted(segment) if is_noted else (yield from self._is_plausible(segment))):
            yield from self._rebuild(segment)
        segment.is_txn_index_checked = True
        self._noted_end = min(self._noted_end, segment.base_offset)

    def collect(
        self, fetch_offset: int, upper_bound: int, found: list[AbortedTxn], producers: Container[int] | None
    ) -> Steps:
        """Adds aborted transactions with data in [fetch_offset, upper_bound) to `found`, in the order of their markers.

        Other work may be done at a yield. SegmentGoneError if it has removed a segment that is still to be looked at.
        """
        for count, segment in enumerate(self._segments[segment_number(self._segments, fetch_offset) :]):
            if count % _SEGMENTS_PER_STEP == _SEGMENTS_PER_STEP - 1:
                yield
            self._require(segment)
            found_before = len(found)
            try:
                yield from self._checked(segment)
                is_complete = yield from self._collect(segment, fetch_offset, upper_bound, found, producers)
            except CorruptTxnIndexError:
                segment.note, segment.is_txn_index_checked = None, False
                self._begun[segment] = self._rebuild(segment)
                yield from self._checked(segment)
                del found[found_before:]
                is_complete = yield from self._collect(segment, fetch_offset, upper_bound, found, producers)
            if is_complete:
                break

    def _collect(
        self,
        segment: Segment,
        fetch_offset: int,
        upper_bound: int,
        found: list[AbortedTxn],
        producers: Container[int] | None,
    ) -> Generator[None, None, bool]:
        index = segment.txn_index
        steps = index.collect(fetch_offset, upper_bound, found, producers)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                is_complete: bool = done.value
                return is_complete
            yield
            self._require(segment)
            if segment.txn_index is not index:
                raise SegmentGoneError(f"the transaction index of {segment} was rebuilt")

    def _require(self, segment: Segment) -> None:
        """It was there when the search began. Nothing else may have changed it since but an append."""
        if not self._has(segment):
            raise SegmentGoneError(f"{segment} is no longer a part of the log")

    def _has(self, segment: Segment) -> bool:
        return self._segments[segment_number(self._segments, segment.base_offset)] is segment

    def add(self, segment: Segment, aborted: AbortedTxn) -> None:
        """The marker is in the segment already, so an index that is rebuilt has the entry."""
        try:
            segment.txn_index.append(aborted)
        except CorruptTxnIndexError as error:
            logger.warning("%s: %s", self._partition, error)
            self.rebuild(segment)

    def rebuild(self, segment: Segment) -> None:
        """The aborted transactions of one segment, from its markers."""
        at_once(self._rebuild(segment))

    def _rebuild(self, segment: Segment) -> Steps:
        entries = yield from self._from_markers(segment)
        segment.close_txn_index()
        index = segment.txn_index
        try:
            is_right = not index.is_torn and index.read() == entries
        except OSError:
            is_right = False
        if not is_right:
            logger.warning("%s: rebuilding the transaction index of %s", self._partition, segment)
            segment.is_txn_index_checked = False  # an error would leave it without entries
            index.reset()
            index.fill(entries)
        segment.is_txn_index_checked = True
        self._noted_end = min(self._noted_end, segment.base_offset)

    def rebuild_at(self, base_offset: int) -> None:
        self.rebuild(self._segments[segment_number(self._segments, base_offset)])

    def note_growing(self) -> None:
        """Write the notes of segments that may have changed since the last time. The last one is appended to."""
        last = self._segments[-1]
        changed = self._segments[segment_number(self._segments, self._noted_end) :]
        if self._write_notes(changed, growing=last):
            self._noted_end = last.base_offset

    def note_all(self) -> None:
        """Write the notes of all segments that are known, as nothing is appended any more."""
        self._write_notes(self._segments, growing=None)

    def _write_notes(self, segments: Iterable[Segment], growing: Segment | None) -> bool:
        taken = {segment.base_offset: segment.take_note(is_growing=segment is growing) for segment in segments}
        first_offset = self._segments[0].base_offset
        deleted = list(takewhile(lambda base_offset: base_offset < first_offset, self.notes.by_base_offset))
        return self.notes.write({base: note for base, note in taken.items() if note is not None}, deleted)

    def forget(self, base_offsets: Iterable[int]) -> None:
        """Remove the notes of segments whose files are about to change other than by appending."""
        gone = set(base_offsets)
        for segment in self._segments:
            if segment.base_offset in gone:
                segment.note = None
        self._noted_end = min([self._noted_end, *gone])
        self.notes.write({}, gone)

    def _is_as_noted(self, segment: Segment) -> bool:
        note, index = segment.note, segment.txn_index
        return note is not None and not index.is_torn and (len(index), index.crc) == (note.txn_entries, note.txn_crc)

    def _is_plausible(self, segment: Segment) -> Generator[None, None, bool]:
        """Each entry has its marker, and each marker that ended a transaction with records has its entry.

        Entries may reach further back than what is in the log, and outlive records that the cleaner has removed. What
        is appended between the steps is not looked at.
        """
        index = segment.txn_index
        try:
            markers = yield from segment.abort_markers()
            count = len(index)
            if index.is_torn or not (markers or count):
                return not index.is_torn
            first_offsets: dict[int, int] = {}
            floor = segment.base_offset - 1
            for number, entry in enumerate(islice(index.entries(), count), 1):
                if number % _ENTRIES_PER_STEP == 0:
                    yield
                is_in_order = floor < entry.last_offset and entry.first_offset <= entry.last_offset
                if not is_in_order or markers.get(entry.last_offset) != entry.producer_id:
                    return False
                first_offsets[entry.last_offset] = entry.first_offset
                floor = entry.last_offset
            from_markers = yield from self._from_markers(segment)
            for number, (_, wanted) in enumerate(decode_entries(from_markers), 1):
                if number % _ENTRIES_PER_STEP == 0:
                    yield
                if wanted.last_offset not in markers:
                    break  # it was appended meanwhile
                first_offset = first_offsets.get(wanted.last_offset)
                if first_offset is None or first_offset > wanted.first_offset:
                    return False
            return True
        except CorruptTxnIndexError:
            return False
        except CorruptBatchError as error:
            # Nothing can be found out from a damaged log. Its readers will meet the damage themselves.
            logger.warning("%s: the transaction index of %s is not checked: %s", self._partition, segment, error)
            return not index.is_torn

    def _from_markers(self, segment: Segment) -> Generator[None, None, bytes]:
        """The entries of an index, up to the end that the segment has at the last step."""
        state = ProducerStateManager(self._partition, producer_expiration_ms=self._config.producer_id_expiration_ms)
        yield from restore_in_steps(
            state,
            self._partition,
            self._segments,
            self._snapshots,
            end_offset=segment.base_offset,
            now_ms=self._now_ms,
        )
        entries = bytearray()
        position = count = 0
        while position < segment.size_bytes:  # which grows if batches are appended between two steps
            for batch in segment.batches(position):
                replay_batch(
                    state, batch, segment, lambda aborted: entries.extend(aborted.encode()), now_ms=self._now_ms
                )
                position = batch.end_position
                count += 1
                if count % BATCHES_PER_STEP == 0:
                    yield
        return bytes(entries)
