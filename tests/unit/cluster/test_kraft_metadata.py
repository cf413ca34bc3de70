"""The image of what Kafka's controllers wrote in a data folder: the newest snapshot, then the log behind it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.cluster.kraft_metadata import LoadedImage, load_image, load_settings
from oncelog.controller import metadata_batches
from oncelog.controller.checkpoint import Checkpoint, Quorum, encode_checkpoint
from oncelog.controller.image import EMPTY_IMAGE
from oncelog.core.codec import Codec
from oncelog.core.config_resources import ResourceType
from oncelog.core.ids import NodeId
from oncelog.protocol.batch import Record, build_batch, decode_records, iter_headers, read_header
from oncelog.protocol.messages.cluster_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_metadata_record,
)
from oncelog.protocol.schema import Message
from tests.unit.controller.metadata import image_of

BROKER = 4
FIRST_LOG = f"{0:020d}.log"


def batch(base_offset: int, *messages: Message) -> bytes:
    values = [encode_metadata_record(message, 0) for message in messages]
    records = [Record(number, 0, None, value) for number, value in enumerate(values)]
    return build_batch(records, timestamp_ms=1, base_offset=base_offset)


def config(topic: str, name: str, value: str | None, kind: int = ResourceType.TOPIC) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=topic, name=name, value=value)


def checkpoint(*messages: Message) -> bytes:
    return encode_checkpoint(Checkpoint(image_of(*messages), Quorum(), 0), epoch=1, timestamp_ms=0)


def topic_settings(data_folder: Path) -> tuple[dict[str, dict[str, str]], bool]:
    image, is_complete, *_ = load_image(data_folder)
    found = {name: dict(values) for (kind, name), values in image.settings.items() if kind == ResourceType.TOPIC}
    return found, is_complete


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "__cluster_metadata-0"
    made.mkdir()
    return made


@pytest.mark.parametrize("name", ["tv0", "tv1", "tv2", "tv2-killed"])
def test_folders_of_kafka_are_read_to_their_end(kafka_data: Callable[[str], Path], name: str) -> None:
    folder = kafka_data(name)
    image, is_complete, *_ = load_image(folder)
    assert is_complete
    assert image.topic_settings("compacted")["cleanup.policy"] == "compact"
    assert image.topic_settings("__transaction_state")["cleanup.policy"] == "compact"
    assert image.metadata_version == 30
    assert image.features.get("transaction.version", 0) == int(name[2])
    assert image.controllers.keys() == image.brokers.keys() == {NodeId(1)}
    folders = {path.name for path in folder.iterdir() if path.is_dir()} - {"__cluster_metadata-0"}
    partitions = {f"{topic.name}-{index}" for topic in image.topics.values() for index in topic.partitions}
    assert partitions == {name for name in folders if not name.endswith("-delete")}
    # A clean stop fences the broker and takes its leaderships away.
    leaders = {found.leader for topic in image.topics.values() for found in topic.partitions.values()}
    is_killed = name == "tv2-killed"
    assert (image.brokers[NodeId(1)].is_fenced, leaders) == (not is_killed, {NodeId(1 if is_killed else -1)})


def test_later_records_replace_and_remove_earlier_ones(folder: Path) -> None:
    old, new = uuid.uuid4(), uuid.uuid4()
    (folder / FIRST_LOG).write_bytes(
        batch(0, TopicRecord(name="a", topic_id=old), config("a", "retention.ms", "1"), config("b", "x", "y"))
        + batch(3, config("b", "retention.ms", "2"), config("b", "retention.ms", "3"), config("b", "x", None))
        + batch(6, RemoveTopicRecord(topic_id=old), TopicRecord(name="a", topic_id=new), config("1", "x", "y", BROKER))
    )
    assert topic_settings(folder.parent) == ({"b": {"retention.ms": "3"}}, True)


def test_the_newest_snapshot_stands_for_the_log_before_it(folder: Path) -> None:
    (folder / f"{5:020d}-{1:010d}.checkpoint").write_bytes(checkpoint(config("a", "segment.ms", "old")))
    (folder / f"{9:020d}-{1:010d}.checkpoint").write_bytes(checkpoint(config("a", "segment.ms", "snapshot")))
    (folder / f"{8:020d}.log").write_bytes(
        batch(8, config("a", "segment.ms", "before")) + batch(9, config("b", "segment.ms", "behind"))
    )
    expected = {"a": {"segment.ms": "snapshot"}, "b": {"segment.ms": "behind"}}
    assert topic_settings(folder.parent) == (expected, True)


def test_without_a_metadata_log_nothing_is_known(tmp_path: Path) -> None:
    assert load_image(tmp_path) == LoadedImage(EMPTY_IMAGE, is_complete=False)


@pytest.mark.parametrize("damage", ["torn", "changed"])
def test_a_torn_end_is_no_loss_but_damage_before_it_is(folder: Path, damage: str) -> None:
    whole, second = batch(0, config("a", "x", "1")), batch(1, config("b", "x", "1"))
    broken = second[:-3] if damage == "torn" else second[:-1] + bytes([second[-1] ^ 1])
    (folder / FIRST_LOG).write_bytes(whole + broken)
    assert topic_settings(folder.parent) == ({"a": {"x": "1"}}, True)
    (folder / f"{2:020d}.log").write_bytes(batch(2, config("c", "x", "1")))
    assert topic_settings(folder.parent) == ({"a": {"x": "1"}}, False)


def test_a_snapshot_that_is_cut_off_is_not_taken_for_all_there_was(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = checkpoint(config("a", "x", "1"))
    *_, (footer, _) = iter_headers(data)
    (folder / f"{5:020d}-{1:010d}.checkpoint").write_bytes(data[:footer])
    assert load_image(folder.parent) == LoadedImage(EMPTY_IMAGE, is_complete=False)
    assert "no footer" in caplog.text


def test_settings_are_found_without_batches_that_have_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(
        metadata_batches,
        "decode_records",
        lambda data, position: (
            decoded.append(read_header(data, position).base_offset),
            decode_records(data, position),
        )[1],
    )
    topics = [TopicRecord(name=f"t{number}", topic_id=uuid.uuid4()) for number in range(100)]
    values = [encode_metadata_record(config("b", "x", "2"), 0)]
    packed = build_batch([Record(0, 0, None, values[0])], timestamp_ms=1, base_offset=102, codec=Codec.GZIP)
    held = [BeginTransactionRecord(name="t"), config("a", "x", "2"), AbortTransactionRecord()]
    (folder / FIRST_LOG).write_bytes(
        batch(0, *topics) + batch(100, topics[0], config("a", "x", "1")) + packed + batch(103, *held)
    )
    found = {name: dict(values) for (_, name), values in load_settings(folder.parent).settings.items()}
    assert (found, decoded) == ({"a": {"x": "1"}, "b": {"x": "2"}}, [100, 102, 103])


def test_an_aborted_transaction_of_metadata_is_not_there(folder: Path) -> None:
    held = [BeginTransactionRecord(name="t"), config("a", "x", "2"), AbortTransactionRecord()]
    (folder / FIRST_LOG).write_bytes(
        batch(0, config("a", "x", "1")) + batch(1, *held) + batch(4, config("b", "x", "3"))
    )
    assert topic_settings(folder.parent) == ({"a": {"x": "1"}, "b": {"x": "3"}}, True)


def test_records_of_a_newer_kafka_are_left_out_but_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    unknown = build_batch([Record(0, 0, None, b"\x01\x63\x07\x00")], timestamp_ms=1, base_offset=1)
    (folder / FIRST_LOG).write_bytes(batch(0, config("a", "x", "1")) + unknown + batch(2, config("b", "x", "1")))
    assert topic_settings(folder.parent) == ({"a": {"x": "1"}, "b": {"x": "1"}}, False)
    assert "metadata record of type 99 (RECORD_TYPE_99) in version 7 is not known" in caplog.text
