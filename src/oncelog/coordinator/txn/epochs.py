"""How epochs and producer ids move: the values that follow from a value.

| event                                                        | epoch          | last epoch | producer id      |
| ------------------------------------------------------------ | -------------- | ---------- | ---------------- |
| first InitProducerId of an id                                | 0 (from -1)    | -1         | new              |
| InitProducerId, nothing expected                             | e+1            | -1         | same             |
| InitProducerId, e expected (KIP-360)                         | e+1            | e          | same             |
| InitProducerId, last epoch expected (retry of a lost answer) | e              | unchanged  | same             |
| InitProducerId at e >= 32766, nothing or e expected          | 0              | -1 or e    | new              |
| InitProducerId of a doubtful id (see `recovery`)             | 0              | -1         | new              |
| EndTxn TV0/1                                                 | e              | unchanged  | same             |
| EndTxn TV2, e < 32766                                        | e+1            | e          | same             |
| EndTxn TV2, e >= 32766                                       | 32767, then 0  | e          | same, then new   |
| fencing abort, server TV0/1                                  | e+1            | -1         | same             |
| fencing abort, server TV2                                    | as EndTxn TV2  | e          | as EndTxn TV2    |

"Then" is between Prepare* and Complete*: the markers still carry the old producer id, and 32767 is never given to a
client. For a kept prepared transaction (see `metadata`) all of this holds for the client's pair, and the transaction's
own epoch moves to e+1 for the markers. The client's epoch is bumped by the end of a kept transaction although
InitProducerId bumped it before: otherwise an EndTxn of the same client that is still on its way could end its next
transaction.

The previous producer id is that of the client before the transition. Kafka forgets it when a lost answer of
InitProducerId is asked for again; it is kept here, so that a second retry gets the same answer as the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from oncelog.coordinator.txn.metadata import TxnMetadata, is_exhausted
from oncelog.coordinator.txn.state import COMPLETION_OF, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.ids import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
)
from oncelog.core.invariant import invariant

AllocateProducerId: TypeAlias = Callable[[], ProducerId]
"""May raise KafkaError, COORDINATOR_LOAD_IN_PROGRESS above all, when no producer id is at hand."""


class StaleEpoch(Exception):
    """The epoch a client expects to be current is neither that nor the one before."""


def created(producer_id: ProducerId, timeout_ms: int, now_ms: int) -> TxnMetadata:
    """An id that was never initialised: no epoch yet, and nothing of it is logged."""
    return TxnMetadata(producer_id, NO_PRODUCER_EPOCH, timeout_ms, TxnState.EMPTY, now_ms)


def initialised(
    current: TxnMetadata,
    expected_epoch: ProducerEpoch | None,
    timeout_ms: int,
    now_ms: int,
    allocate_producer_id: AllocateProducerId,
    *,
    is_doubtful: bool = False,
) -> TxnMetadata:
    """The value after InitProducerId while no transaction is open."""
    epoch = current.producer_epoch
    is_retry = False
    if expected_epoch is None:
        last_epoch = NO_PRODUCER_EPOCH
    elif expected_epoch == epoch or not current.exists:
        last_epoch = epoch
    elif expected_epoch == current.last_producer_epoch and epoch < EPOCH_MAX:
        last_epoch = current.last_producer_epoch
        is_retry = True
    else:
        raise StaleEpoch

    identity = current.transaction_identity
    if is_doubtful:
        identity = _first_of_new_id(allocate_producer_id)
    elif not is_retry:
        identity = _bumped(identity, allocate_producer_id)
    return replace(
        current,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        last_producer_epoch=last_epoch,
        prev_producer_id=current.prev_producer_id if is_retry else current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TxnState.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
    )


def kept(
    current: TxnMetadata,
    expected_epoch: ProducerEpoch | None,
    now_ms: int,
    allocate_producer_id: AllocateProducerId,
) -> TxnMetadata:
    """The value after InitProducerId with `keepPreparedTxn` over an open transaction: a new identity of the client."""
    client = current.client_identity
    if expected_epoch is not None and expected_epoch != client.epoch:
        if current.keeps_prepared and expected_epoch == current.last_producer_epoch:
            return current
        raise StaleEpoch
    following = _bumped(client, allocate_producer_id)
    return replace(
        current,
        next_producer_id=following.producer_id,
        next_producer_epoch=following.epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH if expected_epoch is None else client.epoch,
        prev_producer_id=client.producer_id,
        last_update_ms=now_ms,
    )


def ended(
    current: TxnMetadata,
    target: TxnState,
    version: TransactionVersion,
    now_ms: int,
    allocate_producer_id: AllocateProducerId,
    *,
    fencing: bool = False,
) -> TxnMetadata:
    """The Prepare* value of an EndTxn, or of an abort by the coordinator itself (`fencing`)."""
    client = current.client_identity
    epoch, following, last_epoch = current.producer_epoch, client, current.last_producer_epoch
    if version.bumps_epochs or fencing:
        invariant(epoch < EPOCH_MAX or target is TxnState.PREPARE_ABORT, "a commit at the reserved epoch")
        epoch = ProducerEpoch(min(epoch + 1, EPOCH_MAX))
        last_epoch = client.epoch if version.bumps_epochs else NO_PRODUCER_EPOCH
        if current.keeps_prepared or (version.bumps_epochs and is_exhausted(client.epoch)):
            following = _bumped(client, allocate_producer_id)

    next_producer_id, next_producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if current.keeps_prepared:
        next_producer_id, next_producer_epoch = following
    elif following.producer_id != client.producer_id:
        next_producer_id = following.producer_id
    return replace(
        current,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        prev_producer_id=client.producer_id,
        next_producer_id=next_producer_id,
        next_producer_epoch=next_producer_epoch,
        state=target,
        # The abort of a transaction that never began has no start, but a Complete* record needs one.
        start_ms=current.start_ms if current.state is TxnState.ONGOING else now_ms,
        last_update_ms=now_ms,
        client_version=version,
    )


def completed(current: TxnMetadata, now_ms: int) -> TxnMetadata:
    """The Complete* value that follows a Prepare* value once all its markers are written."""
    identity = current.identity_once_complete
    return replace(
        current,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        prev_producer_id=current.prev_producer_id if current.keeps_prepared else current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        state=COMPLETION_OF[current.state],
        partitions=frozenset(),
        last_update_ms=now_ms,
    )


def _bumped(identity: ProducerIdAndEpoch, allocate_producer_id: AllocateProducerId) -> ProducerIdAndEpoch:
    if is_exhausted(identity.epoch):
        return _first_of_new_id(allocate_producer_id)
    return ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(identity.epoch + 1))


def _first_of_new_id(allocate_producer_id: AllocateProducerId) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(allocate_producer_id(), ProducerEpoch(0))
