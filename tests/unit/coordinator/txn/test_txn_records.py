from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.records import (
    DecodedRecord,
    UnknownRecord,
    decode_record,
    encode_key,
    encode_record,
    encode_tombstone,
    encode_value,
)
from oncelog.coordinator.txn.state import NEVER_LOGGED, TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.ids import ProducerEpoch, ProducerId, TopicPartition
from tests.unit.coordinator.txn.txn_harness import START_MS, TV0, TV1, TV2, as_recorded, metadata

KEY = bytes.fromhex("0000000474782d31")
VALUE_V0 = bytes.fromhex(
    "000000000000000003e800010000ea60010000000100036f75740000000200000000000000020000018bcfe568050000018bcfe56800"
)
VALUE_V1 = bytes.fromhex(
    "000100000000000003e800010000ea600102046f7574030000000000000002000000018bcfe568050000018bcfe56800"
    "02000800000000000003e802020002"
)
ONGOING = metadata(
    TxnState.ONGOING,
    epoch=1,
    partitions=frozenset({TopicPartition("out", 2), TopicPartition("out", 0)}),
    last_update_ms=START_MS + 5,
    client_version=TV2,
)


def test_the_bytes_of_a_key_and_of_both_value_versions() -> None:
    assert encode_key("tx-1") == KEY
    assert encode_value(ONGOING, TV0) == VALUE_V0
    assert encode_value(ONGOING, TV1) == encode_value(ONGOING, TV2) == VALUE_V1


def test_version_0_has_no_room_for_the_tagged_fields() -> None:
    decoded = decode_record(KEY, VALUE_V0)
    assert decoded == DecodedRecord(
        "tx-1", replace(ONGOING, prev_producer_id=ProducerId(-1), client_version=TransactionVersion.TV0)
    )


def test_an_empty_id_has_null_partitions_and_a_completed_one_an_empty_list() -> None:
    empty, complete = (encode_value(metadata(state), TV1) for state in (TxnState.EMPTY, TxnState.COMPLETE_COMMIT))
    at = 2 + 8 + 2 + 4 + 1
    assert empty[at] == 0
    assert complete[at] == 1


def test_a_tombstone_has_no_value() -> None:
    record = encode_tombstone("tx-1")
    assert (record.key, record.value) == (KEY, None)
    assert decode_record(record.key, record.value) == DecodedRecord("tx-1", None)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        (b"\x00\x07" + KEY[2:], VALUE_V1, "type 7"),
        (KEY, b"\x00\x02" + VALUE_V1[2:], "version 2"),
        (KEY, encode_value(replace(ONGOING, client_version=3), TV2), "client transaction version 3"),  # type: ignore[arg-type]
        (KEY, encode_value(replace(ONGOING, state=9), TV2), "state 9"),  # type: ignore[arg-type]
    ],
)
def test_what_a_newer_broker_wrote_is_skipped_with_a_warning(key: bytes, value: bytes, named: str) -> None:
    decoded = decode_record(key, value)
    assert isinstance(decoded, UnknownRecord)
    assert named in decoded.warning


def test_unknown_tags_of_a_known_version_are_tolerated() -> None:
    with_tag_9 = VALUE_V1.replace(b"\x02\x00\x08", b"\x03\x00\x08", 1) + bytes.fromhex("0901ff")
    assert decode_record(KEY, with_tag_9) == decode_record(KEY, VALUE_V1)


values = st.builds(
    TxnMetadata,
    producer_id=st.integers(0, 2**62).map(ProducerId),
    producer_epoch=st.integers(0, 2**15 - 1).map(ProducerEpoch),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([state for state in TxnState if state not in NEVER_LOGGED and state is not TxnState.EMPTY]),
    last_update_ms=st.integers(0, 2**62),
    partitions=st.frozensets(st.builds(TopicPartition, st.text(min_size=1, max_size=8), st.integers(0, 1000))),
    start_ms=st.integers(-1, 2**62),
    prev_producer_id=st.integers(-1, 2**62).map(ProducerId),
    next_producer_id=st.integers(-1, 2**62).map(ProducerId),
    next_producer_epoch=st.integers(-1, 2**15 - 1).map(ProducerEpoch),
    client_version=st.sampled_from(TransactionVersion),
    last_producer_epoch=st.integers(-1, 2**15 - 1).map(ProducerEpoch),
)


@given(st.text(min_size=1, max_size=20), values, st.sampled_from(TransactionVersion))
def test_reading_back_gives_what_as_recorded_says(
    transactional_id: str, value: TxnMetadata, version: TransactionVersion
) -> None:
    record = encode_record(transactional_id, value, version)
    assert decode_record(record.key, record.value) == DecodedRecord(transactional_id, as_recorded(value, version))
