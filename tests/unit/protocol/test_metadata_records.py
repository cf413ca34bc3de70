"""Records of `__cluster_metadata`: bytes that a controller of Kafka 4.3 wrote, and what is not known here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import uuid_from_text
from oncelog.core.invariant import InvariantError
from oncelog.protocol.messages.cluster_metadata import (
    RECORD_TYPES,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    SnapshotFooterRecord,
    decode_metadata_record,
    encode_metadata_record,
)
from oncelog.protocol.primitives import MalformedRequest
from oncelog.protocol.schema import Message
from tests.unit.protocol import strategies

TOPIC_ID = uuid_from_text("l7hx6NNhQLyQhnHi4fXZnQ")
CAPTURED: list[tuple[str, int, Message]] = [
    ("01140000", 0, NoOpRecord()),
    (
        "010c00116d657461646174612e76657273696f6e001e00",
        0,
        FeatureLevelRecord(name="metadata.version", feature_level=30),
    ),
    (
        "01110000000001000000000000001d010001ff",
        0,
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=29, fenced=-1),
    ),
    (
        "0105020000000097b871e8d36140bc908671e2e1f5d99d0100050200000001",
        2,
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]),
    ),
    (
        "0105020000000197b871e8d36140bc908671e2e1f5d99d0200050200000001010400000001",
        2,
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, isr=[1], leader=1),
    ),
]


@pytest.mark.parametrize(("data", "version", "message"), CAPTURED, ids=lambda value: type(value).__name__)
def test_records_as_a_controller_wrote_them(data: str, version: int, message: Message) -> None:
    record = decode_metadata_record(bytes.fromhex(data))
    assert (record.version, record.known()) == (version, message)
    assert encode_metadata_record(message, version).hex() == data


@given(st.data())
def test_every_type_and_version_is_read_as_it_was_written(data: st.DataObject) -> None:
    number, cls = data.draw(st.sampled_from(list(RECORD_TYPES.items())))
    version = data.draw(st.sampled_from(strategies.versions_of(cls)))
    message = data.draw(strategies.message(cls, version))
    record = decode_metadata_record(encode_metadata_record(message, version))
    assert (record.type, record.version, record.known()) == (number, version, message)


@pytest.mark.parametrize(("type_number", "version", "name"), [(99, 3, "RECORD_TYPE_99"), (4, 1, "CONFIG_RECORD")])
def test_a_type_or_version_of_the_future_is_refused_by_its_numbers(type_number: int, version: int, name: str) -> None:
    record = decode_metadata_record(bytes([1, type_number, version, 0]))
    assert (record.type_name, record.message, record.position) == (name, None, 3)
    with pytest.raises(KafkaError, match=rf"type {type_number} \({name}\) in version {version} is not known") as raised:
        record.known()
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_another_frame_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match="frame version 2"):
        decode_metadata_record(b"\x02\x14\x00\x00")


def test_a_control_record_is_no_metadata_record() -> None:
    with pytest.raises(InvariantError, match="SnapshotFooterRecord is no metadata record"):
        encode_metadata_record(SnapshotFooterRecord(), 0)
