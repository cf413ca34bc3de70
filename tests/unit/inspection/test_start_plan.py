"""What `log verify` says that the next start will do is what a start does, on folders damaged in every way."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncelog.core.errors import KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.invariant import InvariantError
from oncelog.inspection.verification import partition as partition_verification
from oncelog.inspection.verification import verify_path
from oncelog.inspection.verification.start_plan import StartPlan
from oncelog.storage import checkpoints, clean_shutdown, segment_notes
from oncelog.storage.checkpoints import read_offsets
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from oncelog.storage.meta_properties import read_meta_properties
from oncelog.storage.segment_batches import SegmentBatches
from tests.unit.inspection import damages
from tests.unit.inspection.damages import Damage
from tests.unit.storage.log_harness import NOW_MS, TOPIC_ID, append, append_txn, end_txn

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300)
ORDERS = TopicPartition("orders", 0)
STEPS = 20
SINGLE_DAMAGES = 60
PAIRS = 25
INDEX_ENTRIES_MAX = 12
"""Of a preallocated index all others are zeros."""


def write(log: Log, chance: random.Random, steps: int, producer_id: int) -> None:
    """Plain batches with rising timestamps, and transactions that are committed or aborted."""
    for step in range(steps):
        append(log, value=bytes(chance.randint(10, 200)), timestamp=NOW_MS + log.log_end_offset)
        if step % 3 == 0:
            append_txn(log, producer_id, step // 3)
            end_txn(log, producer_id, commit=step % 2 == 0)


def make_folder(path: Path, *, stops: bool) -> Path:
    log_dir = LogDir.open(path, node_id=1, config_for=lambda _: CONFIG, now_ms=NOW_MS)
    log = log_dir.create_log(ORDERS, TOPIC_ID, CONFIG, now_ms=NOW_MS)
    chance = random.Random(3)
    write(log, chance, STEPS, 1)
    log_dir.checkpoint({ORDERS: log.log_end_offset})
    write(log, chance, STEPS, 2)
    if stops:
        log_dir.close({ORDERS: log.log_end_offset})
    else:
        log_dir.abandon()
    return path


class State(NamedTuple):
    folder: Path
    partition: TopicPartition


@pytest.fixture(params=["stopped", "killed", "marker lost", "Kafka, stopped", "Kafka, killed", "Kafka, marker lost"])
def state(request: pytest.FixtureRequest, tmp_path: Path, kafka_data: Callable[[str], Path]) -> State:
    how = request.param.removeprefix("Kafka, ")
    if how == request.param:
        found = State(make_folder(tmp_path / "data", stops=how != "killed"), ORDERS)
    else:
        found = State(kafka_data("tv2-killed" if how == "killed" else "tv2"), TopicPartition("txn", 0))
    if how == "marker lost":
        (found.folder / clean_shutdown.FILE_NAME).unlink()
    return found


class Start(NamedTuple):
    scan: tuple[int, int] | None
    """Base offset of the segment and byte from which on batches were checked, if they were."""
    end_offset: int
    removed: int


def real_start(folder: Path, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> Start:
    scans: list[tuple[int, int]] = []
    original = SegmentBatches.batches

    def recorded(self: Any, position: int = 0, **how: bool) -> Any:
        if how.get("checked"):
            scans.append((self.base_offset, position))
        return original(self, position, **how)

    meta = read_meta_properties(folder)
    assert meta is not None
    with monkeypatch.context() as patch:
        patch.setattr(SegmentBatches, "batches", recorded)
        log_dir = LogDir.open(folder, node_id=meta.node_id, config_for=lambda _: CONFIG, now_ms=NOW_MS)
        try:
            log = log_dir.logs[partition]
            log.load()
        finally:
            log_dir.abandon()
    passes = [scan for number, scan in enumerate(scans) if not number or scan[0] <= scans[number - 1][0]]
    removed = len(list((folder / str(partition)).glob("*.log.deleted")))
    return Start(passes[-1] if passes else None, log.log_end_offset, removed)


def planned_start(folder: Path, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> tuple[Start, bool]:
    """And whether something is wrong with a log."""
    plans: list[StartPlan] = []
    original = partition_verification.plan_start

    def recorded(*arguments: Any, **options: Any) -> StartPlan:
        plans.append(original(*arguments, **options))
        return plans[-1]

    with monkeypatch.context() as patch:
        patch.setattr(partition_verification, "plan_start", recorded)
        report = verify_path(folder / str(partition))
    (plan,) = plans
    said = [re.match(r"cuts the log at offset (\d+)(?: and removes (\d+))?", f.at_start) for f in report.findings]
    cuts = [(int(match[1]), int(match[2] or 0)) for match in said if match is not None]
    end_offset, removed = min(cuts, default=(plan.end_offset, 0), key=lambda cut: (cut[0], -cut[1]))
    scan = None if plan.scan_base is None else (plan.scan_base, plan.scan_position)
    return Start(scan, end_offset, removed), any(finding.path.suffix == ".log" for finding in report.findings)


def damages_of(state: State) -> Iterator[tuple[str, Damage]]:
    for path in sorted((state.folder / str(state.partition)).iterdir()):
        name = str(path.relative_to(state.folder))
        size = path.stat().st_size
        yield f"{name} removed", damages.remove(name)
        if path.suffix == ".log" and size:
            yield from damages_of_log(name, damages.batch_positions(path))
        elif path.suffix in (".index", ".timeindex", ".txnindex"):
            yield from damages_of_index(name, {".index": 8, ".timeindex": 12, ".txnindex": 34}[path.suffix], size)
        elif path.name == segment_notes.FILE_NAME:
            yield f"{name} flipped", damages.flip(name, size - 4)
    end_offset = max(int(path.name[:20]) for path in (state.folder / str(state.partition)).glob("*.log")) + 20
    for offset in range(0, end_offset, 5):
        yield f"recovery point {offset}", recovery_point(state.partition, offset)
    yield "recovery point flipped", damages.flip(checkpoints.RECOVERY_POINTS, -3)


def damages_of_log(name: str, positions: list[int]) -> Iterator[tuple[str, Damage]]:
    yield f"{name} cut", damages.cut(name, 5)
    yield f"{name} with rubbish", damages.append(name, b"rubbish " * 20)
    yield f"{name} emptied", lambda folder: (folder / name).write_bytes(b"") and None
    for number, position in enumerate(positions):
        yield f"{name} batch {number} flipped", damages.flip(name, position + 40)
        yield f"{name} batch {number} of a lower offset", damages.put(name, position, ">q", 1)
        yield f"{name} batch {number} of another size", damages.flip(name, position + 11)
        yield f"{name} ends before batch {number}", lambda folder, end=position: truncate(folder / name, end)


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def damages_of_index(name: str, entry_bytes: int, size: int) -> Iterator[tuple[str, Damage]]:
    yield f"{name} with rubbish", damages.append(name, b"rub")
    if size >= 2 * entry_bytes:
        yield f"{name} with its first entries exchanged", damages.swap_entries(name, entry_bytes)
    for start in range(0, min(size, INDEX_ENTRIES_MAX * entry_bytes), entry_bytes):
        yield f"{name} ends at {start}", lambda folder, end=start: truncate(folder / name, end)
        for byte in (0, 3, entry_bytes // 2, entry_bytes - 1):
            yield f"{name} byte {start + byte} flipped", damages.flip(name, start + byte)


def recovery_point(partition: TopicPartition, offset: int) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / checkpoints.RECOVERY_POINTS
        path.write_bytes(checkpoints.encode_offsets({**read_offsets(path), partition: offset}))
        (folder / checkpoints.SUMS).unlink(missing_ok=True)

    return damage


def copy_of(state: State, target: Path) -> Path:
    """Of one partition and the files of all."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in state.folder.iterdir():
        if path.is_file():
            shutil.copy2(path, target)
    shutil.copytree(state.folder / str(state.partition), target / str(state.partition))
    return target


def chosen_damages(state: State, name: str) -> Iterator[tuple[str, Damage]]:
    """None, some alone and some in pairs; the same ones every time."""
    chance = random.Random(name)
    known = list(damages_of(state))
    yield "no damage", lambda _: None
    yield from chance.sample(known, SINGLE_DAMAGES)
    for _ in range(PAIRS):
        (first, one), (second, other) = chance.sample(known, 2)
        yield f"{first}, {second}", lambda folder, one=one, other=other: damage_twice(folder, one, other)


def damage_twice(folder: Path, first: Damage, second: Damage) -> None:
    first(folder)
    with contextlib.suppress(FileNotFoundError, IndexError, struct.error):
        # The first may have left nothing to be damaged.
        second(folder)


def difference(state: State, damage: Damage, target: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = copy_of(state, target)
    damage(folder)
    planned, is_log_damaged = planned_start(folder, state.partition, monkeypatch)
    try:
        real = real_start(folder, state.partition, monkeypatch)
    except (KafkaError, InvariantError) as error:
        # Damage below the recovery point, in batches that the producer state is made from.
        return "" if is_log_damaged else f"said {planned}, was refused: {error!r}"
    return "" if planned == real else f"said {planned}, was {real}"


def test_a_start_does_what_was_said(
    state: State, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        name: difference(state, damage, tmp_path / "copy", monkeypatch)
        for name, damage in chosen_damages(state, request.node.name)
    }
    assert {name: what for name, what in found.items() if what} == {}
