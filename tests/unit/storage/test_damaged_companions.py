"""Every file beside the batches cut, changed or removed: what the log says is what it said before, or why not."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.storage import checkpoints
from oncelog.storage.checkpoint_lines import CorruptCheckpointError
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from oncelog.storage.segment_notes import FILE_NAME as NOTES
from oncelog.storage.time_lookup import first_record_from, latest_record
from tests.descriptors import open_descriptors_of_files
from tests.unit.storage.damage import Damage, damaged_copies
from tests.unit.storage.log_harness import (
    NOW_MS,
    ORDERS,
    TOPIC_ID,
    append,
    append_txn,
    batch,
    end_txn,
    new_log,
    read_all,
)

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100)
DAMAGES_PER_FILE = 3


def fill(log: Log) -> None:
    """Several segments, epochs and producers; timestamps that go back; aborted transactions across segments."""
    for number in range(30):
        epoch = number // 11
        stamp_ms = NOW_MS + number * 10 if number % 7 else NOW_MS + 500 - number
        append(log, batch(2, timestamp=stamp_ms, step_ms=1), epoch=epoch)
        append_txn(log, 5 + number % 3, number // 3, leader_epoch=epoch)
        if number % 6 == 5:
            for pid in (5, 6, 7):
                end_txn(log, pid, commit=pid == 6, leader_epoch=epoch)
    append_txn(log, 9, leader_epoch=3)


def facts(log: Log) -> dict[str, Any]:
    """All that is answered from the files beside the batches."""
    end = log.log_end_offset
    stamps = range(NOW_MS - 5, NOW_MS + 520, 13)
    return {
        "offsets": (log.log_start_offset, end),
        "batches": read_all(log, max_bytes=300),
        "aborted": log.aborted_transactions(0, end),
        "aborted later": log.aborted_transactions(end // 2, end),
        "by time": [first_record_from(log, stamp, end_offset=end) for stamp in stamps],
        "latest": latest_record(log),
        "largest": [segment.largest.timestamp for segment in log.segments],
        "epochs": list(log.leader_epochs.entries),
        "open": log.producer_state.first_undecided_offset,
        "producers": sorted(
            (producer.producer_id, producer.last_sequence) for producer in log.producer_state.active_producers()
        ),
    }


def reopened(folder: Path, clean: bool, start: int, recovery_point: int) -> Log:
    return Log(
        LogPlace(folder, ORDERS, NOW_MS), CONFIG, clean=clean, log_start_offset=start, recovery_point=recovery_point
    )


def damages(folder: Path) -> Iterator[Damage]:
    """All kinds for every file; of positions, those of the last entry and a few others."""
    chosen = random.Random(11)
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if path.suffix == ".log" or path.name == "partition.metadata":
            continue
        yield Damage(path.name, "missing")
        for _ in range(DAMAGES_PER_FILE if size else 0):
            tail = chosen.randrange(max(0, size - 46), size)
            yield Damage(path.name, "cut", chosen.choice([tail, tail, chosen.randrange(size)]))
            yield Damage(path.name, "flip", chosen.choice([tail, chosen.randrange(size)]), chosen.randrange(8))


@pytest.fixture(scope="module", params=["stopped", "killed after a flush", "killed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, bool]:
    log = new_log(tmp_path_factory.mktemp("whole"), CONFIG)
    fill(log)
    if request.param == "killed after a flush":
        log.flush()
        append(log, epoch=3)
    is_clean = request.param == "stopped"
    log.close(clean=is_clean)
    assert len(log.segments) > 5
    return log, is_clean


def test_nothing_that_a_log_says_is_changed_by_damage_to_a_companion(
    original: tuple[Log, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, is_clean = original
    expected = facts(log)
    log.close(clean=False)
    all_damages = list(damages(log.folder))
    kinds = {Path(damage.file).suffix or damage.file for damage in all_damages}
    assert {".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"} <= kinds
    assert (NOTES in kinds) == (log.recovery_point > 0), "they are taken with a flush"
    for damage, folder in damaged_copies(log.folder, all_damages, tmp_path):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = reopened(folder, is_clean, log.log_start_offset, log.recovery_point)
            assert facts(found) == expected, damage
        if is_clean and damage.what == "missing" and damage.file != NOTES and needed(log, damage.file):
            assert caplog.messages, f"{damage}: nothing was said of it"
        append(found, epoch=3)
        found.close(clean=False)


def needed(log: Log, name: str) -> bool:
    """Of the snapshots a start needs the newest."""
    return not name.endswith(".snapshot") or int(Path(name).stem) == log.log_end_offset


@pytest.mark.parametrize("damage", ["missing", "cut to whole entries", "flip", "empty", "of another segment"])
def test_a_transaction_index_is_not_believed_after_a_clean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    log = new_log(tmp_path, CONFIG)
    fill(log)
    expected = log.aborted_transactions(0, log.log_end_offset)
    log.close()
    victims = sorted(log.folder.glob("*.txnindex"))
    whole = victims[1].read_bytes()
    if damage == "missing":
        victims[1].unlink()
    else:
        changed = {
            "cut to whole entries": whole[:-34],
            "flip": whole[:12] + bytes([whole[12] ^ 1]) + whole[13:],
            "empty": b"",
            "of another segment": victims[0].read_bytes(),
        }
        victims[1].write_bytes(changed[damage])
    again = reopened(log.folder, True, 0, log.recovery_point)
    with caplog.at_level(logging.WARNING):
        assert again.aborted_transactions(0, again.log_end_offset) == expected
    assert [message for message in caplog.messages if "rebuilding the transaction index" in message]
    assert victims[1].read_bytes() == whole
    again.close(clean=False)


@pytest.mark.parametrize("damage", ["missing", "one too many", "wrong producer"])
def test_without_notes_a_transaction_index_is_compared_with_the_markers(tmp_path: Path, damage: str) -> None:
    """As in a folder that Kafka has left."""
    log = new_log(tmp_path, CONFIG)
    fill(log)
    expected = log.aborted_transactions(0, log.log_end_offset)
    log.close()
    (log.folder / NOTES).unlink()
    victim = sorted(log.folder.glob("*.txnindex"))[0]
    whole = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "one too many":
        last = int.from_bytes(whole[-16:-8], "big")
        victim.write_bytes(whole + whole[-34:-16] + (last + 1).to_bytes(8, "big") + whole[-8:])
    else:
        victim.write_bytes(whole[:9] + b"\x63" + whole[10:])
    again = reopened(log.folder, True, 0, log.recovery_point)
    assert again.aborted_transactions(0, again.log_end_offset) == expected
    assert victim.read_bytes() == whole
    again.close()
    assert (log.folder / NOTES).exists()


def test_a_sound_folder_without_notes_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = new_log(tmp_path, CONFIG)
    fill(log)
    log.close()
    (log.folder / NOTES).unlink()
    before = {path: path.stat().st_mtime_ns for path in log.folder.iterdir()}
    again = reopened(log.folder, True, 0, log.recovery_point)
    with caplog.at_level(logging.WARNING):
        facts(again)
    again.close(clean=False)
    assert caplog.messages == []
    assert {path: path.stat().st_mtime_ns for path in log.folder.iterdir()} == before


def test_what_was_checked_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path, CONFIG)
    fill(log)
    log.close()
    again = reopened(log.folder, True, 0, log.recovery_point)
    monkeypatch.setattr("oncelog.storage.segment.Segment.abort_markers", lambda _: pytest.fail("looked for markers"))
    first = again.aborted_transactions(0, again.log_end_offset)
    monkeypatch.setattr("oncelog.storage.txn_index.TxnIndex._read_crc", lambda *_: pytest.fail("checked it again"))
    assert again.aborted_transactions(0, again.log_end_offset) == first
    again.close(clean=False)


def test_a_time_index_that_lost_whole_entries_does_not_make_a_segment_look_older(tmp_path: Path) -> None:
    """Retention goes by the last entry: a segment must not be deleted for one that is missing."""
    log = new_log(tmp_path, CONFIG)
    for number in range(9):
        append(log, batch(timestamp=NOW_MS + (1_000_000 if number == 5 else number)))
    log.roll(NOW_MS)
    expected = [segment.largest for segment in log.segments]
    assert expected[0].timestamp == NOW_MS + 1_000_000
    log.close()
    victim = log.folder / f"{0:020d}.timeindex"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-12])
    again = reopened(log.folder, True, 0, log.recovery_point)
    assert [segment.largest for segment in again.segments] == expected
    assert victim.read_bytes() == whole
    again.close(clean=False)


# The checkpoints of a folder


def open_dir(path: Path) -> LogDir:
    return LogDir.open(path, node_id=1, config_for=lambda _: CONFIG, now_ms=NOW_MS)


@pytest.mark.parametrize("clean", [True, False])
def test_no_changed_byte_in_a_checkpoint_moves_an_offset(tmp_path: Path, clean: bool) -> None:
    folder = open_dir(tmp_path / "data")
    logs = [folder.create_log(TopicPartition("t", number), TOPIC_ID, CONFIG, now_ms=NOW_MS) for number in range(2)]
    for number in range(24):
        append(logs[number % 2], batch(3))
    logs[1].delete_records(10)
    folder.checkpoint({log.topic_partition: log.log_end_offset for log in logs})
    folder.checkpoint_files.write({checkpoints.CLEANER_OFFSETS: {TopicPartition("t", 0): 21}})
    append(logs[0], batch(3))
    expected = {log.topic_partition: (log.log_start_offset, log.log_end_offset) for log in logs}
    if clean:
        assert folder.close({log.topic_partition: log.log_end_offset for log in logs})
    else:
        for log in logs:
            log.close(clean=False)
        folder.abandon()
    names = [checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.CLEANER_OFFSETS, checkpoints.SUMS]
    flips = [
        Damage(name, "flip", position, bit=0)
        for name in names
        for position in range(0, (tmp_path / "data" / name).stat().st_size, 2)
    ]
    for damage, copy in damaged_copies(tmp_path / "data", flips, tmp_path):
        again = open_dir(copy)
        found = {partition: (log.log_start_offset, log.log_end_offset) for partition, log in again.logs.items()}
        if damage.file == checkpoints.LOG_START_OFFSETS:
            # Without it, deleted records that are still in the first segment come back, as in Kafka.
            found[TopicPartition("t", 1)] = expected[TopicPartition("t", 1)]
            assert again.logs[TopicPartition("t", 1)].log_start_offset <= 10
        assert found == expected, damage
        cleaned = again.read_cleaner_offsets().get(TopicPartition("t", 0), 0)
        assert cleaned in (0, 21)
        again.abandon()


def test_a_crash_between_the_sums_and_a_checkpoint_leaves_nothing_that_disagrees(tmp_path: Path) -> None:
    files = checkpoints.CheckpointFiles(tmp_path)
    files.write({checkpoints.RECOVERY_POINTS: {ORDERS: 5}})
    old = (tmp_path / checkpoints.RECOVERY_POINTS).read_bytes()
    files.write({checkpoints.RECOVERY_POINTS: {ORDERS: 9}})
    assert checkpoints.CheckpointFiles(tmp_path).read(checkpoints.RECOVERY_POINTS) == {ORDERS: 9}
    (tmp_path / checkpoints.RECOVERY_POINTS).write_bytes(old)
    again = checkpoints.CheckpointFiles(tmp_path)
    assert again.read(checkpoints.RECOVERY_POINTS) == {ORDERS: 5}
    again.write({checkpoints.RECOVERY_POINTS: {ORDERS: 7}})
    (tmp_path / checkpoints.RECOVERY_POINTS).write_bytes(checkpoints.encode_offsets({ORDERS: 9}))
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        checkpoints.CheckpointFiles(tmp_path).read(checkpoints.RECOVERY_POINTS)


def test_checkpoints_of_kafka_are_believed(tmp_path: Path) -> None:
    (tmp_path / checkpoints.RECOVERY_POINTS).write_bytes(checkpoints.encode_offsets({ORDERS: 5}))
    assert checkpoints.CheckpointFiles(tmp_path).read(checkpoints.RECOVERY_POINTS) == {ORDERS: 5}


def test_checks_leave_no_descriptors(tmp_path: Path) -> None:
    before = open_descriptors_of_files()
    log = new_log(tmp_path, CONFIG)
    fill(log)
    log.close()
    again = reopened(log.folder, True, 0, log.recovery_point)
    facts(again)
    again.close()
    assert open_descriptors_of_files() == before


def test_an_offset_index_that_is_rebuilt_while_the_time_index_is_checked_leaves_no_descriptors(tmp_path: Path) -> None:
    """The check looks a batch up, finds the offset index wrong and replaces both, which are then the ones to use."""
    before = open_descriptors_of_files()
    log = new_log(tmp_path, LogConfig(index_interval_bytes=100))
    for number in range(6):
        append(log, batch(2, timestamp=NOW_MS + number))
    log.close()
    index = log.segments[0].offset_index.file.path
    log.close(clean=False)
    Damage(index.name, "flip", index.stat().st_size - 5, 1).apply(log.folder)
    again = reopened(log.folder, True, 0, log.recovery_point)
    first = again.segments[0].offset_index
    assert first is again.segments[0].offset_index
    assert read_all(again)
    again.close(clean=False)
    assert open_descriptors_of_files() == before


def test_an_epoch_that_starts_behind_its_first_batch_is_noticed(tmp_path: Path) -> None:
    """One flipped bit in a file that has no checksum."""
    log = new_log(tmp_path, CONFIG)
    for _ in range(3):
        append(log)
    log.close()
    path = log.folder / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n1\n0 0\n"
    path.write_text("0\n1\n0 2\n")
    again = reopened(log.folder, True, 0, log.recovery_point)
    assert list(again.leader_epochs.entries) == [(0, 0)]
    again.close()
