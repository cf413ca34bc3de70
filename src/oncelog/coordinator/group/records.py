"""Records of `__consumer_offsets`: keys and values, as Kafka 4.3 writes them.

The first two bytes of a key say what the record is about. Three kinds are ours:

    0, 1   an offset of (group, topic, partition); 0 is what very old brokers wrote
    2      a classic group

Offsets are written as value version 4, which carries the topic id; as version 1 when an old client asked for a
retention of its own, the only version that has a field for it. Groups are written as value version 3. A record
without a value is a tombstone.

Kinds 3 to 23 belong to group types that are not served here (consumer, share and streams groups). They stay in the
log untouched and are skipped. A kind that nobody has heard of is skipped as well, with a warning.
"""

from __future__ import annotations

from typing import Final

from oncelog.coordinator.group.offsets import CommittedOffset
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.clock import plausible_ms
from oncelog.core.dataclass import dataclass
from oncelog.core.ids import NO_TIMESTAMP, TopicPartition
from oncelog.protocol.compiler import decode_versioned, encode_versioned, read_version
from oncelog.protocol.messages import group_metadata_log as log
from oncelog.protocol.primitives import MalformedRequest

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
GROUP_VALUE_VERSION: Final = 3

_OFFSET_KINDS: Final = frozenset({0, 1})
_GROUP_KIND: Final = 2
_OTHER_GROUP_TYPES: Final = range(3, 24)


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    group_id: str
    partition: TopicPartition
    offset: CommittedOffset | None
    """None in a tombstone."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group_id: str
    metadata: log.GroupMetadataValue | None
    """None in a tombstone."""


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    warning: str | None
    """None when skipping is nothing unusual."""


# Encoding


def offset_record(group_id: str, partition: TopicPartition, offset: CommittedOffset) -> CoordinatorRecord:
    has_expiry = offset.expire_timestamp_ms is not None
    value = log.OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=NO_TIMESTAMP if offset.expire_timestamp_ms is None else offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    version = OFFSET_VALUE_VERSION_WITH_EXPIRY if has_expiry else OFFSET_VALUE_VERSION
    return CoordinatorRecord(_offset_key(group_id, partition), encode_versioned(value, version))


def offset_tombstone(group_id: str, partition: TopicPartition) -> CoordinatorRecord:
    return CoordinatorRecord(_offset_key(group_id, partition), None)


def group_record(group_id: str, metadata: log.GroupMetadataValue) -> CoordinatorRecord:
    return CoordinatorRecord(_group_key(group_id), encode_versioned(metadata, GROUP_VALUE_VERSION))


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(_group_key(group_id), None)


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = log.OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
    return encode_versioned(key, OFFSET_KEY_VERSION)


def _group_key(group_id: str) -> bytes:
    return encode_versioned(log.GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


# Decoding


def decode(
    key: bytes, value: bytes | None, record_offset: int, written_ms: int = NO_TIMESTAMP
) -> OffsetRecord | GroupRecord | SkippedRecord:
    """Never raises: a record that cannot be read must not keep a whole partition of groups from loading.

    `written_ms` counts where a time in the record is far behind it.
    """
    try:
        kind = read_version(key)
        if kind in _OFFSET_KINDS:
            return _decode_offset(key, value, record_offset, written_ms)
        if kind == _GROUP_KIND:
            return _decode_group(key, value, written_ms)
    except MalformedRequest as error:
        return SkippedRecord(f"the record at offset {record_offset} of __consumer_offsets cannot be read: {error}")
    if kind in _OTHER_GROUP_TYPES:
        return SkippedRecord(None)
    return SkippedRecord(f"the record at offset {record_offset} of __consumer_offsets is of an unknown kind: {kind}")


def _decode_offset(key: bytes, value: bytes | None, record_offset: int, written_ms: int) -> OffsetRecord:
    decoded_key = decode_versioned(log.OffsetCommitKey, key)
    partition = TopicPartition(decoded_key.topic, decoded_key.partition)
    if value is None:
        return OffsetRecord(decoded_key.group, partition, None)
    decoded = decode_versioned(log.OffsetCommitValue, value)
    return OffsetRecord(
        decoded_key.group,
        partition,
        CommittedOffset(
            offset=decoded.offset,
            leader_epoch=decoded.leader_epoch,
            metadata=decoded.metadata,
            commit_timestamp_ms=plausible_ms(decoded.commit_timestamp, written_ms),
            expire_timestamp_ms=None if decoded.expire_timestamp == NO_TIMESTAMP else decoded.expire_timestamp,
            topic_id=decoded.topic_id,
            record_offset=record_offset,
        ),
    )


def _decode_group(key: bytes, value: bytes | None, written_ms: int) -> GroupRecord:
    group_id = decode_versioned(log.GroupMetadataKey, key).group
    if value is None:
        return GroupRecord(group_id, None)
    decoded = decode_versioned(log.GroupMetadataValue, value)
    if decoded.current_state_timestamp != NO_TIMESTAMP:
        decoded.current_state_timestamp = plausible_ms(decoded.current_state_timestamp, written_ms)
    return GroupRecord(group_id, decoded)
