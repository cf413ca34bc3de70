"""What read_committed readers are told of aborted transactions, while the log is changed between the steps of a search.

The model knows of every batch its producer and how the transaction ended. Whatever is appended, deleted, cleaned, cut
and damaged meanwhile, an answer leads its reader to all committed records in its bytes and to no others.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.protocol.batch import parse_control
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.server import aborted_transactions
from oncelog.server.aborted_transactions import AbortedTransactions
from oncelog.storage import fsyncs, producer_replay, recovery, segment_batches, txn_index, txn_index_keeper
from oncelog.storage.cleaner import CleaningPass, DamagedTxnIndexError
from oncelog.storage.cleaner_pace import Pace
from oncelog.storage.cleaner_plan import find_cleanable
from oncelog.storage.deletions import unlink_all
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.retention import delete_old_segments
from oncelog.storage.segment_notes import FILE_NAME as NOTES
from oncelog.storage.txn_index_keeper import SegmentGoneError
from tests.unit.storage.cleaner_harness import COMPACTED, compacted_log, put_txn, stable_end
from tests.unit.storage.faulty_disk import FaultyDisk
from tests.unit.storage.log_harness import NOW_MS, ORDERS, end_txn, headers_in
from tests.unit.storage.txn_index_damage import (
    Damage,
    begun_later,
    empty,
    missing,
    overwritten,
    torn,
    whole,
    without_first,
    without_last,
)

CONFIG = replace(
    COMPACTED,
    segment_bytes=700,
    index_interval_bytes=100,
    delete_retention_ms=0,
    cleanup_policy=("compact", "delete"),
    retention_bytes=3000,
)
PIDS = (11, 12, 13, 14, 15)
NAMED_MAX = 4

check_steps = st.integers(1, 25)
shares = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0])


class Batch(NamedTuple):
    pid: int
    base: int
    last: int
    commit: bool | None = None
    """Of a marker: whether it commits."""


class Aborted(NamedTuple):
    pid: int
    first: int
    last: int


class Model:
    """Everything that was appended and not cut off at the end."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def cut(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < end]

    def fates(self) -> dict[int, bool]:
        """By base offset, whether the records were committed. Those of open transactions have no fate yet."""
        fates: dict[int, bool] = {}
        for number, marker in enumerate(self.batches):
            if marker.commit is not None:
                for batch in self.batches[:number]:
                    if batch.pid == marker.pid and batch.commit is None:
                        fates.setdefault(batch.base, marker.commit)
        return fates

    def aborted(self) -> list[Aborted]:
        opened: dict[int, int] = {}
        found: list[Aborted] = []
        for batch in self.batches:
            if batch.commit is None:
                opened.setdefault(batch.pid, batch.base)
            elif batch.pid in opened:
                first = opened.pop(batch.pid)
                if not batch.commit:
                    found.append(Aborted(batch.pid, first, batch.last))
        return found


def shown(data: bytes, named: list[tuple[int, int]]) -> set[int]:
    """Base offsets of the batches that a reader shows, by the rule of the protocol."""
    waiting = sorted(named, key=lambda each: each[1])
    aborted: set[int] = set()
    seen: set[int] = set()
    position = 0
    for header in headers_in(data):
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            if header.records_count and parse_control(data, position).is_abort:
                aborted.discard(header.producer_id)
        elif header.records_count and header.producer_id not in aborted:
            seen.add(header.base_offset)
        position += header.size_bytes
    return seen


class Reader:
    """One partition of a fetch, from its read to what is named."""

    def __init__(self, machine: AbortedSearch, offset: int, max_bytes: int) -> None:
        self.machine = machine
        self.offset = offset
        self.max_bytes = max_bytes
        self.data = PartitionData(records=b"")
        self.steps: Generator[Any, None, bool]
        self.expected: set[int] = set()
        self.aborted: list[Aborted] = []
        self.has_seen_damage = False
        self.is_over = not self.read()

    def read(self) -> bool:
        log, model = self.machine.log, self.machine.model
        try:
            result = log.read(self.offset, self.max_bytes, end_offset=stable_end(log))
        except KafkaError as error:
            assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return False
        if not result.data:
            return False
        self.data = PartitionData(records=result.data)
        fates = model.fates()
        batches = [header for header in headers_in(result.data) if not header.is_control and header.records_count]
        self.expected = {header.base_offset for header in batches if fates[header.base_offset]}
        self.aborted = [
            txn for txn in model.aborted() if txn.first < result.upper_bound_offset and txn.last >= self.offset
        ]
        partition: Any = SimpleNamespace(log=log, closed=False)
        self.steps = AbortedTransactions().name(partition, self.offset, result.upper_bound_offset, self.data)
        return True

    def step(self, count: int) -> None:
        for _ in range(count):
            try:
                next(self.steps)
            except StopIteration as done:
                if done.value:
                    self.check()
                    self.is_over = True
                else:
                    self.is_over = not self.read()
                if self.is_over:
                    return

    def check(self) -> None:
        data = bytes(self.data.records or b"")
        named = [(each.producer_id, each.first_offset) for each in self.data.aborted_transactions or []]
        left = {header.base_offset for header in headers_in(data)}
        assert left
        assert shown(data, named) == self.expected & left
        for pid, first in named:
            # What the beginning of a transaction was is not known once its batches are gone.
            assert any(txn.pid == pid and txn.first <= first <= txn.last for txn in self.aborted), (pid, first)


class Cleaning:
    """A pass, in the steps in which a server does it, of which other work is done in between."""

    def __init__(self, log: Log, upper_bound: int, first_dirty: int) -> None:
        found = find_cleanable(log, first_dirty, last_stable_offset=stable_end(log), now_ms=NOW_MS)
        self.log = log
        cleanable = replace(found, upper_bound=min(upper_bound, found.upper_bound))
        self.work = CleaningPass(cleanable, map_memory_bytes=1 << 12, now_ms=NOW_MS, pace=Pace(rest_s=0))
        self.steps = self.go()

    def go(self) -> Generator[None, None, int | None]:
        """Returns the next first dirty offset, or None if the log has changed."""
        work = self.work
        try:
            yield from work.prepare()
            yield
            work.build_map()
            for group in work.groups:
                yield
                if self.log.generation != work.generation:
                    return None
                cleaned = work.clean(group)
                yield
                if not self.log.replace_segments(cleaned):
                    unlink_all(cleaned.files)
                    return None
        except DamagedTxnIndexError as error:
            self.log.files.txn_indexes.rebuild_at(error.base_offset)
            return None
        except (SegmentGoneError, FileNotFoundError):
            return None
        return work.end_offset


damages = st.sampled_from([whole, without_first, without_last, torn, empty, begun_later, overwritten, missing])
open_damages = st.sampled_from([overwritten, without_last, empty])


class AbortedSearch(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(segment_batches, "HEADER_CHUNK_BYTES", 150)
        self.patch.setattr(segment_batches, "_MARKERS_PER_STEP", 2)
        self.patch.setattr(recovery, "CHECKED_WHEN_OPENED_BYTES_MAX", 0)
        self.patch.setattr(txn_index_keeper, "_ENTRIES_PER_STEP", 2)
        self.patch.setattr(txn_index_keeper, "_SEGMENTS_PER_STEP", 2)
        self.patch.setattr(txn_index, "_READ_CHUNK_ENTRIES", 2)
        self.patch.setattr(aborted_transactions, "NAMED_MAX", NAMED_MAX)
        for module in (producer_replay, txn_index_keeper):
            self.patch.setattr(module, "BATCHES_PER_STEP", 2)
        self.patch.setattr(fsyncs, "_are_needed", False)
        self.disk = FaultyDisk(self.patch, self.root)
        self.log: Log = compacted_log(self.root, CONFIG)
        self.model = Model()
        self.readers: list[Reader] = []
        self.cleaning: Cleaning | None = None
        self.first_dirty = 0
        self.written_point = 0

    def teardown(self) -> None:
        try:
            self.go_on_to_the_end()
            self.read_all_at_once()
        finally:
            self.log.close(clean=False)
            self.patch.undo()
            shutil.rmtree(self.root)

    # Appending

    def sequence(self, pid: int) -> int:
        known = {status.producer_id: status for status in self.log.producer_state.active_producers()}
        return known[pid].last_sequence + 1 if pid in known else 0

    def write(self, pid: int, count: int) -> None:
        info = put_txn(self.log, pid, self.sequence(pid), *[(f"{pid} {count}", "v" * 20)] * count)
        self.model.batches.append(Batch(pid, info.first_offset, info.last_offset))

    def finish_txn(self, pid: int, commit: bool) -> None:
        info = end_txn(self.log, pid, commit=commit)
        self.model.batches.append(Batch(pid, info.first_offset, info.last_offset, commit))

    @initialize(count=st.integers(5, 20), every=st.integers(1, 4))
    def write_many(self, count: int, every: int) -> None:
        """Transactions of which several are open at a time, and none at the end."""
        for number in range(count):
            self.write(PIDS[number % len(PIDS)], 1)
            if number % every == 0:
                self.finish_txn(PIDS[number * every % len(PIDS)], commit=number % 3 == 1)
        for pid in PIDS:
            self.finish_txn(pid, commit=False)

    @rule(pid=st.sampled_from(PIDS), count=st.integers(1, 3))
    def append(self, pid: int, count: int) -> None:
        self.write(pid, count)

    @rule(pid=st.sampled_from(PIDS), count=st.integers(1, 3), commit=st.booleans())
    def append_and_end(self, pid: int, count: int, commit: bool) -> None:
        self.write(pid, count)
        self.finish_txn(pid, commit)

    @rule(pid=st.sampled_from(PIDS), commit=st.booleans())
    def end(self, pid: int, commit: bool) -> None:
        self.finish_txn(pid, commit)

    @rule(pid=st.sampled_from(PIDS), commit=st.booleans(), first=st.integers(1, 3))
    def end_while_the_disk_runs_full(self, pid: int, commit: bool, first: int) -> None:
        self.log.load()
        end = self.log.log_end_offset
        self.disk.fail(first)
        try:
            self.finish_txn(pid, commit)
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            self.disk.heal()
            self.log.repair()
            if self.log.log_end_offset > end:
                self.model.batches.append(Batch(pid, end, end, commit))
        finally:
            self.disk.heal()

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.written_point = self.log.recovery_point

    # Removing

    @rule(share=shares)
    def delete_records(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.delete_records(start + int((end - start) * share))

    @rule()
    def apply_retention(self) -> None:
        delete_old_segments(self.log, NOW_MS, high_watermark=self.log.log_end_offset)

    @rule(share=shares)
    def truncate(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        end = self.log.truncate_to(start + int((end - start) * share), now_ms=NOW_MS)
        self.model.cut(end)
        self.written_point = min(self.written_point, end)
        self.first_dirty = min(self.first_dirty, end)

    @rule(share=shares, steps=st.sampled_from([1, 3, 20, 5000]))
    def clean(self, share: float, steps: int) -> None:
        """Records may be too young to be cleaned."""
        if self.cleaning is None:
            segments = self.log.segments
            self.cleaning = Cleaning(self.log, segments[int((len(segments) - 1) * share)].base_offset, self.first_dirty)
        for _ in range(steps):
            try:
                next(self.cleaning.steps)
            except StopIteration as done:
                self.cleaning = None
                self.first_dirty = done.value or self.first_dirty
                return

    # Restarts and damage

    @rule(
        clean=st.booleans(),
        keeps_notes=st.booleans(),
        keeps_snapshots=st.booleans(),
        damage=damages,
        share=shares,
    )
    def reopen(self, clean: bool, keeps_notes: bool, keeps_snapshots: bool, damage: Damage, share: float) -> None:
        """Between a stop, or a kill, and the start, one transaction index is damaged."""
        bases = [segment.base_offset for segment in self.log.segments]
        log_start_offset = self.log.log_start_offset
        self.readers.clear()
        self.cleaning = None
        self.log.close(clean=clean)
        if clean:
            self.written_point = self.log.recovery_point
        folder = self.log.folder
        if not keeps_notes:
            (folder / NOTES).unlink(missing_ok=True)
        if not keeps_snapshots:
            for path in sorted(folder.glob("*.snapshot"))[:-1]:
                if int(path.stem) != bases[0]:
                    path.unlink()
        indexes = sorted(folder.glob("*.txnindex"))
        if indexes:
            path = indexes[int((len(indexes) - 1) * share)]
            content = damage(path.read_bytes())
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
        place = LogPlace(folder, ORDERS, NOW_MS)
        self.log = Log(place, CONFIG, clean=clean, log_start_offset=log_start_offset, recovery_point=self.written_point)

    @rule(share=shares, damage=open_damages)
    def damage_while_it_is_open(self, share: float, damage: Damage) -> None:
        """Once in a search: it gives up if an index that it has just rebuilt is damaged again."""
        if any(reader.has_seen_damage for reader in self.readers):
            return
        for reader in self.readers:
            reader.has_seen_damage = True
        segments = self.log.segments
        path = segments[int((len(segments) - 1) * share)].txn_index.path
        if path.exists() and path.stat().st_size:
            path.write_bytes(damage(path.read_bytes()) or b"")

    # Reading

    @rule(share=shares, max_bytes=st.sampled_from([1, 200, 10_000, 10_000]), steps=st.sampled_from([1, 4, 10, 20]))
    def read(self, share: float, max_bytes: int, steps: int) -> None:
        self.readers.append(Reader(self, self.offset(share), max_bytes))
        self.step(self.readers[-1], steps)

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, 3), steps=st.sampled_from([1, 5, 25]))
    def go_on(self, number: int, steps: int) -> None:
        self.step(self.readers[number % len(self.readers)], steps)

    @precondition(lambda self: self.readers)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        self.readers.pop(number % len(self.readers)).steps.close()

    @rule(share=shares)
    def read_while_the_disk_is_full(self, share: float) -> None:
        self.log.load()
        self.disk.fail(1)
        try:
            self.finish(Reader(self, self.offset(share), 10_000))
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "injected" in error.message
        finally:
            self.disk.heal()

    def offset(self, share: float) -> int:
        start = self.log.log_start_offset
        return start + int((stable_end(self.log) - 1 - start) * share)

    def step(self, reader: Reader, count: int) -> None:
        if not reader.is_over:
            reader.step(count)
        if reader.is_over:
            self.readers.remove(reader)

    def finish(self, reader: Reader) -> None:
        while not reader.is_over:
            reader.step(1000)

    def read_what_was_just_opened(self, share: float, steps: int, damage: Damage, every: int = 2) -> None:
        """No index is checked yet, and a check reads the segments before it."""
        self.write_many(count=10, every=every)
        self.reopen(clean=True, keeps_notes=False, keeps_snapshots=False, damage=damage, share=share)
        self.read(share, 10_000, steps)

    @rule(share=shares, steps=check_steps, damage=damages, extent=shares)
    def segments_are_deleted_during_a_check(self, share: float, steps: int, damage: Damage, extent: float) -> None:
        self.read_what_was_just_opened(share, steps, damage)
        self.delete_records(extent)
        self.go_on_to_the_end()

    @rule(share=shares, steps=check_steps, damage=damages, extent=shares)
    def segments_are_cleaned_during_a_check(self, share: float, steps: int, damage: Damage, extent: float) -> None:
        """If the bound of the cleaning is below: it begins with the checks that it needs."""
        self.read_what_was_just_opened(share, steps, damage, every=1)
        self.clean(extent * share, steps=5000)
        self.go_on_to_the_end()

    @rule(share=shares, steps=check_steps, damage=damages, extent=shares)
    def the_log_is_cut_during_a_check(self, share: float, steps: int, damage: Damage, extent: float) -> None:
        self.read_what_was_just_opened(share, steps, damage)
        self.truncate(extent)
        self.append_and_end(PIDS[0], 3, commit=False)
        self.go_on_to_the_end()

    @rule(
        share=shares,
        damage=open_damages,
        change=st.sampled_from(["truncate", "clean", "fill the disk"]),
        extent=shares,
    )
    def an_index_is_damaged_after_its_check(self, share: float, damage: Damage, change: str, extent: float) -> None:
        self.write_many(count=5, every=2)
        self.read_all_at_once()
        if change == "truncate":
            self.damage_while_it_is_open(share, damage)
            self.truncate(extent)
        elif change == "clean":
            self.clean(extent, steps=3)
            self.damage_while_it_is_open(extent * share, damage)
            self.clean(extent, steps=5000)
        else:
            self.damage_while_it_is_open(share, damage)
            self.read_while_the_disk_is_full(0.0)
            self.clean(extent, steps=5000)
        self.read_all_at_once()

    def go_on_to_the_end(self) -> None:
        while self.readers:
            self.step(self.readers[0], 1000)

    def read_all_at_once(self) -> None:
        for segment in list(self.log.segments):
            self.finish(Reader(self, max(segment.base_offset, self.log.log_start_offset), 10_000))


AbortedSearch.TestCase.settings = settings(max_examples=120, stateful_step_count=20)
TestAbortedSearch = AbortedSearch.TestCase
