"""Carrying out a decision: from the applied Prepare* record, over the markers, to the Complete* record.

One code path for living and recovering: applying a Prepare* record, whether it was just written or found at load,
leads to `begin`. From there the id is pending for Complete*, with no record in flight, until its last marker is
acknowledged.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.metadata import TxnEntry
from oncelog.coordinator.txn.state import COMPLETION_OF, PREPARED, TxnState
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import CoordinatorEpoch, TopicPartition
from oncelog.core.invariant import invariant


class MarkerReaction(Enum):
    """What the sender does about the code that WriteTxnMarkers gave for a partition."""

    ACKNOWLEDGE = auto()
    RETRY = auto()
    """Find the leader again and send once more."""
    DROP = auto()
    """No marker can be written there, and none is needed: no longer wait for this partition."""
    GIVE_UP = auto()
    """A newer coordinator or producer has taken over: send no more markers of this transaction, log no Complete*."""
    BUG = auto()
    """The request itself was wrong: stop and say so loudly."""


_REACTIONS: Final[dict[ErrorCode, MarkerReaction]] = {
    ErrorCode.NONE: MarkerReaction.ACKNOWLEDGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MarkerReaction.RETRY,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: MarkerReaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS: MarkerReaction.RETRY,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: MarkerReaction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: MarkerReaction.RETRY,
    ErrorCode.KAFKA_STORAGE_ERROR: MarkerReaction.RETRY,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: MarkerReaction.DROP,
    ErrorCode.UNSUPPORTED_VERSION: MarkerReaction.DROP,
    ErrorCode.INVALID_PRODUCER_EPOCH: MarkerReaction.GIVE_UP,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: MarkerReaction.GIVE_UP,
}


def reaction_to(code: ErrorCode) -> MarkerReaction:
    return _REACTIONS.get(code, MarkerReaction.BUG)


def begin(entry: TxnEntry, coordinator_epoch: CoordinatorEpoch) -> SendMarkers:
    metadata = entry.metadata
    invariant(metadata.state in PREPARED, "%r: markers for a transaction that is not decided", entry.transactional_id)
    invariant(entry.pending_state is None, "%r: markers during another transition", entry.transactional_id)
    entry.pending_state = COMPLETION_OF[metadata.state]
    entry.unacknowledged = set(metadata.partitions)
    entry.markers = SendMarkers(
        transactional_id=entry.transactional_id,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        commit=metadata.state is TxnState.PREPARE_COMMIT,
        partitions=metadata.partitions,
        transaction_version=metadata.client_version,
    )
    return entry.markers


def acknowledge(entry: TxnEntry, partitions: frozenset[TopicPartition]) -> bool:
    """No longer wait for these. True when there is nothing to wait for and the Complete* record is to be logged."""
    entry.unacknowledged -= partitions
    return not entry.unacknowledged and entry.in_flight is None
