"""A log start in a checkpoint that disagrees with the log costs no record: not when it is read, nor by retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.storage import checkpoints
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from tests.unit.storage.damage import Damage, damaged_copies
from tests.unit.storage.log_harness import NOW_MS, TOPIC_ID, append, batch, delete_old, ranges

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120, retention_ms=-1)
WHOLE, SHORTENED = TopicPartition("t", 0), TopicPartition("t", 1)
Ranges = dict[TopicPartition, list[tuple[int, int]]]


def open_dir(path: Path) -> LogDir:
    return LogDir.open(path, node_id=1, config_for=lambda _: CONFIG, now_ms=NOW_MS)


def make_folder(path: Path, *, clean: bool) -> Ranges:
    """Two logs of several segments, the records of one deleted from the middle of a segment back. Returns the rest."""
    folder = open_dir(path)
    logs = [folder.create_log(partition, TOPIC_ID, CONFIG, now_ms=NOW_MS) for partition in (WHOLE, SHORTENED)]
    for number in range(48):
        append(logs[number % 2], batch(3), epoch=number // 20)
    logs[1].delete_records(34)
    assert logs[1].segments[0].base_offset < 33
    expected = {log.topic_partition: ranges(log) for log in logs}
    if clean:
        assert folder.close({log.topic_partition: log.log_end_offset for log in logs})
    else:
        folder.checkpoint({log.topic_partition: log.log_end_offset for log in logs})
        folder.abandon()
    return expected


def readable(folder: LogDir) -> Ranges:
    """After retention has had its turn."""
    for log in folder.logs.values():
        delete_old(log, NOW_MS)
    return {partition: ranges(log) for partition, log in folder.logs.items()}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("bit", range(5))
def test_a_changed_bit_in_the_log_starts_deletes_nothing(tmp_path: Path, clean: bool, has_sums: bool, bit: int) -> None:
    """Also in a folder that Kafka has left, or without the sums beside it."""
    expected = make_folder(tmp_path / "data", clean=clean)
    if not has_sums:
        (tmp_path / "data" / checkpoints.SUMS).unlink()
    size = (tmp_path / "data" / checkpoints.LOG_START_OFFSETS).stat().st_size
    flips = [Damage(checkpoints.LOG_START_OFFSETS, "flip", position, bit) for position in range(size)]
    for damage, copy in damaged_copies(tmp_path / "data", flips, tmp_path):
        again = open_dir(copy)
        found = readable(again)
        for partition, wanted in expected.items():
            # Deleted records may be back: these come first.
            assert found[partition][-len(wanted) :] == wanted, damage
        again.abandon()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_sums", [True, False])
def test_without_damage_the_log_start_of_kafka_is_taken_over(tmp_path: Path, clean: bool, has_sums: bool) -> None:
    """Kafka leaves the sums of before where they are. Without its start, deleted records would be back."""
    expected = make_folder(tmp_path / "data", clean=clean)
    starts = checkpoints.encode_offsets({SHORTENED: 34})  # as Kafka, which leaves out what begins with its segments
    (tmp_path / "data" / checkpoints.LOG_START_OFFSETS).write_bytes(starts)
    if not has_sums:
        (tmp_path / "data" / checkpoints.SUMS).unlink()
    again = open_dir(tmp_path / "data")
    assert [log.log_start_offset for log in again.logs.values()] == [0, 34]
    assert readable(again) == expected
    again.abandon()


def test_a_log_start_without_a_witness_deletes_nothing(tmp_path: Path) -> None:
    expected = make_folder(tmp_path / "data", clean=True)
    (tmp_path / "data" / checkpoints.SUMS).unlink()
    (tmp_path / "data" / str(WHOLE) / "leader-epoch-checkpoint").unlink()
    starts = checkpoints.encode_offsets({WHOLE: 50, SHORTENED: 34})
    (tmp_path / "data" / checkpoints.LOG_START_OFFSETS).write_bytes(starts)
    again = open_dir(tmp_path / "data")
    assert readable(again) == expected
    again.abandon()


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_below_its_start_is_kept(tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the checkpoint has its sum: then something else is wrong, and nothing is gained by deleting."""
    expected = make_folder(tmp_path / "data", clean=clean)
    starts = {WHOLE: 4096, SHORTENED: 34}
    checkpoints.CheckpointFiles(tmp_path / "data").write({checkpoints.LOG_START_OFFSETS: starts})
    again = open_dir(tmp_path / "data")
    assert readable(again) == expected
    assert "t-0: its log start offset 4096 is not used" in caplog.text
    assert append(again.logs[WHOLE]).first_offset == expected[WHOLE][-1][1] + 1
    again.close({})
    assert checkpoints.CheckpointFiles(tmp_path / "data").read(checkpoints.LOG_START_OFFSETS)[WHOLE] == 0


def test_a_cleaner_offset_without_a_sum_is_not_believed(tmp_path: Path) -> None:
    """Above what was cleaned it would let a tombstone go before the record that it deletes."""
    make_folder(tmp_path / "data", clean=True)
    (tmp_path / "data" / checkpoints.CLEANER_OFFSETS).write_bytes(checkpoints.encode_offsets({WHOLE: 50}))
    again = open_dir(tmp_path / "data")
    assert again.read_cleaner_offsets() == {}
    again.checkpoint_files.write({checkpoints.CLEANER_OFFSETS: {WHOLE: 30}})
    assert again.read_cleaner_offsets() == {WHOLE: 30}
    again.abandon()
