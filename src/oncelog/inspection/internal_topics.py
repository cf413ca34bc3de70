"""Records of internal topics as objects: JSON values in the form of Kafka's converters.

`__transaction_state` and `__consumer_offsets` have typed keys and values, each behind an int16: for a key the type of
the record, for a value the version of its schema. `__cluster_metadata` has values alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from oncelog.core.errors import KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.inspection.batch_file import DecodedRecord
from oncelog.inspection.kafka_json import to_json
from oncelog.inspection.metadata_records import metadata_record
from oncelog.protocol.compiler import decode_versioned, read_version
from oncelog.protocol.messages.consumer_protocol import decode_assignment, decode_subscription
from oncelog.protocol.messages.group_metadata_log import (
    RECORD_TYPES,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataValue,
)
from oncelog.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message

_NULL_CLASSIC_METADATA: Final = b"\x01\x00\x01\x00"
"""One tag, number 0, of one byte: 0."""


@dataclass(frozen=True, slots=True)
class InternalRecord:
    """`key` and `value` are JSON objects; a null value is a tombstone. `problem` replaces them if there is one."""

    key: dict[str, Any] | None = None
    value: dict[str, Any] | None = None
    problem: str = ""


Decode = Callable[[DecodedRecord], InternalRecord]


def decoder_for(topic: str) -> Decode | None:
    """How the records of a topic are decoded, or None if they are users' own."""
    return _DECODERS.get(topic)


def decode_transaction_record(key: bytes, value: bytes | None) -> tuple[str, TransactionLogValue | None] | None:
    """Transactional id and state, or None for a record of another type. Raises MalformedRequest."""
    if read_version(key) != 0:
        return None
    decoded = None if value is None else decode_versioned(TransactionLogValue, value)
    return decode_versioned(TransactionLogKey, key).transactional_id, decoded


def _coordinator_record(types: dict[int, tuple[type[Message], type[Message]]], record: DecodedRecord) -> InternalRecord:
    if record.key is None:
        return InternalRecord(problem=f"Failed to decode message at offset {record.offset}: it has no key")
    try:
        number = read_version(record.key)
        if number not in types:
            return InternalRecord(problem=f"Unknown record type {number} at offset {record.offset}, skipping.")
        key_class, value_class = types[number]
        key = to_json(decode_versioned(key_class, record.key), number)
        return InternalRecord({"type": str(number), "data": key}, _value(value_class, record.value))
    except (MalformedRequest, KafkaError) as error:
        return InternalRecord(problem=f"Error at offset {record.offset}, skipping. {error}")


def _value(cls: type[Message], data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    version = read_version(data)
    message = decode_versioned(cls, _without_null_struct(cls, data))
    shown = to_json(message, version)
    if isinstance(message, GroupMetadataValue) and message.protocol_type == "consumer":
        for member, described in zip(message.members, shown["members"], strict=True):
            _decode_field(described, "subscription", member.subscription, decode_subscription)
            _decode_field(described, "assignment", member.assignment, decode_assignment)
    return {"version": str(version), "data": shown}


def _without_null_struct(cls: type[Message], data: bytes) -> bytes:
    """Kafka writes the null of a tagged struct as a 0, instead of leaving the tag out. It is the last field."""
    if cls is ConsumerGroupMemberMetadataValue and data.endswith(_NULL_CLASSIC_METADATA):
        return data.removesuffix(_NULL_CLASSIC_METADATA) + b"\0"
    return data


def _decode_field(described: dict[str, Any], name: str, data: bytes, decode: Callable[[bytes], Message]) -> None:
    """Show bytes that consumers have encoded as an object, if they can be decoded."""
    with contextlib.suppress(MalformedRequest):
        message = decode(data)
        described[name] = to_json(message, min(read_version(data), message.VERSIONS[1]))


def _cluster_metadata(record: DecodedRecord) -> InternalRecord:
    try:
        return InternalRecord(value=metadata_record(record.value or b""))
    except (MalformedRequest, IndexError) as error:
        return InternalRecord(problem=f"Error at {record.offset}, skipping. {error}")


_DECODERS: Final[dict[str, Decode]] = {
    TRANSACTION_STATE_TOPIC: partial(_coordinator_record, {0: (TransactionLogKey, TransactionLogValue)}),
    GROUP_METADATA_TOPIC: partial(_coordinator_record, RECORD_TYPES),
    CLUSTER_METADATA_TOPIC: _cluster_metadata,
}
