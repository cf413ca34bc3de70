"""AddPartitionsToTxn, AddOffsetsToTxn and the verification of KIP-890: the partitions of a transaction."""

from __future__ import annotations

from dataclasses import replace

from oncelog.coordinator.txn.decision import (
    Transition,
    check_identity,
    check_not_pending,
    check_not_prepared,
)
from oncelog.coordinator.txn.metadata import TxnEntry
from oncelog.coordinator.txn.results import PartitionsResult
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import ProducerIdAndEpoch, TopicPartition


def add(
    entry: TxnEntry,
    presented: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    version: TransactionVersion,
    now_ms: int,
) -> Transition[PartitionsResult] | PartitionsResult:
    # First of all, so that a producer id whose rotation is still pending is not taken for a wrong one (KAFKA-18660).
    check_not_pending(entry)
    check_identity(entry, presented)
    check_not_prepared(entry)
    _check_open_for_more(entry)
    current = entry.metadata
    response = PartitionsResult(partitions=dict.fromkeys(partitions, ErrorCode.NONE))
    begun = current.state is TxnState.ONGOING
    if begun and partitions <= current.partitions:
        return response
    target = replace(
        current,
        state=TxnState.ONGOING,
        partitions=current.partitions | partitions,
        start_ms=current.start_ms if begun else now_ms,
        last_update_ms=now_ms,
        prev_producer_id=current.producer_id,
        client_version=version,
    )
    return Transition(target, response)


def verify(entry: TxnEntry, presented: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> PartitionsResult:
    """Whether they are in the transaction. A pending transition is no obstacle: the append checks a guard again."""
    check_identity(entry, presented)
    check_not_prepared(entry)
    _check_open_for_more(entry)
    members = entry.metadata.partitions
    codes = {
        partition: ErrorCode.NONE if partition in members else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }
    missing = [str(partition) for partition in sorted(partitions) if partition not in members]
    reason = f"not in the transaction: {', '.join(missing)}" if missing else ""
    return PartitionsResult(partitions=codes, reason=reason)


def _check_open_for_more(entry: TxnEntry) -> None:
    if entry.metadata.keeps_prepared:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            "the prepared transaction that was kept can only be committed or aborted",
        )
