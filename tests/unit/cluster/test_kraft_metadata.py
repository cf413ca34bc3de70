"""Settings of topics in what Kafka's controllers wrote: the newest snapshot, then the log behind it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.cluster.kraft_metadata import kraft_settings
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.cluster_metadata import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_metadata_record,
)
from oncelog.protocol.schema import Message

TOPIC, BROKER = 2, 4
FIRST_LOG = f"{0:020d}.log"


def batch(base_offset: int, *messages: Message) -> bytes:
    values = [encode_metadata_record(message, 0) for message in messages]
    records = [Record(number, 0, None, value) for number, value in enumerate(values)]
    return build_batch(records, timestamp_ms=1, base_offset=base_offset)


def config(topic: str, name: str, value: str | None, kind: int = TOPIC) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=topic, name=name, value=value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "__cluster_metadata-0"
    made.mkdir()
    return made


@pytest.mark.parametrize("name", ["tv0", "tv1", "tv2", "tv2-killed"])
def test_folders_of_kafka_tell_which_topics_are_compacted(kafka_data: Callable[[str], Path], name: str) -> None:
    found = kraft_settings(kafka_data(name))
    assert found.is_complete
    assert found.topics["compacted"]["cleanup.policy"] == "compact"
    assert found.topics["__transaction_state"]["cleanup.policy"] == "compact"


def test_later_records_replace_and_remove_earlier_ones(folder: Path) -> None:
    old, new = uuid.uuid4(), uuid.uuid4()
    (folder / FIRST_LOG).write_bytes(
        batch(0, TopicRecord(name="a", topic_id=old), config("a", "retention.ms", "1"), config("b", "x", "y"))
        + batch(3, config("b", "retention.ms", "2"), config("b", "retention.ms", "3"), config("b", "x", None))
        + batch(6, RemoveTopicRecord(topic_id=old), TopicRecord(name="a", topic_id=new), config("1", "x", "y", BROKER))
    )
    assert kraft_settings(folder.parent) == ({"b": {"retention.ms": "3"}}, True)


def test_the_newest_snapshot_stands_for_the_log_before_it(folder: Path) -> None:
    (folder / f"{5:020d}-{1:010d}.checkpoint").write_bytes(batch(0, config("a", "segment.ms", "old")))
    (folder / f"{9:020d}-{1:010d}.checkpoint").write_bytes(batch(0, config("a", "segment.ms", "snapshot")))
    (folder / f"{8:020d}.log").write_bytes(
        batch(8, config("a", "segment.ms", "before")) + batch(9, config("b", "segment.ms", "behind"))
    )
    assert kraft_settings(folder.parent).topics == {"a": {"segment.ms": "snapshot"}, "b": {"segment.ms": "behind"}}


def test_without_a_metadata_log_nothing_is_known(tmp_path: Path) -> None:
    assert kraft_settings(tmp_path) == ({}, False)


@pytest.mark.parametrize("damage", ["torn", "changed"])
def test_a_torn_end_is_no_loss_but_damage_before_it_is(folder: Path, damage: str) -> None:
    whole, second = batch(0, config("a", "x", "1")), batch(1, config("b", "x", "1"))
    broken = second[:-3] if damage == "torn" else second[:-1] + bytes([second[-1] ^ 1])
    (folder / FIRST_LOG).write_bytes(whole + broken)
    assert kraft_settings(folder.parent) == ({"a": {"x": "1"}}, True)
    (folder / f"{2:020d}.log").write_bytes(batch(2, config("c", "x", "1")))
    assert kraft_settings(folder.parent) == ({"a": {"x": "1"}}, False)
