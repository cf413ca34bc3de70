"""Keys and values of `__transaction_state`.

A key is the record type, int16 0, and the transactional id. A value is schema v0 under transaction.version 0 and v1
otherwise; v1 is flexible and has four tagged fields: the previous producer id (0), the next producer id (1), the
version the client spoke (2), and the next producer epoch (3, KIP-939: only set while a prepared transaction is kept).
The partitions are null in state Empty. A null value removes the id.

Kafka writes tags 0 and 1 since 4.3 (KAFKA-20310): without them a failover in the middle of a rotation strands the
producer. Schema v0 has no place for any of the four. Records of a type or version that is not known here
were written by a newer software; they are skipped with a warning.
"""

from __future__ import annotations

from typing import Final

from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.state import NEVER_LOGGED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import ProducerEpoch, ProducerId, TopicPartition
from oncelog.protocol.compiler import decode_versioned, encode_versioned, read_version
from oncelog.protocol.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue

KEY_VERSION: Final = 0
VALUE_VERSIONS: Final = (0, 1)
_KNOWN_STATES: Final = frozenset(TxnState) - NEVER_LOGGED
_KNOWN_CLIENTS: Final = frozenset(TransactionVersion)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    transactional_id: str
    metadata: TxnMetadata | None
    """None in a tombstone."""


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    warning: str


def encode_record(transactional_id: str, metadata: TxnMetadata, version: TransactionVersion) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(transactional_id), encode_value(metadata, version))


def encode_tombstone(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(transactional_id), None)


def decode_record(key: bytes, value: bytes | None) -> DecodedRecord | UnknownRecord:
    key_version = read_version(key)
    if key_version != KEY_VERSION:
        return UnknownRecord(f"a newer broker's record of type {key_version} in __transaction_state was skipped")
    transactional_id = decode_key(key)
    if value is None:
        return DecodedRecord(transactional_id, None)
    value_version = read_version(value)
    if value_version not in VALUE_VERSIONS:
        return UnknownRecord(
            f"a newer broker's value of version {value_version} for transactional id {transactional_id!r} was skipped"
        )
    message = decode_versioned(TransactionLogValue, value)
    if message.transaction_status not in _KNOWN_STATES or message.client_transaction_version not in _KNOWN_CLIENTS:
        return UnknownRecord(
            f"a newer broker's value with state {message.transaction_status} and client transaction version "
            f"{message.client_transaction_version} for transactional id {transactional_id!r} was skipped"
        )
    return DecodedRecord(transactional_id, _metadata_of(message))


def decode_key(key: bytes) -> str:
    transactional_id: str = decode_versioned(TransactionLogKey, key).transactional_id
    return transactional_id


def encode_key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def encode_value(metadata: TxnMetadata, version: TransactionVersion) -> bytes:
    message = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=_grouped_by_topic(metadata),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        previous_producer_id=metadata.prev_producer_id,
        next_producer_id=metadata.next_producer_id,
        client_transaction_version=metadata.client_version,
        next_producer_epoch=metadata.next_producer_epoch,
    )
    return encode_versioned(message, version.record_version)


def _grouped_by_topic(metadata: TxnMetadata) -> list[PartitionsSchema] | None:
    if metadata.state is TxnState.EMPTY:
        return None
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=partitions) for topic, partitions in by_topic.items()]


def _metadata_of(message: TransactionLogValue) -> TxnMetadata:
    return TxnMetadata(
        producer_id=ProducerId(message.producer_id),
        producer_epoch=ProducerEpoch(message.producer_epoch),
        timeout_ms=message.transaction_timeout_ms,
        state=TxnState(message.transaction_status),
        last_update_ms=message.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(group.topic, partition)
            for group in message.transaction_partitions or []
            for partition in group.partition_ids
        ),
        start_ms=message.transaction_start_timestamp_ms,
        prev_producer_id=ProducerId(message.previous_producer_id),
        next_producer_id=ProducerId(message.next_producer_id),
        next_producer_epoch=ProducerEpoch(message.next_producer_epoch),
        client_version=TransactionVersion(message.client_transaction_version),
    )
