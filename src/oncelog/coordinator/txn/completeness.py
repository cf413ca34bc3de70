"""What must hold between a value and the one that replaces it. A violation is a bug of ours, and stops the shard.

These are checked when a committed record is applied to a living id, not at load: a log that was compacted, or written
by another software, need not show every step.
"""

from __future__ import annotations

from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.state import AT_REST, COMPLETED, COMPLETION_OF, NAME_OF, NEVER_LOGGED, PREPARED, TxnState
from oncelog.core.ids import EPOCH_MAX, NO_TIMESTAMP
from oncelog.core.invariant import invariant


def check(transactional_id: str, current: TxnMetadata, target: TxnMetadata, *, is_epoch_fence: bool) -> None:
    problem = _problem(current, target, is_epoch_fence)
    invariant(
        problem is None,
        "transactional id %r cannot move from %s to %s, %s: %s, %s",
        transactional_id,
        NAME_OF[current.state],
        NAME_OF[target.state],
        problem,
        current,
        target,
    )


def _problem(current: TxnMetadata, target: TxnMetadata, is_epoch_fence: bool) -> str | None:
    if target.state in NEVER_LOGGED:
        return "which is never logged"
    if target.state is TxnState.EMPTY:
        return _problem_of_empty(current, target)
    if target.timeout_ms != current.timeout_ms:
        return "which changes the time-out"
    if target.state is TxnState.ONGOING:
        return _problem_of_ongoing(current, target)
    if target.state in PREPARED:
        return _problem_of_prepared(current, target, is_epoch_fence)
    return _problem_of_completed(current, target)


def _problem_of_empty(current: TxnMetadata, target: TxnMetadata) -> str | None:
    same_producer = target.producer_id == current.producer_id
    if same_producer and target.producer_epoch not in (current.producer_epoch, current.producer_epoch + 1):
        return "which jumps an epoch"
    if not same_producer and target.producer_epoch != 0:
        return "which gives a new producer id an epoch other than 0"
    if target.partitions or target.start_ms != NO_TIMESTAMP:
        return "which leaves a transaction behind"
    return None


def _problem_of_ongoing(current: TxnMetadata, target: TxnMetadata) -> str | None:
    if target.transaction_identity != current.transaction_identity:
        return "which changes the producer of an open transaction"
    if not target.partitions >= current.partitions:
        return "which loses partitions"
    if current.state is TxnState.ONGOING and target.start_ms != current.start_ms:
        return "which changes the start"
    if target.start_ms == NO_TIMESTAMP:
        return "which has no start"
    return None


def _problem_of_prepared(current: TxnMetadata, target: TxnMetadata, is_epoch_fence: bool) -> str | None:
    if target.producer_id != current.producer_id:
        return "which changes the producer id before the markers are written"
    if target.partitions != current.partitions:
        return "which changes the partitions"
    empty_abort = target.client_version.bumps_epochs and current.state in AT_REST
    if target.start_ms != current.start_ms and not empty_abort:
        return "which changes the start"
    bumps = target.client_version.bumps_epochs or is_epoch_fence
    if target.producer_epoch != (min(current.producer_epoch + 1, EPOCH_MAX) if bumps else current.producer_epoch):
        return "which has the wrong epoch for its markers"
    if target.client_version.bumps_epochs and target.last_producer_epoch != current.client_identity.epoch:
        return "which forgets the client's epoch"
    return None


def _problem_of_completed(current: TxnMetadata, target: TxnMetadata) -> str | None:
    if target.state not in COMPLETED or target.state is not COMPLETION_OF.get(current.state):
        return "which is not what was decided"
    if target.start_ms == NO_TIMESTAMP:
        return "which has no start"
    if target.partitions:
        return "which has partitions left"
    if target.transaction_identity != current.identity_once_complete or target.keeps_prepared:
        return "which does not have the identity that the client was answered"
    rotated = target.producer_id != current.producer_id and not current.keeps_prepared
    if rotated and (target.producer_epoch != 0 or target.prev_producer_id != current.producer_id):
        return "which rotates the producer id without naming the previous one"
    return None
