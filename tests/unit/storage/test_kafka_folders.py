"""Folders that Apache Kafka wrote: they open, they read as Kafka's clients read them, and our files equal Kafka's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import decode_records, iter_headers
from oncelog.storage.log import Log, LogPlace, Origin
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from oncelog.storage.producer_snapshot import decode_snapshot
from tests.data.kafka import NAMES, contents, unpack

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300, producer_id_expiration_ms=2**60, retention_ms=-1)
INTERNAL_CONFIG = LogConfig(producer_id_expiration_ms=2**60)
INDEXES = (".index", ".timeindex", ".txnindex")
KILLED = "tv2-killed"
"""The files that Kafka had not completed when it was killed cannot be compared."""


def config_for(topic: str) -> LogConfig:
    return INTERNAL_CONFIG if topic.startswith("__") else CONFIG


def open_folder(path: Path, now_ms: int) -> LogDir:
    return LogDir.open(path, node_id=_node_id(path), config_for=config_for, now_ms=now_ms)


def _node_id(path: Path) -> int:
    lines = (path / "meta.properties").read_text().splitlines()
    return next(int(line.partition("=")[2]) for line in lines if line.startswith("node.id="))


@pytest.fixture(scope="module", params=NAMES)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, unpack(request.param, tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def opened(original: tuple[str, Path], tmp_path: Path) -> Iterator[tuple[str, LogDir]]:
    name, folder = original
    shutil.copytree(folder, tmp_path / name)
    log_dir = open_folder(tmp_path / name, contents(name)["written_at_ms"])
    yield name, log_dir
    log_dir.abandon()


def partitions(name: str) -> dict[TopicPartition, dict[str, Any]]:
    found = {}
    for key, value in contents(name)["partitions"].items():
        topic, _, partition = key.rpartition("-")
        found[TopicPartition(topic, int(partition))] = value
    return found


def read_records(log: Log, *, committed: bool, end_offset: int) -> list[list[Any]]:
    """What a client makes of the log: batches of aborted transactions and control batches are left out."""
    records = []
    offset = log.log_start_offset
    while offset < end_offset:
        result = log.read(offset, 700, end_offset=end_offset)
        if not result.data:
            break
        aborted = log.aborted_transactions(offset, result.upper_bound_offset) if committed else []
        data = bytes(result.data)
        for position, header in iter_headers(data):
            skipped = header.is_control or any(
                txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset < txn.last_offset
                for txn in aborted
                if header.is_transactional
            )
            for record in [] if skipped else decode_records(data, position):
                timestamp = header.base_timestamp + record.timestamp_delta
                records.append(
                    [
                        header.base_offset + record.offset_delta,
                        header.max_timestamp if header.timestamp_type_append else timestamp,
                        record.key,
                        record.value,
                    ]
                )
            offset = header.next_offset
    return [record for record in records if record[0] >= log.log_start_offset]


def producers(snapshot: bytes) -> list[tuple[int, ...]]:
    """Entries in the order of producer ids: Kafka writes them in the order of a hash map."""
    return sorted(
        (
            entry.producer_id,
            entry.epoch,
            entry.coordinator_epoch,
            entry.last_timestamp,
            entry.txn_first_offset,
            *(entry.batches[-1] if entry.batches else ()),
        )
        for entry in decode_snapshot(snapshot)
    )


def test_every_partition_reads_as_through_kafkas_own_clients(opened: tuple[str, LogDir]) -> None:
    name, log_dir = opened
    expected = partitions(name)
    assert expected
    for partition, said in expected.items():
        log = log_dir.logs[partition]
        assert log.log_start_offset == said["start"], partition
        assert log.log_end_offset == said["high_watermark"], partition
        log.producer_state.on_high_watermark(log.log_end_offset)
        unstable = log.producer_state.first_unstable_offset
        lso = log.log_end_offset if unstable is None else max(unstable, log.log_start_offset)
        assert lso == said["last_stable_offset"], partition
        for isolation in ("committed", "uncommitted"):
            committed = isolation == "committed"
            end_offset = lso if committed else log.log_end_offset
            found = read_records(log, committed=committed, end_offset=end_offset)
            assert [record[:2] for record in found] == [record[:2] for record in said[isolation]], partition


def test_controllers_log_is_left_alone(opened: tuple[str, LogDir]) -> None:
    _, log_dir = opened
    assert (log_dir.path / "__cluster_metadata-0").is_dir()
    assert not [partition for partition in log_dir.logs if partition.topic == "__cluster_metadata"]


def written_in_one_go(log_dir: LogDir) -> list[Log]:
    """Logs whose files are as appended: the cleaner has not been there."""
    return [log for partition, log in log_dir.logs.items() if partition.topic != "compacted"]


def test_rebuilt_indexes_equal_kafkas_byte_for_byte(opened: tuple[str, LogDir], original: tuple[str, Path]) -> None:
    name, log_dir = opened
    if name == KILLED:
        return
    for log in written_in_one_go(log_dir):
        for segment in log.segments:
            segment.rebuild_indexes()
            segment.write_index_tails()
            for suffix in (".index", ".timeindex"):
                path = segment.log_file.path.with_suffix(suffix)
                assert path.read_bytes() == (original[1] / log.folder.name / path.name).read_bytes(), path


def test_replicated_log_equals_kafkas_byte_for_byte(
    opened: tuple[str, LogDir], original: tuple[str, Path], tmp_path: Path
) -> None:
    name, log_dir = opened
    if name == KILLED:
        return
    compared = 0
    for source in written_in_one_go(log_dir):
        if source.segments[0].base_offset > 0:
            continue
        folder = tmp_path / "copies" / source.folder.name
        folder.parent.mkdir(exist_ok=True)
        copy = Log.create(LogPlace(folder, source.topic_partition, 0), source.config, source.topic_id)
        offset = 0
        while offset < source.log_end_offset:
            result = source.read(offset, 1, end_offset=source.log_end_offset)
            info = copy.append(bytes(result.data), leader_epoch=2**31 - 1, origin=Origin.REPLICATION, now_ms=0)
            offset = info.last_offset + 1
        copy.close()
        kafkas = {path.name: path.read_bytes() for path in (original[1] / folder.name).iterdir()}
        for path in sorted(folder.iterdir()):
            if path.suffix in (".log", *INDEXES) or path.name == "partition.metadata":
                assert path.read_bytes() == kafkas[path.name], path
                compared += 1
            if path.suffix == ".snapshot":
                assert producers(path.read_bytes()) == producers(kafkas[path.name]), path
            if path.name == "leader-epoch-checkpoint" and kafkas[path.name]:
                assert path.read_bytes() == kafkas[path.name], path
        assert {file for file in kafkas if file.endswith((".log", ".snapshot", *INDEXES)) and kafkas[file]} <= {
            path.name for path in folder.iterdir()
        }
    assert compared > 50


def test_folder_opens_again_after_our_own_clean_stop(opened: tuple[str, LogDir]) -> None:
    name, log_dir = opened
    ends = {partition: log.log_end_offset for partition, log in log_dir.logs.items()}
    assert log_dir.close(log_dir.high_watermarks)
    again = open_folder(log_dir.path, contents(name)["written_at_ms"])
    assert again.was_clean
    assert not any(log.is_loaded for log in again.logs.values())
    for partition, log in again.logs.items():
        assert log.log_end_offset == ends[partition]
        log.load()
        assert log.log_end_offset == ends[partition]
    again.abandon()
