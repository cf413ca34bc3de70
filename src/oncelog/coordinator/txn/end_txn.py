"""EndTxn: commit or abort, as a TV0/1 client means it and as a TV2 client does.

Under TV2 each end bumps the epoch, so that equal epochs mean the *next* end, and an epoch one below the stored one is
the retry of an end whose answer was lost. The tables below are indexed by that. Under TV0/1 nothing tells a retry
from the next request, which is why a delayed EndTxn can end a later transaction there (KAFKA-17754).

Success is answered as soon as Prepare* is committed, before any marker is written, with the identity that Complete*
will bring.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from oncelog.coordinator.txn import epochs
from oncelog.coordinator.txn.decision import (
    Transition,
    check_identity,
    check_not_doubtful,
    check_not_pending,
    check_not_prepared,
    check_producer_id,
    fenced,
)
from oncelog.coordinator.txn.epochs import AllocateProducerId
from oncelog.coordinator.txn.metadata import TxnEntry, TxnMetadata
from oncelog.coordinator.txn.results import EndTxnResult
from oncelog.coordinator.txn.state import COMPLETED, NAME_OF, PREPARED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import EPOCH_EXHAUSTED, EPOCH_MAX, ProducerIdAndEpoch
from oncelog.core.invariant import InvariantError


@dataclass(frozen=True, slots=True)
class EndArguments:
    presented: ProducerIdAndEpoch
    commit: bool
    version: TransactionVersion
    cluster_version: TransactionVersion

    @property
    def verb(self) -> str:
        return "commit" if self.commit else "abort"


class Verdict(Enum):
    END = auto()
    """Log Prepare*."""
    DONE = auto()
    """It ended that way already: the answer is repeated."""
    BEING_DONE = auto()
    WRONG_STATE = auto()
    FENCED = auto()


_COMMIT, _ABORT = True, False

TV0_VERDICTS: Final[dict[tuple[TxnState, bool], Verdict]] = {
    (TxnState.EMPTY, _COMMIT): Verdict.WRONG_STATE,
    (TxnState.EMPTY, _ABORT): Verdict.WRONG_STATE,
    (TxnState.ONGOING, _COMMIT): Verdict.END,
    (TxnState.ONGOING, _ABORT): Verdict.END,
    (TxnState.PREPARE_COMMIT, _COMMIT): Verdict.BEING_DONE,
    (TxnState.PREPARE_COMMIT, _ABORT): Verdict.WRONG_STATE,
    (TxnState.PREPARE_ABORT, _COMMIT): Verdict.WRONG_STATE,
    (TxnState.PREPARE_ABORT, _ABORT): Verdict.BEING_DONE,
    (TxnState.COMPLETE_COMMIT, _COMMIT): Verdict.DONE,
    (TxnState.COMPLETE_COMMIT, _ABORT): Verdict.WRONG_STATE,
    (TxnState.COMPLETE_ABORT, _COMMIT): Verdict.WRONG_STATE,
    (TxnState.COMPLETE_ABORT, _ABORT): Verdict.DONE,
}

_RETRY, _CURRENT = True, False

TV2_VERDICTS: Final[dict[tuple[TxnState, bool, bool], Verdict]] = {
    (TxnState.EMPTY, _COMMIT, _RETRY): Verdict.FENCED,
    (TxnState.EMPTY, _COMMIT, _CURRENT): Verdict.WRONG_STATE,
    (TxnState.EMPTY, _ABORT, _RETRY): Verdict.FENCED,
    (TxnState.EMPTY, _ABORT, _CURRENT): Verdict.END,
    (TxnState.ONGOING, _COMMIT, _RETRY): Verdict.FENCED,
    (TxnState.ONGOING, _COMMIT, _CURRENT): Verdict.END,
    (TxnState.ONGOING, _ABORT, _RETRY): Verdict.FENCED,
    (TxnState.ONGOING, _ABORT, _CURRENT): Verdict.END,
    (TxnState.PREPARE_COMMIT, _COMMIT, _RETRY): Verdict.BEING_DONE,
    (TxnState.PREPARE_COMMIT, _COMMIT, _CURRENT): Verdict.FENCED,
    (TxnState.PREPARE_COMMIT, _ABORT, _RETRY): Verdict.WRONG_STATE,
    (TxnState.PREPARE_COMMIT, _ABORT, _CURRENT): Verdict.FENCED,
    (TxnState.PREPARE_ABORT, _COMMIT, _RETRY): Verdict.WRONG_STATE,
    (TxnState.PREPARE_ABORT, _COMMIT, _CURRENT): Verdict.FENCED,
    (TxnState.PREPARE_ABORT, _ABORT, _RETRY): Verdict.BEING_DONE,
    (TxnState.PREPARE_ABORT, _ABORT, _CURRENT): Verdict.FENCED,
    (TxnState.COMPLETE_COMMIT, _COMMIT, _RETRY): Verdict.DONE,
    (TxnState.COMPLETE_COMMIT, _COMMIT, _CURRENT): Verdict.WRONG_STATE,
    (TxnState.COMPLETE_COMMIT, _ABORT, _RETRY): Verdict.WRONG_STATE,
    (TxnState.COMPLETE_COMMIT, _ABORT, _CURRENT): Verdict.END,
    # The coordinator aborted the transaction while its commit was under way (KAFKA-20785, in Kafka after 4.4): fenced
    # lets the producer start over, whereas INVALID_TXN_STATE, the answer of Kafka 4.0 to 4.4, ends it for good.
    (TxnState.COMPLETE_ABORT, _COMMIT, _RETRY): Verdict.FENCED,
    (TxnState.COMPLETE_ABORT, _COMMIT, _CURRENT): Verdict.WRONG_STATE,
    (TxnState.COMPLETE_ABORT, _ABORT, _RETRY): Verdict.DONE,
    (TxnState.COMPLETE_ABORT, _ABORT, _CURRENT): Verdict.END,
}


def decide(
    entry: TxnEntry, request: EndArguments, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[EndTxnResult] | EndTxnResult:
    if request.version.bumps_epochs:
        verdict = _judge_tv2(entry, request)
    else:
        verdict = _judge_tv0(entry, request)
    match verdict:
        case Verdict.END:
            return _end(entry, request, allocate_producer_id, now_ms)
        case Verdict.DONE:
            return _repeat_answer(entry, request)
        case Verdict.BEING_DONE:
            check_not_prepared(entry)
            raise InvariantError(f"{entry.transactional_id!r} is being completed but not prepared")
        case Verdict.WRONG_STATE:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"a transaction in {NAME_OF[entry.metadata.state]} cannot {request.verb}"
            )
        case Verdict.FENCED:
            raise fenced(entry, request.presented)


def _judge_tv0(entry: TxnEntry, request: EndArguments) -> Verdict:
    check_identity(entry, request.presented)
    check_not_pending(entry)
    return TV0_VERDICTS[entry.metadata.state, request.commit]


def _judge_tv2(entry: TxnEntry, request: EndArguments) -> Verdict:
    # Before the producer id is looked at: the client may already have the new one of a rotation that is still pending
    # (KAFKA-18660).
    check_not_pending(entry)
    check_not_doubtful(entry, request.presented)
    presented, current, state = request.presented, entry.client_identity, entry.metadata.state
    if _is_retry_after_rotation(entry.metadata, presented):
        if state in COMPLETED or (state in PREPARED and entry.metadata.keeps_prepared):
            return TV2_VERDICTS[state, request.commit, _RETRY]
        return Verdict.FENCED
    check_producer_id(entry, presented)
    if presented.epoch == current.epoch:
        return TV2_VERDICTS[state, request.commit, _CURRENT]
    # Clients of both protocols meet where TV2 is finalised. An end of the older one left the epoch alone: then whoever
    # is one below was replaced, and must not get the identity of its successor.
    was_bumped = entry.metadata.client_version.bumps_epochs or not request.cluster_version.bumps_epochs
    if presented.epoch + 1 == current.epoch and was_bumped:
        return TV2_VERDICTS[state, request.commit, _RETRY]
    return Verdict.FENCED


def _is_retry_after_rotation(metadata: TxnMetadata, presented: ProducerIdAndEpoch) -> bool:
    """Whether this end used up the epochs of its producer id, and the answer with the new one was lost."""
    current = metadata.client_identity
    return (
        presented.producer_id == metadata.prev_producer_id
        and presented.producer_id != current.producer_id
        and presented.epoch == EPOCH_EXHAUSTED
        and current.epoch == 0
    )


def _end(
    entry: TxnEntry, request: EndArguments, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[EndTxnResult]:
    target_state = TxnState.PREPARE_COMMIT if request.commit else TxnState.PREPARE_ABORT
    target = epochs.ended(entry.metadata, target_state, request.version, now_ms, allocate_producer_id)
    reason = f"{request.verb} decided over {len(target.partitions)} partitions"
    if not request.version.bumps_epochs:
        return Transition(target, EndTxnResult(reason=reason))
    return Transition(target, EndTxnResult(reason=reason, identity=target.identity_once_complete))


def _repeat_answer(entry: TxnEntry, request: EndArguments) -> EndTxnResult:
    if not request.version.bumps_epochs:
        return EndTxnResult(reason=f"the {request.verb} was done before")
    if entry.client_identity.epoch == EPOCH_MAX:
        # Left by a fencing abort under TV0/1. No client may go on with it, and InitProducerId rotates it away.
        raise fenced(entry, request.presented)
    return EndTxnResult(reason=f"the {request.verb} was done before", identity=entry.client_identity)
