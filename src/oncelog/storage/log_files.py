"""The folder of a log, opened: its segments and the files beside them, and what changes several of these together.

`recovery.load_log` makes it. Offsets, settings and what follows from an error are the log's: they come in as arguments,
and an OSError goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from oncelog.core import failpoints
from oncelog.core.dataclass import dataclass
from oncelog.protocol.batch import BatchHeader
from oncelog.storage.leader_epochs import LeaderEpochs
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from oncelog.storage.log_reader import LogReader
from oncelog.storage.producer_replay import restore_producer_state
from oncelog.storage.producer_state import ProducerStateManager
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_names import SEGMENT_SUFFIXES, file_name
from oncelog.storage.segment_swap import CleanedSegment, swap_in
from oncelog.storage.snapshot_files import SnapshotFiles
from oncelog.storage.txn_index_keeper import TxnIndexKeeper


class SegmentLeftBehindError(OSError):
    """A new segment could be neither created nor removed. It lies in the middle of the old one, which grows."""


@dataclass(slots=True)
class LogFiles:
    place: LogPlace
    segments: list[Segment]
    snapshots: SnapshotFiles
    leader_epochs: LeaderEpochs
    producer_state: ProducerStateManager
    txn_indexes: TxnIndexKeeper
    reader: LogReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = LogReader(self.segments)

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        for segment in self.segments[segment_number(self.segments, offset) :]:
            first = segment.find(offset)
            if first is not None:
                yield from (batch.header for batch in segment.batches(first.position))

    # A new segment

    def roll(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """The old segment is complete on disk, except for fsync, before the new one is there."""
        failpoints.hit("log.roll.before")
        self.segments[-1].become_inactive()
        failpoints.hit("log.roll.before_snapshot")
        self.producer_state.map_end_offset = base_offset
        self.snapshots.write(base_offset, self.producer_state.take_snapshot())
        failpoints.hit("log.roll.before_create")
        segment = self._create_segment(base_offset, config, now_ms)
        self.segments.append(segment)
        return segment

    def _create_segment(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """On OSError nothing is left of it, or it is a SegmentLeftBehindError."""
        try:
            return Segment.create(self.place, base_offset, config, now_ms=now_ms)
        except OSError:
            try:
                for suffix in SEGMENT_SUFFIXES:
                    (self.place.folder / file_name(base_offset, suffix)).unlink(missing_ok=True)
            except OSError as error:
                raise SegmentLeftBehindError(error.errno, error.strerror, error.filename) from error
            raise

    # Cutting off the end

    def cut(self, offset: int, config: LogConfig) -> int:
        """Remove the batches that end at or above `offset`, which is in the log. Returns the end that is left."""
        number = segment_number(self.segments, offset)
        self.txn_indexes.check_again(self.segments[number])
        self.txn_indexes.forget(segment.base_offset for segment in self.segments[number:])
        self._drop(self.segments[number + 1 :], config)
        self.reader.forget_positions()
        return self.segments[-1].truncate_to(offset)

    def forget_from(self, end_offset: int, now_ms: int) -> None:
        """After a cut: bring leader epochs, snapshots and producers to what they were at `end_offset`."""
        self.leader_epochs.truncate_from_end(end_offset)
        self.snapshots.remove_outside(self.segments[0].base_offset, end_offset)
        restore_producer_state(
            self.producer_state,
            self.place.partition,
            self.segments,
            self.snapshots,
            end_offset=end_offset,
            now_ms=now_ms,
        )

    def start_over(self, offset: int, config: LogConfig, now_ms: int) -> None:
        """Remove everything and begin with an empty segment."""
        self.txn_indexes.forget([segment.base_offset for segment in self.segments])
        self._drop(list(self.segments), config)
        self.segments.append(Segment.create(self.place, offset, config, now_ms=now_ms))
        self.leader_epochs.clear()
        self.producer_state.clear(offset)
        self.snapshots.remove_outside(offset, offset - 1)

    # Deleting from the start

    def delete_first(self, count: int, end_offset: int, config: LogConfig) -> None:
        self._keep_producers(self.segments[count].base_offset)
        self._drop(self.segments[:count], config)
        self.snapshots.remove_outside(self.segments[0].base_offset, end_offset)

    def _keep_producers(self, offset: int) -> None:
        """Make sure of a snapshot at `offset`, so that producers are known without the batches below it."""
        if self.snapshots.is_intact(offset):
            self.snapshots.make_durable(offset)
        else:
            self.snapshots.write(offset, self.producer_state.take_earlier_snapshot(offset), durable=True)

    def _drop(self, dropped: Sequence[Segment], config: LogConfig) -> None:
        """Out of the list first, so that nobody finds them; files are renamed and unlinked later."""
        self.reader.forget_positions()
        self.txn_indexes.begin_anew()
        for segment in dropped:
            self.segments.remove(segment)
            failpoints.hit("log.delete.before_rename")
            self.place.delete_later(segment.rename_deleted(), config.file_delete_delay_ms)

    # Segments that the cleaner replaces

    def replaced_by(self, cleaned: CleanedSegment) -> list[Segment]:
        """The segments that it was made from. None of them if one has changed or is the active one."""
        first = segment_number(self.segments, cleaned.base_offset)
        end = first + len(cleaned.replaces)
        replaced = self.segments[first:end]
        is_same = [(segment.base_offset, segment.size_bytes) for segment in replaced] == list(cleaned.replaces)
        return replaced if is_same and end < len(self.segments) else []

    def settle_snapshots(self, replaced: Sequence[Segment]) -> None:
        """Before a swap of these segments: no snapshot of theirs may know of a transaction.

        The cleaner may have removed its marker along with the data, and it would be open for ever in a state that is
        restored from there. The snapshot at the first offset stays, because after retention it can be all that is known
        of a producer. Every transaction that is open in it has ended since, and what was aborted of it before is gone,
        either with its segment or by an earlier swap.
        """
        first = replaced[0].base_offset
        end = self.segments[self.segments.index(replaced[-1]) + 1].base_offset
        snapshots = self.snapshots
        if first == self.segments[0].base_offset > 0:
            self._keep_producers(first)
        for offset in [offset for offset in snapshots.offsets if first < offset < end]:
            snapshots.remove(offset)
        snapshots.end_transactions(first)

    def swap(self, replaced: Sequence[Segment], cleaned: CleanedSegment, config: LogConfig) -> None:
        """After an OSError only the next start finds out what has happened."""
        created_ms = replaced[-1].created_ms
        segment = Segment(self.place, cleaned.base_offset, config, size_bytes=cleaned.size_bytes, now_ms=created_ms)
        segment.is_txn_index_checked = True
        deleted: list[Path] = []
        self.txn_indexes.forget(old.base_offset for old in replaced)
        self.txn_indexes.begin_anew()
        swap_in(cleaned.files, lambda: deleted.extend(path for old in replaced for path in old.rename_deleted()))
        # Until here the old ones are found, so that a reader after a failed rename meets an error and not a gap.
        first = self.segments.index(replaced[0])
        self.segments[first : first + len(replaced)] = [segment]
        self.reader.forget_positions()
        self.place.delete_later(deleted, config.file_delete_delay_ms)

    # The end

    def write_final_state(self, end_offset: int) -> bool:
        """What a start after a clean stop looks for. Returns whether a file was added."""
        self.segments[-1].become_inactive()
        # A log whose first segment is empty has a snapshot from its roll, or producers it never had.
        adds_snapshot = end_offset > self.segments[0].base_offset and end_offset not in self.snapshots.offsets
        if adds_snapshot:
            self.snapshots.write(end_offset, self.producer_state.take_snapshot())
        self.snapshots.remove_strays({segment.base_offset for segment in self.segments})
        return adds_snapshot

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
