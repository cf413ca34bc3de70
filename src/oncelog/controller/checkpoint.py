"""Kafka's snapshots of the metadata log: files `<end offset>-<epoch>.checkpoint`, and the bytes of FetchSnapshot.

A snapshot is a control batch with SnapshotHeader and, from kraft.version 1 on, KRaftVersion and KRaftVoters; batches of
metadata records; and a control batch with SnapshotFooter, without which it is not whole. Offsets count from 0 and have
nothing to do with those of the log. All batches have the epoch of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import Image
from oncelog.controller.image_records import image_records
from oncelog.controller.metadata_batches import BatchWriter, read_batches
from oncelog.controller.replay import Replay
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import whole_batches
from oncelog.protocol.messages.cluster_metadata import (
    KRaftVersionRecord,
    MetadataRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    encode_metadata_record,
)
from oncelog.protocol.primitives import Readable
from oncelog.protocol.schema import Message

_BATCH_RECORDS_MAX: Final = 1024


class Quorum(NamedTuple):
    """What the control records say of the controllers. Before kraft.version 1 voters are known from settings alone."""

    kraft_version: int = 0
    voters: VotersRecord | None = None

    def after(self, control: Message) -> Quorum:
        if isinstance(control, KRaftVersionRecord):
            return self._replace(kraft_version=control.k_raft_version)
        return self._replace(voters=control) if isinstance(control, VotersRecord) else self


class Checkpoint(NamedTuple):
    image: Image
    quorum: Quorum
    last_contained_log_timestamp: int


def encode_checkpoint(checkpoint: Checkpoint, *, epoch: int, timestamp_ms: int) -> bytes:
    header = SnapshotHeaderRecord(last_contained_log_timestamp=checkpoint.last_contained_log_timestamp)
    controls: list[Message] = [header]
    if checkpoint.quorum.kraft_version > 0:
        controls.append(KRaftVersionRecord(k_raft_version=checkpoint.quorum.kraft_version))
        controls += [] if checkpoint.quorum.voters is None else [checkpoint.quorum.voters]
    writer = BatchWriter(epoch=epoch, timestamp_ms=timestamp_ms)
    data = bytearray(writer.controls(controls))
    values = (encode_metadata_record(message, version) for message, version in image_records(checkpoint.image))
    while batch := list(islice(values, _BATCH_RECORDS_MAX)):
        data += writer.records(batch)
    data += writer.controls([SnapshotFooterRecord()])
    return bytes(data)


class CheckpointReader:
    """A snapshot that comes in pieces: the batches of each are read when it comes, so that no piece takes long.

    Raises InvalidMetadata, KafkaError or MalformedRequest. `known` may leave records out; `types`: see `read_batches`.
    """

    def __init__(
        self,
        known: Callable[[MetadataRecord], Message | None] = MetadataRecord.known,
        types: Collection[int] | None = None,
    ) -> None:
        self.size_bytes = 0
        self._known = known
        self._types = types
        self._rest = bytearray()
        self._replay = Replay()
        self._controls: list[Message] = []

    def feed(self, piece: Readable) -> None:
        self.size_bytes += len(piece)
        self._rest += piece
        whole = bytes(whole_batches(self._rest))
        del self._rest[: len(whole)]
        for batch in read_batches(whole, types=self._types):
            self._controls += batch.controls
            for message in map(self._known, batch.records):
                if message is not None:
                    self._replay.apply(message)

    def finish(self) -> Checkpoint:
        controls, quorum = self._controls, Quorum()
        next(read_batches(self._rest), None)  # tells what is wrong with a batch that is not whole
        if not controls or not isinstance(controls[0], SnapshotHeaderRecord):
            raise InvalidMetadata("the snapshot has no header")
        if not isinstance(controls[-1], SnapshotFooterRecord):
            raise InvalidMetadata("the snapshot has no footer: its end is missing")
        for control in controls:
            quorum = quorum.after(control)
        return Checkpoint(self._replay.image(), quorum, controls[0].last_contained_log_timestamp)


def decode_checkpoint(
    data: Readable,
    known: Callable[[MetadataRecord], Message | None] = MetadataRecord.known,
    types: Collection[int] | None = None,
) -> Checkpoint:
    """As `CheckpointReader`."""
    reader = CheckpointReader(known, types)
    reader.feed(data)
    return reader.finish()
