"""Records of `__consumer_offsets`: the vectors of the format reference, and folders that Apache Kafka 4.3 wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.group.offsets import CommittedOffset
from oncelog.coordinator.group.records import (
    GroupRecord,
    OffsetRecord,
    SkippedRecord,
    decode,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from oncelog.coordinator.outcome import CoordinatorRecord
from oncelog.core.ids import NULL_UUID, TopicPartition, uuid_from_text
from oncelog.protocol.batch import decode_records, iter_headers, parse_control
from oncelog.protocol.messages.group_metadata_log import GroupMetadataValue, MemberMetadata
from tests.data import kafka
from tests.unit.coordinator.group.shard_state import durable_state, producers_with_pending_offsets

NOW_MS = 1_700_000_000_000
IN_0 = TopicPartition("in", 0)
KEY = bytes.fromhex("0001000267310002696e00000000")
VALUE_V3 = bytes.fromhex("0003000000000000002a0000000500000000018bcfe56800")
VALUE_V4 = bytes.fromhex("0004000000000000002a00000005010000018bcfe5680000")


def test_an_offset_is_written_as_the_vectors_say() -> None:
    offset = CommittedOffset(offset=42, leader_epoch=5, commit_timestamp_ms=NOW_MS)
    record = offset_record("g1", IN_0, offset)
    assert (record.key, record.value) == (KEY, VALUE_V4)


@pytest.mark.parametrize("value", [VALUE_V3, VALUE_V4])
def test_an_offset_is_read_from_either_version(value: bytes) -> None:
    expected = CommittedOffset(offset=42, leader_epoch=5, commit_timestamp_ms=NOW_MS, record_offset=9)
    assert decode(KEY, value, 9) == OffsetRecord("g1", IN_0, expected)


def test_the_legacy_key_means_the_same() -> None:
    legacy = b"\x00\x00" + KEY[2:]
    value = bytes.fromhex("0000000000000000002a0000") + NOW_MS.to_bytes(8, "big")
    record = decode(legacy, value, 1)
    assert isinstance(record, OffsetRecord)
    assert record.offset == CommittedOffset(offset=42, commit_timestamp_ms=NOW_MS, record_offset=1)


def test_a_topic_id_goes_into_the_tagged_field() -> None:
    topic_id = uuid_from_text("vZ3YBYMlSGycDmtog0CQHA")
    offset = CommittedOffset(offset=1, commit_timestamp_ms=NOW_MS, topic_id=topic_id, record_offset=0)
    record = offset_record("g1", IN_0, offset)
    assert record.value is not None and record.value.endswith(b"\x01\x00\x10" + topic_id.bytes)
    assert decode(record.key, record.value, 0) == OffsetRecord("g1", IN_0, offset)


def test_a_retention_of_its_own_is_written_as_version_1() -> None:
    offset = CommittedOffset(offset=1, commit_timestamp_ms=NOW_MS, expire_timestamp_ms=NOW_MS + 5, record_offset=3)
    record = offset_record("g1", IN_0, offset)
    assert record.value is not None and record.value[:2] == b"\x00\x01"
    assert decode(record.key, record.value, 3) == OffsetRecord("g1", IN_0, offset)


def test_tombstones() -> None:
    assert decode(offset_tombstone("g1", IN_0).key, None, 0) == OffsetRecord("g1", IN_0, None)
    assert decode(group_tombstone("g1").key, None, 0) == GroupRecord("g1", None)


def test_a_group_survives_the_round_trip() -> None:
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/10.0.0.1",
        rebalance_timeout=60_000,
        session_timeout=10_000,
        subscription=b"sub",
        assignment=b"ass",
    )
    metadata = GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m",
        current_state_timestamp=NOW_MS,
        members=[member],
    )
    record = group_record("g1", metadata)
    assert record.key == b"\x00\x02\x00\x02g1"
    assert record.value is not None and record.value[:2] == b"\x00\x03"
    assert decode(record.key, record.value, 0) == GroupRecord("g1", metadata)


@pytest.mark.parametrize("kind", [3, 5, 8, 15, 16, 23])
def test_records_of_other_group_types_are_skipped_in_silence(kind: int) -> None:
    assert decode(kind.to_bytes(2, "big") + b"\x00\x02g1", b"\x00\x00", 4) == SkippedRecord(None)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"\x00\x63rest", b"", "unknown kind: 99"),
        (b"", b"", "cannot be read"),
        (KEY[:-1], VALUE_V4, "cannot be read"),
        (KEY, b"\x00\x09", "cannot be read"),
        (b"\x00\x02\x00\x02g1", b"\x00\x03\x00", "cannot be read"),
    ],
)
def test_what_cannot_be_understood_is_skipped_with_a_warning(key: bytes, value: bytes, words: str) -> None:
    shard = GroupShard(GroupConfig(), new_member_suffix=str)
    warning = shard.replay(CoordinatorRecord(key, value), offset=17, now_ms=NOW_MS).warning
    assert warning is not None and words in warning and "offset 17" in warning
    assert durable_state(shard) == ({}, {}, {})


# --- folders written by Apache Kafka -----------------------------------------------------------------------------


def _replay(shard: GroupShard, folder: Path) -> list[tuple[bytes, bytes | None]]:
    """Load a partition as a shell would; the records that were data."""
    records: list[tuple[bytes, bytes | None]] = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for position, header in iter_headers(data):
            if header.is_control:
                kind, _ = parse_control(data[position : position + header.size_bytes])
                shard.replay_marker(header.producer_id, commit=kind == 1)
                continue
            for record in decode_records(data, position):
                key = bytes(record.key or b"")
                value = None if record.value is None else bytes(record.value)
                offset = header.base_offset + record.offset_delta
                replayed = shard.replay(
                    CoordinatorRecord(key, value), offset=offset, producer_id=header.producer_id, now_ms=NOW_MS
                )
                assert replayed.warning is None
                records.append((key, value))
    return records


@pytest.mark.parametrize("name", kafka.NAMES)
def test_offsets_in_a_folder_of_apache_kafka_read_as_its_clients_read_them(
    name: str, kafka_data: Callable[[str], Path]
) -> None:
    found: dict[str, dict[str, list[object]]] = {}
    for folder in sorted(kafka_data(name).glob("__consumer_offsets-*")):
        shard = GroupShard(GroupConfig(), new_member_suffix=str)
        _replay(shard, folder)
        shard.loaded(NOW_MS)
        for group in shard.list_groups():
            found[group.group_id] = {
                f"{topic}-{entry.partition_index}": [
                    entry.committed_offset,
                    (entry.metadata or "").rstrip("\0") or None,
                ]
                for topic, index in shard.commits.committed_partitions(group.group_id)
                for entry in shard.commits.fetch(group.group_id, topic, NULL_UUID, [index], require_stable=False)
            }
    expected = kafka.contents(name)["groups"]
    assert found == expected


@pytest.mark.parametrize("name", kafka.NAMES)
def test_our_records_have_the_bytes_of_apache_kafkas(name: str, kafka_data: Callable[[str], Path]) -> None:
    seen = 0
    for folder in kafka_data(name).glob("__consumer_offsets-*"):
        for key, value in _replay(GroupShard(GroupConfig(), new_member_suffix=str), folder):
            record = decode(key, value, 0)
            if isinstance(record, OffsetRecord) and record.offset is not None:
                again = offset_record(record.group_id, record.partition, record.offset)
            elif isinstance(record, GroupRecord) and record.metadata is not None:
                again = group_record(record.group_id, record.metadata)
            else:
                continue
            assert (again.key, again.value) == (key, value)
            seen += 1
    assert seen > 5


def test_the_classic_group_of_apache_kafka_comes_back_with_its_generation(kafka_data: Callable[[str], Path]) -> None:
    shard = GroupShard(GroupConfig(), new_member_suffix=str)
    _replay(shard, kafka_data("tv2") / "__consumer_offsets-0")
    shard.loaded(NOW_MS)
    described = shard.describe_group("group-classic")
    assert (described.group_state, described.protocol_type) == ("Empty", "consumer")
    assert shard._groups["group-classic"].generation_id == 2


def test_an_open_transaction_of_apache_kafka_is_pending(kafka_data: Callable[[str], Path]) -> None:
    shard = GroupShard(GroupConfig(), new_member_suffix=str)
    _replay(shard, kafka_data("tv2") / "__consumer_offsets-3")
    shard.loaded(NOW_MS)
    assert producers_with_pending_offsets(shard) == [11]
    shard.replay_marker(11, commit=True)
    ((topic, index),) = shard.commits.committed_partitions("group-pending")
    (fetched,) = shard.commits.fetch("group-pending", topic, NULL_UUID, [index], require_stable=False)
    assert (topic, fetched.committed_offset) == ("plain", 3)
