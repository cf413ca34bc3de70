"""Compaction against a model that remembers every record: whatever is written, cleaned, killed and cleaned again."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncelog.storage.log import Log, LogPlace
from oncelog.storage.offset_map import ENTRY_BYTES
from tests.unit.storage.cleaner_harness import (
    COMPACTED,
    clean,
    compacted_log,
    put,
    put_txn,
    read_committed,
    stable_end,
    survivors,
)
from tests.unit.storage.log_harness import NOW_MS, ORDERS, end_txn

CONFIG = replace(COMPACTED, segment_bytes=700, index_interval_bytes=100, delete_retention_ms=1000)
KEYS = ("a", "b", "c", "d", "a key that is longer than a digest", "")
TXN_PIDS = (11, 12, 13)
IDEMPOTENT_PIDS = (1, 2)

pairs = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(["1", "22", None])), min_size=1, max_size=4)
txn_pairs = pairs.map(lambda found: [(key or "e", value) for key, value in found])


@dataclass(slots=True)
class Written:
    key: str
    value: str | None
    pid: int = -1
    is_committed: bool | None = True
    """None while the transaction is open."""
    written_ms: int = 0


class CleanerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.log: Log = compacted_log(self.root, CONFIG)
        self.written: dict[int, Written] = {}
        self.open: dict[int, list[int]] = {}
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.first_dirty = 0
        self.now_ms = NOW_MS

    def teardown(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.root)

    def added(self, first: int, records: list[tuple[str, str | None]], pid: int, committed: bool | None) -> None:
        for number, (key, value) in enumerate(records):
            self.written[first + number] = Written(key, value, pid, committed, self.now_ms)

    @rule(records=pairs, step_ms=st.integers(0, 3))
    def put_plain(self, records: list[tuple[str, str | None]], step_ms: int) -> None:
        info = put(self.log, *records, timestamp=self.now_ms, step_ms=step_ms)
        self.added(info.first_offset, records, -1, True)

    @rule(records=txn_pairs, pid=st.sampled_from(IDEMPOTENT_PIDS))
    def put_idempotent(self, records: list[tuple[str, str | None]], pid: int) -> None:
        sequence = self.sequences.get(pid, 0)
        info = put(self.log, *records, producer_id=pid, producer_epoch=0, base_sequence=sequence)
        self.sequences[pid] = sequence + len(records)
        self.added(info.first_offset, records, pid, True)

    @rule(records=txn_pairs, pid=st.sampled_from(TXN_PIDS))
    def put_in_transaction(self, records: list[tuple[str, str | None]], pid: int) -> None:
        sequence = self.sequences.get(pid, 0)
        info = put_txn(self.log, pid, sequence, *records, epoch=self.epochs.get(pid, 0))
        self.sequences[pid] = sequence + len(records)
        self.added(info.first_offset, records, pid, None)
        self.open.setdefault(pid, []).extend(range(info.first_offset, info.last_offset + 1))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans(), bump=st.booleans())
    def end(self, data: st.DataObject, commit: bool, bump: bool) -> None:
        self.end_of(data.draw(st.sampled_from(sorted(self.open))), commit, bump)

    def end_of(self, pid: int, commit: bool, bump: bool) -> None:
        if bump:
            self.epochs[pid] = self.epochs.get(pid, 0) + 1
            self.sequences[pid] = 0
        end_txn(self.log, pid, commit=commit, epoch=self.epochs.get(pid, 0))
        for offset in self.open.pop(pid):
            self.written[offset].is_committed = commit

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(delta_ms=st.sampled_from([1, 400, 5000]))
    def wait(self, delta_ms: int) -> None:
        self.now_ms += delta_ms

    @rule(entries=st.integers(1, 8), roll=st.booleans())
    def clean(self, entries: int, roll: bool) -> None:
        before = self.first_dirty
        after = clean(self.log, before, now_ms=self.now_ms, map_memory_bytes=entries * ENTRY_BYTES, roll=roll)
        assert after >= before
        self.first_dirty = after
        self.nothing_superseded_is_left(before)

    @rule(records=txn_pairs, pid=st.sampled_from(TXN_PIDS), commit=st.booleans())
    def a_transaction_ends_in_a_later_segment_and_is_cleaned(
        self, records: list[tuple[str, str | None]], pid: int, commit: bool
    ) -> None:
        """A snapshot in between knows it as open, and the first segment is too full to be merged with the next."""
        self.roll()
        self.put_plain([(f"anchor {len(self.written)} {number}", "x" * 220) for number in range(2)], 0)
        self.put_in_transaction(records[:1], pid)
        self.roll()
        self.end_of(pid, commit, bump=True)
        for _ in range(2):
            self.clean(entries=8, roll=True)
            self.wait(CONFIG.delete_retention_ms + 1)

    @rule(lost=st.integers(1, 3))
    def restart_without_the_newest_snapshots(self, lost: int) -> None:
        known = self.producers()
        self.log.close()
        for path in sorted(self.log.folder.glob("*.snapshot"))[-lost:]:
            path.unlink()
        self.log = Log(
            LogPlace(self.log.folder, ORDERS, NOW_MS),
            CONFIG,
            clean=True,
            log_start_offset=0,
            recovery_point=self.log.recovery_point,
        )
        assert {pid: state for pid, state in self.producers().items() if state[1] >= 0} == known

    def nothing_superseded_is_left(self, before: int) -> None:
        """Of keys that were dirty and are clean now, only the newest record below the new bound."""
        newest = {
            item.key: offset
            for offset, item in self.written.items()
            if before <= offset < self.first_dirty and item.is_committed and item.key
        }
        for offset, key, _ in survivors(self.log):
            if offset < self.first_dirty:
                assert key
                assert self.written[offset].is_committed
                assert offset >= newest.get(key, -1)

    @rule(forget=st.booleans())
    def kill(self, forget: bool) -> None:
        """With `forget`, everything is read again: no snapshot is left and nothing was flushed."""
        known = self.producers()
        self.log.close(clean=False)
        if forget:
            for path in self.log.folder.glob("*.snapshot"):
                path.unlink()
        self.log = Log(
            LogPlace(self.log.folder, ORDERS, NOW_MS),
            CONFIG,
            clean=False,
            log_start_offset=0,
            recovery_point=0 if forget else self.log.recovery_point,
        )
        assert {pid: state for pid, state in self.producers().items() if state[1] >= 0} == known

    @rule()
    def flush(self) -> None:
        self.log.flush()

    def producers(self) -> dict[int, tuple[int, int, int]]:
        """Those that have a sequence to go on from."""
        return {
            producer.producer_id: (producer.epoch, producer.last_sequence, producer.txn_first_offset)
            for producer in self.log.producer_state.active_producers()
            if producer.last_sequence >= 0
        }

    @invariant()
    def a_committed_reader_misses_nothing_but_superseded_records(self) -> None:
        stable = stable_end(self.log)
        committed = {
            offset: (item.key.encode() or None, None if item.value is None else item.value.encode())
            for offset, item in self.written.items()
            if item.is_committed and offset < stable
        }
        seen = read_committed(self.log)
        assert seen.items() <= committed.items()
        newest = {key: offset for offset, (key, _) in committed.items() if key is not None}
        shown = {key: offset for offset, (key, _) in seen.items() if key is not None}
        for key, offset in newest.items():
            value = committed[offset][1]
            is_young = self.now_ms < self.written[offset].written_ms + CONFIG.delete_retention_ms
            if value is not None or is_young:
                assert shown.get(key) == offset
            elif key in shown:
                assert shown[key] == offset

    @invariant()
    def transactions_are_as_they_were(self) -> None:
        first_open = min((offsets[0] for offsets in self.open.values()), default=None)
        assert self.log.producer_state.first_undecided_offset == first_open


def test_an_epoch_that_only_an_emptied_marker_has_outlives_a_crash() -> None:
    """A falsifying example, kept: the producer came back with the epoch and the sequence of before."""
    machine = CleanerMachine()
    try:
        machine.put_in_transaction(pid=11, records=[("a", "1")])
        machine.end_of(11, commit=True, bump=False)
        machine.a_transaction_ends_in_a_later_segment_and_is_cleaned(commit=False, pid=11, records=[("a", "1")])
        machine.clean(entries=1, roll=False)
        machine.kill(forget=False)
    finally:
        machine.teardown()


CleanerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestCleaner = CleanerMachine.TestCase
