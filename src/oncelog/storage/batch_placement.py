"""From checked batches to what is written: each gets its offset and the leader's epoch in front of its own bytes."""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.batch import PREFIX_BYTES, BatchHeader, ControlMarker, pack_prefix
from oncelog.protocol.primitives import Readable
from oncelog.storage.append_checks import CheckedBatch


class PlacedBatches(NamedTuple):
    """Batches with their final offsets, ready to be written."""

    headers: list[BatchHeader]
    controls: list[ControlMarker | None]
    buffers: list[Readable]
    size_bytes: int


def place_batches(batches: list[CheckedBatch], next_offset: int, leader_epoch: int) -> PlacedBatches:
    """Give batches their offsets from `next_offset` on and the leader epoch, as a leader does."""
    placed = PlacedBatches([], [], [], sum([len(batch.body) for batch in batches]))
    for header, body, control in batches:
        placed.headers.append(BatchHeader(next_offset, header[1], leader_epoch, *header[3:]))
        placed.controls.append(control)
        placed.buffers.append(pack_prefix(header, base_offset=next_offset, leader_epoch=leader_epoch))
        placed.buffers.append(body[PREFIX_BYTES:])
        next_offset += header.last_offset_delta + 1
    return placed


def accept_batches(
    batches: list[CheckedBatch], next_offset: int, leader_epoch: int, partition: TopicPartition
) -> PlacedBatches:
    """Keep the offsets and epochs of the leader, as a follower does. They may skip offsets but not go back.

    A leader that lost its office while it answered may send batches of a later epoch: these are left out.
    """
    accepted: list[CheckedBatch] = []
    for batch in batches:
        header = batch.header
        if header.leader_epoch > leader_epoch:
            break
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{partition}: replicated batch at offset {header.base_offset}, expected {next_offset} or above",
            )
        next_offset = header.next_offset
        accepted.append(batch)
    return PlacedBatches(
        [batch.header for batch in accepted],
        [batch.control for batch in accepted],
        [batch.body for batch in accepted],
        sum(len(batch.body) for batch in accepted),
    )
