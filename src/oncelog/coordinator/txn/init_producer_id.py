"""InitProducerId of a transactional id: the checks in Kafka's order, then a bump, a rotation or a fencing abort.

KIP-939. With `enable2Pc` the transactions of the id never time out. With `keepPreparedTxn` an open transaction is not
aborted: the answer names it, the caller gets a newer identity, and its EndTxn settles the kept transaction; nothing
may be added to it. Apache Kafka, up to 4.4 and its trunk, answers UNSUPPORTED_VERSION to `keepPreparedTxn` always. Here
that answer is given when `transaction.two.phase.commit.enable` is off, and when the finalised transaction.version is
below 2, whose EndTxn cannot tell the client its bumped epoch. As the KIP has it, `keepPreparedTxn` does not need
`enable2Pc`, and it finds nothing to keep when no transaction is open: then it is an ordinary InitProducerId. One
without `keepPreparedTxn` aborts whatever is open, prepared or not: that is forced termination.
"""

from __future__ import annotations

from typing import Final

from oncelog.coordinator.txn import epochs
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.decision import (
    Transition,
    check_not_doubtful,
    check_not_pending,
    check_not_prepared,
    fenced,
)
from oncelog.coordinator.txn.epochs import AllocateProducerId, StaleEpoch
from oncelog.coordinator.txn.fencing import fencing_abort
from oncelog.coordinator.txn.metadata import (
    TWO_PHASE_COMMIT_TIMEOUT_MS,
    Fence,
    TxnEntry,
    TxnMetadata,
    is_exhausted,
)
from oncelog.coordinator.txn.results import InitProducerIdResult
from oncelog.coordinator.txn.state import TxnState
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerIdAndEpoch,
)
from oncelog.core.invariant import invariant

FIRST_EPOCH: Final = ProducerEpoch(0)


@dataclass(frozen=True, slots=True)
class InitArguments:
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    enable_2pc: bool = False
    keep_prepared: bool = False

    @property
    def stored_timeout_ms(self) -> int:
        return TWO_PHASE_COMMIT_TIMEOUT_MS if self.enable_2pc else self.timeout_ms

    @property
    def expected_epoch(self) -> ProducerEpoch | None:
        return None if self.expected is None else self.expected.epoch


def expected_identity(producer_id: int, producer_epoch: int) -> ProducerIdAndEpoch | None:
    """The pair a request names as its own; none when both are -1, and an error when only one is."""
    if producer_id == NO_PRODUCER_ID and producer_epoch == NO_PRODUCER_EPOCH:
        return None
    if producer_id == NO_PRODUCER_ID or producer_epoch == NO_PRODUCER_EPOCH:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"producer id {producer_id} with epoch {producer_epoch}: either both are given or none",
        )
    return ProducerIdAndEpoch.of(producer_id, producer_epoch)


def idempotent_producer(allocate_producer_id: AllocateProducerId) -> InitProducerIdResult:
    """Without a transactional id every call gets a new producer id; any broker can answer, and nothing is logged."""
    try:
        return InitProducerIdResult(identity=ProducerIdAndEpoch(allocate_producer_id(), FIRST_EPOCH))
    except KafkaError as error:
        return InitProducerIdResult.failed(error.code, error.message)


def check_request(transactional_id: str, request: InitArguments, config: TxnConfig) -> None:
    """What can be refused without looking at the id."""
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be the empty string")
    if request.enable_2pc and not config.two_phase_commit_enable:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "enable2Pc is refused because transaction.two.phase.commit.enable is false",
        )
    if request.keep_prepared and not config.two_phase_commit_enable:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "keepPreparedTxn is refused because transaction.two.phase.commit.enable is false",
        )
    if request.keep_prepared and not config.transaction_version.bumps_epochs:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"keepPreparedTxn needs transaction.version 2; {config.transaction_version:d} is finalised",
        )
    if not request.enable_2pc and not 0 < request.timeout_ms <= config.max_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"a transaction timeout of {request.timeout_ms} ms is not between 1 and transaction.max.timeout.ms, "
            f"which is {config.max_timeout_ms}",
        )


def decide(
    entry: TxnEntry,
    request: InitArguments,
    config: TxnConfig,
    allocate_producer_id: AllocateProducerId,
    now_ms: int,
) -> Transition[InitProducerIdResult] | InitProducerIdResult:
    check_not_pending(entry)
    if request.expected is not None:
        check_not_doubtful(entry, request.expected)
        if not _may_expect(entry.metadata, request.expected):
            raise fenced(entry, request.expected)
    check_not_prepared(entry)
    if entry.metadata.state is not TxnState.ONGOING:
        return _initialise(entry, request, allocate_producer_id, now_ms)
    if request.keep_prepared:
        return _keep_prepared(entry, request, allocate_producer_id, now_ms)
    return _abort_first(entry, config, allocate_producer_id, now_ms)


def _may_expect(metadata: TxnMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether the producer id can be the caller's own. Its epoch is looked at when it is to be bumped."""
    if not metadata.exists or expected.producer_id == metadata.client_identity.producer_id:
        return True
    return expected.producer_id == metadata.prev_producer_id and is_exhausted(expected.epoch)


def _initialise(
    entry: TxnEntry, request: InitArguments, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[InitProducerIdResult]:
    current = entry.metadata
    try:
        target = epochs.initialised(
            current,
            request.expected_epoch,
            request.stored_timeout_ms,
            now_ms,
            allocate_producer_id,
            is_doubtful=entry.is_doubtful,
        )
    except StaleEpoch:
        raise _stale(entry, request) from None
    identity = _handed_out(target)
    reason = f"initialised with producer id {identity.producer_id} epoch {identity.epoch}"
    response = InitProducerIdResult(identity=identity, reason=reason)
    return Transition(target, response, _fence(entry, target, request))


def _keep_prepared(
    entry: TxnEntry, request: InitArguments, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[InitProducerIdResult] | InitProducerIdResult:
    current = entry.metadata
    try:
        target = epochs.kept(current, request.expected_epoch, now_ms, allocate_producer_id)
    except StaleEpoch:
        raise _stale(entry, request) from None
    response = InitProducerIdResult(
        identity=_handed_out(target),
        ongoing=current.transaction_identity,
        reason=f"initialised to settle the prepared transaction of producer id {current.producer_id} "
        f"epoch {current.producer_epoch}",
    )
    if target is current:
        return response
    return Transition(target, response, _fence(entry, target, request))


def _abort_first(
    entry: TxnEntry, config: TxnConfig, allocate_producer_id: AllocateProducerId, now_ms: int
) -> Transition[InitProducerIdResult]:
    """The epoch of this abort is given to nobody: the caller's retry bumps it once more."""
    why = "a newer producer took over with InitProducerId and the open transaction was aborted"
    response = InitProducerIdResult.failed(
        ErrorCode.CONCURRENT_TRANSACTIONS, "the open transaction is being aborted first"
    )
    return fencing_abort(entry, config, allocate_producer_id, now_ms, why, response, then_wait=True)


def _fence(entry: TxnEntry, target: TxnMetadata, request: InitArguments) -> Fence | None:
    before, after = entry.client_identity, target.client_identity
    if not entry.metadata.exists or before == after:
        return None
    who = "a newer producer took over" if request.expected is None else "the producer initialised itself again"
    return Fence(before, f"{who} with producer id {after.producer_id} epoch {after.epoch}")


def _stale(entry: TxnEntry, request: InitArguments) -> KafkaError:
    invariant(request.expected is not None, "an epoch was found stale that nobody expected")
    return fenced(entry, request.expected or entry.client_identity)


def _handed_out(target: TxnMetadata) -> ProducerIdAndEpoch:
    identity = target.client_identity
    invariant(0 <= identity.epoch < EPOCH_MAX, "epoch %s must not be given to a client", identity.epoch)
    return identity
