"""A folder that is looked at while a broker changes it: nothing that is on its way is taken for damage or left out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.ids import GROUP_METADATA_TOPIC, NULL_UUID, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.inspection import layout
from oncelog.inspection.batch_walk import walk
from oncelog.inspection.layout import Kind, PartitionFolder, StoredFile
from oncelog.inspection.verification import Severity, data_folder, partition, verify_path
from oncelog.protocol.batch import HEADER_BYTES
from oncelog.storage import segment_swap
from oncelog.storage.interrupted_files import SWAP_SUFFIX
from oncelog.storage.log import Log
from oncelog.storage.log_dir import LogDir
from tests.unit.storage.cleaner_harness import COMPACTED, clean, put
from tests.unit.storage.log_harness import NOW_MS, append_txn, end_txn

KEYS = 7
RENAMES = 6
"""Log, index and time index, to `.swap` and to their names."""


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


class Steps:
    """Work in a thread that stops before each of its steps until it is let on."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self.is_over = False

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self.is_over = True
            self._stands.release()

    def stop_here(self) -> None:
        self._stands.release()
        assert self._may_go.acquire(timeout=60)

    def start(self) -> None:
        self._thread.start()
        assert self._stands.acquire(timeout=60)

    def go_on(self) -> None:
        if not self.is_over:
            self._may_go.release()
            assert self._stands.acquire(timeout=60)


@pytest.mark.parametrize("renamed_before", range(RENAMES + 1))
def test_a_listing_in_the_middle_of_a_swap_is_taken_again(
    log: Log, monkeypatch: pytest.MonkeyPatch, renamed_before: int
) -> None:
    """After each listing of the folder the swap goes on by one rename, from wherever it was at the first look."""
    rename, known_files = segment_swap._rename, layout._known_files
    swap = Steps(lambda: clean(log, roll=False))
    seen_in_the_middle = 0

    def rename_when_let_on(path: Path, name: str) -> Path:
        swap.stop_here()
        return rename(path, name)

    def list_and_let_on(folder: Path) -> Iterator[StoredFile]:
        nonlocal seen_in_the_middle
        files = list(known_files(folder))
        seen_in_the_middle += any(file.second_suffix == SWAP_SUFFIX for file in files)
        swap.go_on()
        yield from files

    monkeypatch.setattr(segment_swap, "_rename", rename_when_let_on)
    monkeypatch.setattr(layout, "_known_files", list_and_let_on)
    swap.start()
    for _ in range(renamed_before):
        assert not swap.is_over
        swap.go_on()
    while True:
        was_over = swap.is_over
        assert damage_in(log.folder) == []
        assert len(keys_in(PartitionFolder(log.folder))) == KEYS
        if was_over:
            break
    assert len(log.segments) == 2
    assert bool(seen_in_the_middle) == (renamed_before < RENAMES)


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
