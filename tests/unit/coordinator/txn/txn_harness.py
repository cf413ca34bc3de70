"""A coordinator on a log that is a list: what the shell does, without the waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.coordinator.txn.config import TxnConfig
from oncelog.coordinator.txn.effects import SendMarkers
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.coordinator.txn.metadata import TxnEntry, TxnMetadata
from oncelog.coordinator.txn.outcome import TxnOutcome
from oncelog.coordinator.txn.records import decode_record, encode_record
from oncelog.coordinator.txn.results import EndTxnResult, InitProducerIdResult, PartitionsResult, Result
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import (
    CoordinatorEpoch,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)

R = TypeVar("R", bound=Result)

TV0, TV1, TV2 = TransactionVersion.TV0, TransactionVersion.TV1, TransactionVersion.TV2
ID = "tx-1"
START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
P0, P1, P2 = TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("audit", 0)
FIRST_PID = 1000


def identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def metadata(state: TxnState, epoch: int = 5, producer_id: int = FIRST_PID, **changes: object) -> TxnMetadata:
    """A plausible value in this state; the transaction, where there is one, is open on P0 and P1."""
    has_partitions = state in (TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)
    value = TxnMetadata(
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        timeout_ms=TIMEOUT_MS,
        state=state,
        last_update_ms=START_MS,
        partitions=frozenset({P0, P1}) if has_partitions else frozenset(),
        start_ms=-1 if state is TxnState.EMPTY else START_MS,
        prev_producer_id=ProducerId(producer_id),
    )
    return replace(value, **changes)  # type: ignore[arg-type]


def as_recorded(metadata: TxnMetadata, version: TransactionVersion) -> TxnMetadata:
    """What reading the value back will give."""
    durable = replace(metadata, last_producer_epoch=ProducerEpoch(-1))
    if version.record_version > 0:
        return durable
    return replace(
        durable,
        prev_producer_id=ProducerId(-1),
        next_producer_id=ProducerId(-1),
        next_producer_epoch=ProducerEpoch(-1),
        client_version=TransactionVersion.TV0,
    )


def refusal_of(shard: TxnShard, transactional_id: str) -> ErrorCode:
    """Of a description."""
    with pytest.raises(KafkaError) as refused:
        shard.describe(transactional_id)
    return refused.value.code


def described_partitions(shard: TxnShard) -> set[TopicPartition]:
    topics = shard.describe(ID).topics
    return {TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions}


class Harness:
    def __init__(self, config: TxnConfig | None = None, *, version: TransactionVersion = TV2) -> None:
        self.config = config or TxnConfig(transaction_version=version)
        self.now_ms = START_MS
        self.log: list[CoordinatorRecord] = []
        self.next_producer_id = FIRST_PID
        self.allocation_error: Exception | None = None
        self.to_send: list[SendMarkers] = []
        self.coordinator_epoch = -1
        self.shard = self._new_shard()
        self.reload()

    def _new_shard(self) -> TxnShard:
        return TxnShard(20, self.config, self.allocate)

    def allocate(self) -> ProducerId:
        if self.allocation_error is not None:
            raise self.allocation_error
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id - 1)

    def reload(self) -> None:
        """Crash and come back, or move to another broker: only the log survives."""
        self.shard = self._new_shard()
        self.to_send = []
        self.replay(*self.log)
        self.coordinator_epoch += 1
        self.to_send += self.shard.on_loaded(CoordinatorEpoch(self.coordinator_epoch), self.now_ms)

    def replay(self, *records: CoordinatorRecord) -> list[SendMarkers]:
        replayed = [self.shard.replay(record, offset=0, now_ms=self.now_ms) for record in records]
        return [effect for each in replayed for effect in each.effects]

    def install(self, value: TxnMetadata, *, transactional_id: str = ID, pending: TxnState | None = None) -> None:
        """Put an id into a state, with nothing going on unless `pending` says so."""
        self.log.append(encode_record(transactional_id, value, self.config.transaction_version))
        self.reload()
        entry = self.entry(transactional_id)
        self.to_send.clear()
        entry.metadata = replace(entry.metadata, last_producer_epoch=value.last_producer_epoch)
        entry.pending_state = pending

    def commit(self, outcome: TxnOutcome[R]) -> R:
        """Append, apply, answer."""
        if not outcome.records:
            return outcome.response
        self.log += outcome.records
        self.to_send += self.replay(*outcome.records)
        return outcome.response

    def fail(self, outcome: TxnOutcome[R], error: ErrorCode) -> ErrorCode:
        """What the client is told."""
        assert outcome.records and outcome.transactional_id is not None
        outcome.reply(lambda _: None, outcome.response)
        (reply,) = self.shard.append_failed(outcome, error, "refused", self.now_ms).replies
        told: ErrorCode = reply.response.error  # type: ignore[attr-defined]
        return told

    def write_markers(self) -> None:
        """Every marker that is to be sent is written and acknowledged, and Complete* logged."""
        while self.to_send:
            sent = self.to_send.pop(0)
            self.commit(self.shard.markers_acknowledged(sent, sent.partitions, self.now_ms))

    def init(self, expected: ProducerIdAndEpoch | None = None, **options: Any) -> InitProducerIdResult:
        return self.commit(self.init_outcome(expected, **options))

    def init_outcome(
        self,
        expected: ProducerIdAndEpoch | None = None,
        *,
        transactional_id: str = ID,
        timeout_ms: int = TIMEOUT_MS,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
    ) -> TxnOutcome[InitProducerIdResult]:
        return self.shard.init_producer_id(
            transactional_id, timeout_ms, expected, enable_2pc, keep_prepared, self.now_ms
        )

    def settle_and_init(self, **options: Any) -> ProducerIdAndEpoch:
        """As a client does: retry until the transaction that was in the way is aborted."""
        result = self.init(**options)
        if result.error is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.write_markers()
            result = self.init(**options)
        assert result.error is ErrorCode.NONE, result.reason
        return result.identity

    def add_outcome(
        self,
        presented: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        version: TransactionVersion = TV2,
        transactional_id: str = ID,
    ) -> TxnOutcome[PartitionsResult]:
        return self.shard.add_partitions(transactional_id, presented, partitions or (P0,), version, self.now_ms)

    def add(self, presented: ProducerIdAndEpoch, *partitions: TopicPartition, **options: Any) -> PartitionsResult:
        return self.commit(self.add_outcome(presented, *partitions, **options))

    def verify(self, presented: ProducerIdAndEpoch, *partitions: TopicPartition) -> PartitionsResult:
        outcome = self.shard.verify_partitions(ID, presented, partitions or (P0,))
        assert not outcome.records
        return outcome.response

    def end_outcome(
        self,
        presented: ProducerIdAndEpoch,
        *,
        commit: bool,
        version: TransactionVersion = TV2,
        transactional_id: str = ID,
    ) -> TxnOutcome[EndTxnResult]:
        return self.shard.end_txn(transactional_id, presented, commit, version, self.now_ms)

    def end(self, presented: ProducerIdAndEpoch, *, commit: bool, version: TransactionVersion = TV2) -> EndTxnResult:
        return self.commit(self.end_outcome(presented, commit=commit, version=version))

    def entry(self, transactional_id: str = ID) -> TxnEntry:
        return self.shard._entries[transactional_id]

    @property
    def value(self) -> TxnMetadata:
        return self.entry().metadata

    @property
    def logged(self) -> TxnMetadata:
        """The last value in the log."""
        decoded = decode_record(self.log[-1].key, self.log[-1].value)
        return decoded.metadata  # type: ignore[union-attr, return-value]
