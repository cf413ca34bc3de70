"""The committed part of the controllers' log, in memory: the last snapshot and the batches behind it.

It is as long as what was decided since the last snapshot, and serves whoever follows a controller. The batches of an
append are made here too, since they depend on what is committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from oncelog.cluster.kraft_metadata import SnapshotName
from oncelog.controller.checkpoint import Quorum
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image_records import VersionedRecord
from oncelog.controller.metadata_batches import BatchWriter, read_batches
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import decode_records, read_header
from oncelog.protocol.messages.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    KRaftVersionRecord,
    LeaderChangeMessage,
    Voter,
    VotersRecord,
    encode_metadata_record,
)
from oncelog.protocol.schema import Message
from oncelog.storage.leader_epochs import EpochEnd, EpochStart

BATCH_BYTES_MAX: Final = 900_000
"""A node of ZooKeeper holds 1 MiB with all that is around it."""
_KRAFT_VERSION: Final = 1
_BEGIN: Final = encode_metadata_record(BeginTransactionRecord(name="large append"), 0)
_END: Final = encode_metadata_record(EndTransactionRecord(), 0)
_ABORT: Final = encode_metadata_record(AbortTransactionRecord(reason="its controller lost its office"), 0)
_TRANSACTION_STATES: Final = {_BEGIN[1]: True, _END[1]: False, _ABORT[1]: False}
"""By the type of a record, which is its second byte: whether a transaction is open behind it."""
_TRANSACTION_MARKS: Final = [value[:2] + b"\0" for value in (_BEGIN, _END, _ABORT)]
"""How these records begin. A batch without any of them is not decoded; one that has them by chance is."""
_RECORD_OVERHEAD_BYTES: Final = 32


class Snapshot(NamedTuple):
    """`data` is a checkpoint: see `controller.checkpoint`."""

    name: SnapshotName
    data: bytes


class CommittedLog:
    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.quorum = Quorum()
        self.start_offset = 0
        self.end_offset = 0
        """The high watermark: nothing behind it is known to anybody but the active controller."""
        self.last_epoch = 0
        self.last_batch: bytes | None = None
        """Also if a snapshot has replaced it; None behind a snapshot that was read."""
        self.is_in_transaction = False
        self.bytes_since_snapshot = 0
        self._batches: list[bytes] = []
        self._next_offsets: list[int] = []
        self._epochs: list[EpochStart] = []

    @property
    def batches_since_snapshot(self) -> int:
        return len(self._batches)

    def load(self, snapshot: Snapshot) -> None:
        """Begin anew behind a snapshot that was read."""
        end_offset, epoch = snapshot.name
        self._batches, self._next_offsets, self._epochs = [], [], []
        self.start_offset = self.end_offset = end_offset
        self.last_epoch = epoch
        self.last_batch = None
        self.is_in_transaction = False
        self.quorum = Quorum()
        first = next(read_batches(snapshot.data), None)
        if first is None:
            raise InvalidMetadata(f"the snapshot at offset {end_offset} is empty")
        for control in first.controls:
            self.quorum = self.quorum.after(control)
        self._keep(snapshot)

    def add(self, batch: bytes) -> None:
        header = read_header(batch)
        invariant(header.base_offset == self.end_offset, "the metadata log has a gap at offset %d", self.end_offset)
        invariant(header.leader_epoch >= self.last_epoch, "the epoch of the metadata log goes back")
        if header.is_control:
            for control in next(read_batches(batch)).controls:
                self.quorum = self.quorum.after(control)
        elif header.codec or any(mark in batch for mark in _TRANSACTION_MARKS):
            for record in decode_records(batch):
                self.is_in_transaction = _TRANSACTION_STATES.get((record.value or b"\0\0")[1], self.is_in_transaction)
        if not self._epochs or header.leader_epoch > self.last_epoch:
            self._epochs.append(EpochStart(header.leader_epoch, header.base_offset))
        self.last_epoch, self.end_offset = header.leader_epoch, header.next_offset
        self.last_batch = batch
        self._batches.append(batch)
        self._next_offsets.append(self.end_offset)
        self.bytes_since_snapshot += len(batch)

    def shorten(self, snapshot: Snapshot) -> None:
        """A snapshot was stored: forget the batches that it replaces."""
        count = bisect_right(self._next_offsets, snapshot.name.end_offset)
        del self._batches[:count], self._next_offsets[:count]
        self.start_offset = max(self.start_offset, snapshot.name.end_offset)
        self._epochs = [
            EpochStart(start.epoch, max(start.start_offset, self.start_offset))
            for start, next_start in zip(self._epochs, [*self._epochs[1:], None], strict=True)
            if next_start is None or next_start.start_offset > self.start_offset
        ]
        self._keep(snapshot)

    def _keep(self, snapshot: Snapshot) -> None:
        # Kafka formats a folder with a snapshot at offset 0, which has voters but no metadata.
        self.snapshot = snapshot if snapshot.name.end_offset > 0 else None
        self.bytes_since_snapshot = sum(map(len, self._batches))

    def batches_from(self, offset: int) -> int:
        """How many batches there are from `offset` on."""
        return len(self._batches) - bisect_right(self._next_offsets, offset)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one with `offset` on. One comes in any case, if there is one."""
        invariant(self.start_offset <= offset <= self.end_offset, "offset %d is not in the metadata log", offset)
        first = last = bisect_right(self._next_offsets, offset)
        size = 0
        while last < len(self._batches) and (last == first or size + len(self._batches[last]) <= max_bytes):
            size += len(self._batches[last])
            last += 1
        return b"".join(self._batches[first:last])

    def divergence(self, last_epoch: int, end_offset: int) -> EpochEnd | None:
        """Where a log that ends at `end_offset` with epoch `last_epoch` differs from this one; None if it does not."""
        position = bisect_left(self._epochs, (last_epoch + 1, -1)) - 1
        if position < 0:
            snapshot_epoch = self.snapshot.name.epoch if self.snapshot is not None else 0
            found = EpochEnd(snapshot_epoch, self.start_offset)
        else:
            following = self._epochs[position + 1 : position + 2]
            found = EpochEnd(self._epochs[position].epoch, following[0].start_offset if following else self.end_offset)
        return found if found.epoch != last_epoch or found.end_offset < end_offset else None

    # What an active controller writes

    def first_batches(
        self, leader_id: int, epoch: int, voters: VotersRecord | None, *, timestamp_ms: int
    ) -> list[bytes]:
        """What a controller appends when it has won: that it leads, voters that are new, and the end of an append
        that broke off."""
        granting = [Voter(voter_id=leader_id)]
        known = voters or self.quorum.voters
        members = granting if known is None else [Voter(voter_id=each.voter_id) for each in known.voters]
        controls: list[Message] = [
            LeaderChangeMessage(leader_id=leader_id, voters=members, granting_voters=granting),
        ]
        if voters is not None and voters != self.quorum.voters:
            if self.quorum.kraft_version < _KRAFT_VERSION:
                controls.append(KRaftVersionRecord(k_raft_version=_KRAFT_VERSION))
            controls.append(voters)
        writer = BatchWriter(next_offset=self.end_offset, epoch=epoch, timestamp_ms=timestamp_ms)
        batches = [writer.controls(controls)]
        return [*batches, writer.records([_ABORT])] if self.is_in_transaction else batches


def data_batches(records: Sequence[VersionedRecord | bytes], writer: BatchWriter) -> list[bytes]:
    """The batches of one append. Raises KafkaError if a record is too large for any batch."""
    values = [record if isinstance(record, bytes) else encode_metadata_record(*record) for record in records]
    if sum(map(_size, values)) <= BATCH_BYTES_MAX:
        return [writer.records(values)]
    return [writer.records(chunk) for chunk in _chunks([_BEGIN, *values, _END])]


def _chunks(values: Sequence[bytes]) -> list[list[bytes]]:
    chunks: list[list[bytes]] = [[]]
    size = 0
    for value in values:
        if _size(value) > BATCH_BYTES_MAX:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, f"a metadata record has {len(value)} bytes")
        if size + _size(value) > BATCH_BYTES_MAX:
            chunks.append([])
            size = 0
        chunks[-1].append(value)
        size += _size(value)
    return chunks


def _size(value: bytes) -> int:
    return len(value) + _RECORD_OVERHEAD_BYTES
