"""The batches of a log applied again to the state of its producers, as after a restart or a cut."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from oncelog.core.ids import TopicPartition
from oncelog.core.invariant import InvariantError
from oncelog.core.steps import at_once
from oncelog.protocol.batch import CorruptBatchError
from oncelog.storage.append_checks import read_control
from oncelog.storage.producer_state import CompletedTxn, CorruptSnapshotError, ProducerStateManager
from oncelog.storage.segment import Segment, segment_number
from oncelog.storage.segment_batches import FileBatch
from oncelog.storage.snapshot_files import SnapshotFiles
from oncelog.storage.txn_index import AbortedTxn

AbortedSink = Callable[[AbortedTxn], None]

logger = logging.getLogger("oncelog.storage")

BATCHES_PER_STEP: Final = 200
"""About a millisecond, if all of them are of producers."""


def replay_batch(
    state: ProducerStateManager,
    batch: FileBatch,
    segment: Segment,
    add_aborted: AbortedSink | None = None,
    *,
    now_ms: int,
) -> None:
    """Apply a batch of the log to the producer state; an aborted transaction that it ends is given to `add_aborted`.

    Nothing says when it was appended, and its own timestamp may be as old as its producer likes. So its producer counts
    as heard of now: rather known for too long than forgotten too early.
    """
    header = batch.header
    control = None
    if header.is_control and header.records_count:
        whole = segment.read_whole(batch)
        control = read_control(header, whole.data, whole.start)
    completed = state.apply(header, control=control, now_ms=now_ms)
    if completed is not None:
        complete_txn(state, completed, add_aborted)


def complete_txn(state: ProducerStateManager, completed: CompletedTxn, add_aborted: AbortedSink | None) -> None:
    """An aborted transaction enters the index of its marker's segment before it stops to hold back the LSO."""
    if completed.aborted and add_aborted is not None:
        lso = state.lso_after(completed)
        add_aborted(AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, lso))
    state.complete(completed)


def restore_producer_state(
    state: ProducerStateManager,
    partition: TopicPartition,
    segments: Sequence[Segment],
    snapshots: SnapshotFiles,
    *,
    end_offset: int,
    now_ms: int,
) -> None:
    at_once(restore_in_steps(state, partition, segments, snapshots, end_offset=end_offset, now_ms=now_ms))


def restore_in_steps(
    state: ProducerStateManager,
    partition: TopicPartition,
    segments: Sequence[Segment],
    snapshots: SnapshotFiles,
    *,
    end_offset: int,
    now_ms: int,
) -> Generator[None, None, None]:
    """Make `state` what it was at `end_offset`: from the newest usable snapshot and the batches behind it.

    A snapshot from before the first segment is of no use, because the markers in between are gone. Kafka also refuses
    one from before the log start offset; here it serves as long as the batches behind it are there, so that raising
    the log start offset does not make the log forget its producers.

    A damaged batch among those is a CorruptBatchError that names file and byte: who wrote what cannot be known then.
    """
    first_offset = min(segments[0].base_offset, end_offset)
    state.clear(first_offset)
    while (newest := snapshots.newest_up_to(end_offset)) is not None and newest >= first_offset:
        try:
            state.load_snapshot(snapshots.read(newest), now_ms, end_offset=newest)
            break
        except (CorruptSnapshotError, FileNotFoundError) as error:
            logger.warning("%s: ignoring %s: %s", partition, snapshots.path(newest), error)
            snapshots.remove(newest)
    for count, (segment, batch) in enumerate(_batches_between(segments, state.map_end_offset, end_offset), 1):
        if count % BATCHES_PER_STEP == 0:
            yield
        try:
            replay_batch(state, batch, segment, now_ms=now_ms)
        except (CorruptBatchError, InvariantError) as error:
            # No CRC was compared, so that a state which cannot be comes from a damaged header.
            where = f"{segment.log_file.path}: no intact batch at byte {batch.position}"
            raise CorruptBatchError(f"{where}: {error}") from error
    state.map_end_offset = end_offset


def _batches_between(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[Segment, FileBatch]]:
    """Stops at the batch that reaches `end` and does not look at what follows, which may be torn."""
    for segment in segments[segment_number(segments, start) :]:
        if max(segment.base_offset, start) >= end:
            return
        found = segment.find(start) if start > segment.base_offset else None
        if start > segment.base_offset and found is None:
            continue
        for batch in segment.batches(found.position if found is not None else 0):
            if batch.header.base_offset >= end:
                return
            yield segment, batch
            if batch.header.next_offset >= end:
                return
