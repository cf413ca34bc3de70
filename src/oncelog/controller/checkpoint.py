"""Kafka's snapshots of the metadata log: files `<end offset>-<epoch>.checkpoint`, and the bytes of FetchSnapshot.

A snapshot is a control batch with SnapshotHeader and, from kraft.version 1 on, KRaftVersion and KRaftVoters; batches of
metadata records; and a control batch with SnapshotFooter, without which it is not whole. Offsets count from 0 and have
nothing to do with those of the log. All batches have the epoch of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import Image
from oncelog.controller.image_records import image_records
from oncelog.controller.metadata_batches import read_batches
from oncelog.controller.replay import Replay
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.compiler import encode_bytes
from oncelog.protocol.messages.cluster_metadata import (
    KRaftVersionRecord,
    MetadataRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    control_key,
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
    writer = _Writer(epoch, timestamp_ms)
    writer.append_controls(controls)
    values = (encode_metadata_record(message, version) for message, version in image_records(checkpoint.image))
    while batch := list(islice(values, _BATCH_RECORDS_MAX)):
        writer.append([Record(number, 0, None, value) for number, value in enumerate(batch)])
    writer.append_controls([SnapshotFooterRecord()])
    return bytes(writer.data)


def decode_checkpoint(
    data: Readable, known: Callable[[MetadataRecord], Message | None] = MetadataRecord.known
) -> Checkpoint:
    """Raises InvalidMetadata, KafkaError or MalformedRequest. `known` may leave records out."""
    replay, quorum = Replay(), Quorum()
    controls: list[Message] = []
    for batch in read_batches(data):
        controls += batch.controls
        for message in map(known, batch.records):
            if message is not None:
                replay.apply(message)
    if not controls or not isinstance(controls[0], SnapshotHeaderRecord):
        raise InvalidMetadata("the snapshot has no header")
    if not isinstance(controls[-1], SnapshotFooterRecord):
        raise InvalidMetadata("the snapshot has no footer: its end is missing")
    for control in controls:
        quorum = quorum.after(control)
    return Checkpoint(replay.image(), quorum, controls[0].last_contained_log_timestamp)


class _Writer:
    def __init__(self, epoch: int, timestamp_ms: int) -> None:
        self.data = bytearray()
        self._epoch = epoch
        self._timestamp_ms = timestamp_ms
        self._next_offset = 0

    def append_controls(self, messages: Sequence[Message]) -> None:
        records = [
            Record(number, 0, control_key(message), encode_bytes(message, 0)) for number, message in enumerate(messages)
        ]
        self.append(records, control=True)

    def append(self, records: Sequence[Record], *, control: bool = False) -> None:
        self.data += build_batch(
            records,
            timestamp_ms=self._timestamp_ms,
            base_offset=self._next_offset,
            leader_epoch=self._epoch,
            control=control,
        )
        self._next_offset += len(records)
