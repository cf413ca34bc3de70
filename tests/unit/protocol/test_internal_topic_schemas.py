from __future__ import annotations

import uuid

import pytest

from oncelog.protocol.compiler import decode_versioned, encode_versioned, read_version
from oncelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
)
from oncelog.protocol.messages.group_metadata_log import (
    RECORD_TYPES,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from oncelog.protocol.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message

NOW_MS = 1700000000000
ONGOING = {
    "producer_id": 1000,
    "producer_epoch": 1,
    "transaction_timeout_ms": 60000,
    "transaction_status": 1,
    "transaction_partitions": [PartitionsSchema(topic="out", partition_ids=[0, 2])],
    "transaction_last_update_timestamp_ms": NOW_MS + 5,
    "transaction_start_timestamp_ms": NOW_MS,
}

VECTORS: list[tuple[Message, int, str]] = [
    (TransactionLogKey(transactional_id="tx-1"), 0, "0000000474782d31"),
    (
        TransactionLogValue(**ONGOING),  # type: ignore[arg-type]
        0,
        "000000000000000003e800010000ea60010000000100036f75740000000200000000000000020000018bcfe568050000018bcfe56800",
    ),
    (
        TransactionLogValue(**ONGOING, previous_producer_id=1000, client_transaction_version=2),  # type: ignore[arg-type]
        1,
        (
            "000100000000000003e800010000ea600102046f7574030000000000000002000000018bcfe568050000018bcfe56800"
            "02000800000000000003e802020002"
        ),
    ),
    (OffsetCommitKey(group="g1", topic="in", partition=0), 1, "0001000267310002696e00000000"),
    (
        OffsetCommitValue(offset=42, leader_epoch=5, commit_timestamp=NOW_MS),
        3,
        "0003000000000000002a0000000500000000018bcfe56800",
    ),
    (
        OffsetCommitValue(offset=42, leader_epoch=5, commit_timestamp=NOW_MS),
        4,
        "0004000000000000002a00000005010000018bcfe5680000",
    ),
]


@pytest.mark.parametrize(("message", "version", "expected"), VECTORS)
def test_vectors(message: Message, version: int, expected: str) -> None:
    data = encode_versioned(message, version)
    assert data.hex() == expected
    assert decode_versioned(type(message), memoryview(data)) == message


def test_the_prefix_of_a_key_is_its_record_type() -> None:
    for number, (key, _) in RECORD_TYPES.items():
        first, last = key.VERSIONS
        assert first <= number <= last
        assert read_version(encode_versioned(key(), number)) == number


def test_records_are_decoded_by_the_type_in_their_key() -> None:
    member = MemberMetadata(member_id="m", client_id="c", client_host="/h", session_timeout=9, subscription=b"s")
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol=None, leader="m", members=[member])
    key = GroupMetadataKey(group="g")
    assert decode_record(encode_versioned(key, 2), encode_versioned(value, 3)) == (key, value)
    assert decode_record(encode_versioned(key, 2), None) == (key, None)
    assert decode_record(b"\x00\x0a\x00\x00", b"") is None


def test_consumer_group_records() -> None:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    assert encode_versioned(key, 8) == b"\x00\x08\x00\x01g\x00\x01m"
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        subscribed_topic_names=["t"],
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=5),
    )
    data = encode_versioned(value, 0)
    # A nullable struct starts with a byte that says it is there, also inside a tag.
    assert data.endswith(b"\x01\x00\x07" + b"\x01" + b"\0\0\0\5" + b"\x01" + b"\0")
    assert decode_versioned(ConsumerGroupMemberMetadataValue, data) == value


def test_topic_id_of_a_committed_offset_is_a_tag() -> None:
    value = OffsetCommitValue(offset=1, topic_id=uuid.UUID(int=5))
    data = encode_versioned(value, 4)
    assert data.endswith(b"\x01\x00\x10" + bytes(15) + b"\x05")
    assert decode_versioned(OffsetCommitValue, data) == value


def test_unknown_tags_of_newer_brokers_are_skipped() -> None:
    data = encode_versioned(TransactionLogValue(**ONGOING), 1)  # type: ignore[arg-type]
    assert decode_versioned(TransactionLogValue, data[:-1] + b"\x01\x09\x02zz") == TransactionLogValue(**ONGOING)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\5" + bytes(50), b"\0\1\0"])
def test_malformed_values(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_versioned(TransactionLogValue, data)


def test_consumer_protocol_of_the_future_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a"], owned_partitions=[TopicPartition(topic="a", partitions=[1])], generation_id=4, rack_id="r"
    )
    data = encode_versioned(subscription, 3)
    assert decode_subscription(data) == subscription
    assert decode_subscription(b"\x00\x09" + data[2:] + b"new fields") == subscription
    assignment = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic="a", partitions=[0, 1])])
    assert decode_assignment(encode_versioned(assignment, 0)) == assignment
    with pytest.raises(MalformedRequest):
        decode_assignment(b"\xff\xff")
