"""Kafka's snapshot files: written, read, and refused where they are not whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.controller.checkpoint import Checkpoint, CheckpointReader, Quorum, decode_checkpoint, encode_checkpoint
from oncelog.controller.errors import InvalidMetadata
from oncelog.controller.image import EMPTY_IMAGE, Image
from oncelog.controller.image_records import image_records
from oncelog.controller.metadata_batches import read_batches
from oncelog.core.errors import KafkaError
from oncelog.protocol.batch import CorruptBatchError, Record, build_batch, iter_headers
from oncelog.protocol.messages.cluster_metadata import (
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    VotersRecord,
    VotersVoter,
    encode_metadata_record,
)
from tests.unit.controller.metadata import LEVEL_30, broker, image_of, partition, topic

NO_QUORUM = Quorum()
VOTERS = VotersRecord(voters=[VotersVoter(voter_id=1, voter_directory_id=uuid.UUID(int=5))])


def encoded(image: Image, quorum: Quorum = NO_QUORUM) -> bytes:
    return encode_checkpoint(Checkpoint(image, quorum, 77), epoch=4, timestamp_ms=99)


def test_a_snapshot_begins_with_a_header_and_ends_with_a_footer() -> None:
    data = encoded(image_of(LEVEL_30, topic(), partition()), Quorum(1, VOTERS))
    headers = [header for _, header in iter_headers(data)]
    assert [header.is_control for header in headers] == [True, False, True]
    assert [header.base_offset for header in headers] == [0, 3, 6]
    assert {header.leader_epoch for header in headers} == {4}
    assert [[type(control).__name__ for control in batch.controls] for batch in read_batches(data)] == [
        ["SnapshotHeaderRecord", "KRaftVersionRecord", "VotersRecord"],
        [],
        ["SnapshotFooterRecord"],
    ]


@pytest.mark.parametrize("quorum", [NO_QUORUM, Quorum(1), Quorum(1, VOTERS)])
def test_a_snapshot_is_read_as_it_was_written(quorum: Quorum) -> None:
    image = image_of(LEVEL_30, broker(), topic(), *[partition(index) for index in range(1500)])
    assert decode_checkpoint(encoded(image, quorum)) == Checkpoint(image, quorum, 77)


def test_the_level_of_the_cluster_comes_first() -> None:
    levels = [FeatureLevelRecord(name=name, feature_level=1) for name in ("group.version", "transaction.version")]
    first, *_ = image_records(image_of(*levels, LEVEL_30))
    assert first.message == LEVEL_30


@pytest.mark.parametrize(
    ("level", "of_brokers", "of_partitions"), [(30, 4, 2), (29, 3, 2), (22, 3, 1), (16, 2, 0), (7, 1, 0)]
)
def test_records_have_the_versions_that_the_level_of_the_cluster_allows(
    level: int, of_brokers: int, of_partitions: int
) -> None:
    image = image_of(FeatureLevelRecord(name="metadata.version", feature_level=level), broker(), topic(), partition())
    versions = {type(message): version for message, version in image_records(image)}
    assert (versions[RegisterBrokerRecord], versions[PartitionRecord]) == (of_brokers, of_partitions)


def test_snapshots_of_kafka_itself(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    first = decode_checkpoint((folder / "__cluster_metadata-0" / f"{0:020d}-{0:010d}.checkpoint").read_bytes())
    assert first.quorum.kraft_version == 1
    assert first.quorum.voters is not None
    assert [voter.voter_id for voter in first.quorum.voters.voters] == [1]
    bootstrap = decode_checkpoint((folder / "bootstrap.checkpoint").read_bytes())
    assert bootstrap.image.features["transaction.version"] == 2
    assert bootstrap.image.metadata_version == 30


def test_a_snapshot_without_its_header_or_footer_is_refused() -> None:
    data = encoded(image_of(LEVEL_30))
    positions = [position for position, _ in iter_headers(data)]
    with pytest.raises(InvalidMetadata, match="no footer"):
        decode_checkpoint(data[: positions[-1]])
    with pytest.raises(InvalidMetadata, match="no header"):
        decode_checkpoint(data[positions[1] :])
    with pytest.raises(InvalidMetadata, match="no header"):
        decode_checkpoint(b"")
    with pytest.raises(CorruptBatchError):
        decode_checkpoint(data[:-1])


@pytest.mark.parametrize("size", [1, 7, 61, 100, 10_000])
def test_pieces_of_any_size_give_the_same_image(size: int) -> None:
    data = encoded(image_of(LEVEL_30))
    reader = CheckpointReader()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    assert (reader.size_bytes, reader.finish()) == (len(data), decode_checkpoint(data))


def test_a_changed_byte_is_found() -> None:
    data = bytearray(encoded(EMPTY_IMAGE))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        decode_checkpoint(data)


def test_a_record_of_the_future_is_refused() -> None:
    data = encoded(EMPTY_IMAGE)
    positions = [position for position, _ in iter_headers(data)]
    unknown = build_batch([Record(0, 0, None, b"\x01\x63\x00\x00")], timestamp_ms=0)
    with pytest.raises(KafkaError, match="type 99"):
        decode_checkpoint(data[: positions[-1]] + unknown + data[positions[-1] :])


def test_records_before_the_offset_asked_for_are_left_out() -> None:
    value = encode_metadata_record(NoOpRecord(), 0)
    data = b"".join(
        build_batch([Record(number, 0, None, value) for number in range(3)], timestamp_ms=0, base_offset=base)
        for base in (10, 13)
    )
    assert [len(batch.records) for batch in read_batches(data, 11)] == [2, 3]
    assert [len(batch.records) for batch in read_batches(data, 13)] == [3]
