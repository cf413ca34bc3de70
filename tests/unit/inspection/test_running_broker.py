"""A folder that is looked at while a broker changes it: nothing that is on its way is taken for damage or left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.ids import GROUP_METADATA_TOPIC, NULL_UUID, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder
from oncelog.inspection.verification import Severity, data_folder, partition, verify_path
from oncelog.protocol.batch import HEADER_BYTES
from oncelog.storage import segment_swap
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir
from tests.unit.storage.cleaner_harness import COMPACTED, clean, put
from tests.unit.storage.log_harness import NOW_MS, append_txn, end_txn

KEYS = 7
RENAME_S = 0.02


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[LogDir]:
    """In use by this process, as its lock says."""
    log_dir = LogDir.open(tmp_path / "data", node_id=1, config_for=lambda _: COMPACTED, now_ms=NOW_MS)
    yield log_dir
    log_dir.abandon()


@pytest.fixture
def log(log_dir: LogDir) -> Log:
    log = log_dir.create_log(TopicPartition(GROUP_METADATA_TOPIC, 0), NULL_UUID, COMPACTED, now_ms=NOW_MS)
    write(log)
    return log


def write(log: Log, segments: int = 2) -> None:
    for _ in range(segments):
        for number in range(40):
            put(log, (f"k{number % KEYS}", f"{log.log_end_offset}"), timestamp=NOW_MS + log.log_end_offset)
        log.roll(NOW_MS)
    log.flush()


def damage_in(path: Path) -> list[str]:
    return [finding.check for finding in verify_path(path).findings if finding.severity is not Severity.NOTE]


def keys_in(folder: PartitionFolder) -> set[bytes | None]:
    return {record.key for _, batch in walk(folder) for record in batch.records()}


def first_do(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[[], object]) -> None:
    """Before the function is called for the first time."""
    original = getattr(module, name)
    changes = [change]

    def changed(*args: Any, **kwargs: Any) -> Any:
        if changes:
            changes.pop()()
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, changed)


def test_a_segment_swapped_between_its_index_and_its_log_is_read_again(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = log_dir.create_log(TopicPartition(GROUP_METADATA_TOPIC, 1), NULL_UUID, COMPACTED, now_ms=NOW_MS)
    write(alone, 1)
    assert damage_in(alone.folder) == []
    names = {path.name for path in alone.folder.iterdir()}
    first_do(monkeypatch, partition, "plan_start", lambda: clean(alone, roll=False))
    assert damage_in(alone.folder) == []
    assert names - {path.name for path in alone.folder.iterdir()} == set(), "no file that could be missed"


def test_a_listing_in_the_middle_of_a_swap_is_taken_again(
    log: Log, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = segment_swap._rename

    def slow_rename(path: Path, name: str) -> Path:
        time.sleep(RENAME_S)
        return rename(path, name)

    monkeypatch.setattr(segment_swap, "_rename", slow_rename)
    swap = threading.Thread(target=lambda: clean(log, roll=False))
    swap.start()
    looks = 0
    while swap.is_alive():
        assert damage_in(log.folder) == []
        assert len(keys_in(PartitionFolder(log.folder))) == KEYS
        looks += 1
    swap.join()
    assert looks
    assert len(log.segments) == 2


def test_a_walk_goes_on_in_the_segment_that_took_the_place_of_another(log: Log) -> None:
    listed = PartitionFolder(log.folder)
    walked = walk(listed)
    first = next(walked)
    clean(log, roll=False)
    rest = [placed.batch.header.base_offset for placed in walked]
    assert first.batch.header.base_offset == 0
    assert rest == sorted(set(rest))
    assert len(keys_in(listed)) == KEYS


def test_damage_to_a_file_that_stays_is_told_although_others_change(
    log: Log, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = log_dir.create_log(TopicPartition(GROUP_METADATA_TOPIC, 1), NULL_UUID, COMPACTED, now_ms=NOW_MS)
    write(other)
    damaged = PartitionFolder(other.folder).of_kind(Kind.LOG)[1].path
    data = bytearray(damaged.read_bytes())
    data[HEADER_BYTES + 3] ^= 1
    damaged.write_bytes(data)
    original = partition.plan_start

    def plan(*args: Any, **kwargs: Any) -> Any:
        put(other, ("k0", "new"))
        other.roll(NOW_MS)
        return original(*args, **kwargs)

    monkeypatch.setattr(partition, "plan_start", plan)
    assert damage_in(other.folder) == ["batch.crc"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_transaction_that_ends_while_the_folder_is_read_does_not_hang(
    ends: bool, log: Log, log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir.create_log(TopicPartition(TRANSACTION_STATE_TOPIC, 0), NULL_UUID, COMPACTED, now_ms=NOW_MS)
    append_txn(log, 5)
    if ends:
        first_do(monkeypatch, data_folder, "read_transactional_ids", lambda: end_txn(log, 5, commit=True))
    assert damage_in(log_dir.path) == ([] if ends else ["transaction.hanging"])
