"""The producer state against a model that keeps the whole history and reads it from the start for every answer."""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import EPOCH_MAX, SEQUENCE_MAX
from oncelog.protocol.batch import BatchHeader, ControlMarker
from oncelog.storage.producer_state import (
    CompletedTxn,
    DuplicateBatch,
    Origin,
    PendingAppend,
    ProducerStateManager,
    ProducerStatus,
    VerificationGuard,
)
from tests.unit.storage.producer_headers import NOW_MS, ORDERS, data, marker

FOREVER_MS = 2**60
IDLE_MS = 1_000_000
PIDS = (1, 2, 3)

Verdict = ErrorCode | DuplicateBatch | None
Event = tuple[BatchHeader, ControlMarker | None]


class Producer(NamedTuple):
    """What the history says of one producer. A batch is (first sequence, last sequence, base, last, timestamp)."""

    epoch: int = -1
    coordinator: int = -1
    timestamp: int = -1
    opened: int = -1
    batches: tuple[tuple[int, int, int, int, int], ...] = ()


class Asked(NamedTuple):
    guard: VerificationGuard
    epoch: int
    lowest: int
    tv2: bool


class Model:
    """History as a list. `reloaded_at` is the offset of the snapshot that the state was last loaded from."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.asked: dict[int, Asked] = {}
        self.reloaded_at: int | None = None
        self.forgotten: dict[int, int] = {}
        """By producer: where the log ended when it was forgotten."""
        self.heard_ms: dict[int, int] = {}
        """By producer: the clock when it was last heard of."""
        self.loaded_ms: dict[int, int] = {}
        """The same as of the snapshot at `reloaded_at`."""

    @property
    def end(self) -> int:
        return self.events[-1][0].next_offset if self.events else 0

    def producer(self, pid: int) -> Producer:
        known, trimmed = Producer(), self.reloaded_at is None
        for header, control in self.events:
            if not trimmed and self.reloaded_at is not None and header.base_offset >= self.reloaded_at:
                known, trimmed = self.trim(pid, known), True
            if header.producer_id == pid and header.base_offset >= self.forgotten.get(pid, 0):
                known = self.step(known, header, control)
        return known if trimmed else self.trim(pid, known)

    def trim(self, pid: int, known: Producer) -> Producer:
        """A snapshot holds the newest batch only, and one timestamp for everything: when it was last heard of."""
        timestamp = max(known.timestamp, self.loaded_ms.get(pid, -1))
        batches = tuple((*batch[:4], timestamp) for batch in known.batches[-1:])
        return known._replace(timestamp=timestamp, batches=batches)

    @staticmethod
    def step(known: Producer, header: BatchHeader, control: ControlMarker | None) -> Producer:
        batches = known.batches if header.producer_epoch == known.epoch else ()
        if control is not None:
            return Producer(header.producer_epoch, control.coordinator_epoch, header.max_timestamp, -1, batches)
        if batches and header.base_sequence != (batches[-1][1] + 1) % (SEQUENCE_MAX + 1):
            batches = ()
        last_sequence = (header.base_sequence + header.last_offset_delta) % (SEQUENCE_MAX + 1)
        batch = (header.base_sequence, last_sequence, header.base_offset, header.last_offset, header.max_timestamp)
        opened = header.base_offset if header.is_transactional and known.opened < 0 else known.opened
        return Producer(header.producer_epoch, known.coordinator, header.max_timestamp, opened, (*batches, batch)[-5:])

    def transactions(self) -> list[CompletedTxn]:
        """All of them in order of their first offset; the last offset of an open one is -1."""
        found: dict[int, CompletedTxn] = {}
        opened: dict[int, int] = {}
        for header, control in self.events:
            pid = header.producer_id
            if control is None:
                if header.is_transactional and pid not in opened:
                    opened[pid] = header.base_offset
                    found[header.base_offset] = CompletedTxn(pid, header.base_offset, -1, aborted=False)
            elif pid in opened:
                first = opened.pop(pid)
                found[first] = CompletedTxn(pid, first, header.base_offset, control.is_abort)
        return [found[first] for first in sorted(found)]

    def judge_data(self, header: BatchHeader, origin: Origin, guard: VerificationGuard | None) -> Verdict:
        known, asked = self.producer(header.producer_id), self.asked.get(header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if origin is Origin.CLIENT and epoch == known.epoch:
            for batch in known.batches:
                is_ended = header.is_transactional and not 0 <= known.opened <= batch[2]
                if batch[:2] == (sequence, header.last_sequence) and not is_ended:
                    return DuplicateBatch(*batch[2:])
        if epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_open = known.opened >= 0 and epoch == known.epoch
        if header.is_transactional and not is_open and (asked is None or asked.guard is not guard):
            return ErrorCode.INVALID_TXN_STATE
        if origin is Origin.CLIENT and not self.in_order(known, asked, epoch, sequence):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known.opened >= 0 and not header.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return None

    @staticmethod
    def in_order(known: Producer, asked: Asked | None, epoch: int, sequence: int) -> bool:
        if asked is not None and (sequence > asked.lowest or (asked.tv2 and not known.batches and sequence != 0)):
            return False
        if known.epoch == -1:
            return True
        if epoch != known.epoch or not known.batches:
            return sequence == 0
        return sequence == (known.batches[-1][1] + 1) % (SEQUENCE_MAX + 1)

    def judge_marker(self, header: BatchHeader, control: ControlMarker, tv: int) -> Verdict:
        known = self.producer(header.producer_id)
        epoch = header.producer_epoch
        repeated = epoch == known.epoch and (known.opened < 0 or epoch == EPOCH_MAX)
        if known.epoch != -1 and (epoch < known.epoch or (tv == 2 and epoch <= known.epoch and not repeated)):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if control.coordinator_epoch < known.coordinator:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return None

    def add(self, header: BatchHeader, control: ControlMarker | None = None) -> None:
        self.events.append((header, control))
        asked = self.asked.get(header.producer_id)
        if asked is not None and header.is_transactional:
            next_one = control is not None and asked.tv2 and asked.epoch == header.producer_epoch
            if not next_one:
                del self.asked[header.producer_id]


class ProducerStateMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.state = ProducerStateManager(ORDERS, producer_expiration_ms=FOREVER_MS)
        self.model = Model()
        self.high_watermark = 0
        self.guards: dict[int, list[VerificationGuard]] = {pid: [] for pid in PIDS}
        self.snapshots: list[tuple[int, bytes, dict[int, int]]] = []
        self.clock_ms = NOW_MS

    @rule(
        pid=st.sampled_from(PIDS), step=st.sampled_from([0, 0, 0, -1, 1]), shift=st.integers(-2, 2), tv2=st.booleans()
    )
    def verify(self, pid: int, step: int, shift: int, tv2: bool) -> None:
        known = self.model.producer(pid)
        epoch = min(max(known.epoch + step, 0), EPOCH_MAX)
        self.verify_and_compare(pid, epoch, self.sequence_near(known, shift if step == 0 else 0), tv2)

    def verify_and_compare(self, pid: int, epoch: int, sequence: int, tv2: bool) -> None:
        known = self.model.producer(pid)
        expected_open = known.opened >= 0 and epoch == known.epoch
        try:
            guard = self.state.start_verification(pid, epoch, sequence, supports_epoch_bump=tv2, now_ms=self.clock_ms)
        except KafkaError as error:
            assert error.code is ErrorCode.INVALID_PRODUCER_EPOCH
            assert epoch < known.epoch
            return
        assert epoch >= known.epoch
        assert (guard is None) == expected_open
        if guard is not None:
            self.remember_asked(pid, guard, epoch, sequence, tv2)

    def remember_asked(self, pid: int, guard: VerificationGuard, epoch: int, sequence: int, tv2: bool) -> None:
        asked = self.model.asked.get(pid)
        if asked is None:
            assert guard not in self.guards[pid]
            self.guards[pid].append(guard)
            self.model.asked[pid] = Asked(guard, epoch, sequence, tv2)
            return
        assert guard is asked.guard
        if epoch > asked.epoch:
            self.model.asked[pid] = Asked(guard, epoch, sequence, tv2)
        elif epoch == asked.epoch:
            self.model.asked[pid] = asked._replace(lowest=min(asked.lowest, sequence))

    @rule(
        pid=st.sampled_from(PIDS),
        step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        shift=st.sampled_from([0, 0, 0, 0, -1, -2, -3, 1]),
        count=st.integers(1, 3),
        txn=st.booleans(),
        old_guard=st.booleans(),
        origin=st.sampled_from([Origin.CLIENT, Origin.CLIENT, Origin.COORDINATOR]),
    )
    def send(self, pid: int, step: int, shift: int, count: int, txn: bool, old_guard: bool, origin: Origin) -> None:
        header = self.batch_near(pid, step, shift, count, txn)
        guard = self.guards[pid][0 if old_guard else -1] if self.guards[pid] else None
        self.send_and_compare(header, origin, guard)

    @rule(pid=st.sampled_from(PIDS), batches=st.integers(1, 7), count=st.integers(1, 2), tv2=st.booleans())
    def write_transactionally(self, pid: int, batches: int, count: int, tv2: bool) -> None:
        """What a well-behaved producer does, so that histories get somewhere."""
        for _ in range(batches):
            known = self.model.producer(pid)
            epoch = max(known.epoch, 0)
            sequence = 0 if known.epoch == -1 else self.sequence_near(known, 0)
            asked = self.model.asked.get(pid)
            if asked is None or asked.epoch <= epoch:
                self.verify_and_compare(pid, epoch, sequence, tv2)
            self.clock_ms += 1
            header = data(sequence, count=count, pid=pid, epoch=epoch, txn=True, timestamp=self.clock_ms)
            self.send_and_compare(header, Origin.CLIENT, self.guards[pid][-1] if self.guards[pid] else None)

    @precondition(lambda self: any(self.model.producer(pid).batches for pid in PIDS))
    @rule(choice=st.integers(0, 100), lengthen=st.booleans())
    def send_again(self, choice: int, lengthen: bool) -> None:
        sent = [header for header, control in self.model.events if control is None]
        header = sent[-1 - choice % min(len(sent), 12)]
        if lengthen:
            header = header._replace(last_offset_delta=header.last_offset_delta + 1)
        self.send_and_compare(header._replace(base_offset=0), Origin.CLIENT, None)

    def send_and_compare(self, header: BatchHeader, origin: Origin, guard: VerificationGuard | None) -> None:
        verdict = verdict_of(self.state, header, origin=origin, guard=guard)
        assert verdict == self.model.judge_data(header, origin, guard)
        if verdict is None:
            self.write(header)

    @rule(
        pid=st.sampled_from(PIDS),
        kinds=st.lists(
            st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 0, 0, 1, -1]), st.booleans()),
            min_size=2,
            max_size=4,
        ),
    )
    def append_several(self, pid: int, kinds: list[tuple[int, int, bool]]) -> None:
        """One append of many batches is judged like many appends of one, except that nothing repeats inside it."""
        guard = self.guards[pid][-1] if self.guards[pid] else None
        scratch, pending, accepted = copy.deepcopy(self.state), PendingAppend(), []
        asked = scratch._verifications.entries.get(pid)
        guard_there = guard if asked is None else asked.guard
        known, end = self.model.producer(pid), self.model.end
        for step, shift, txn in kinds:
            epoch = min(max(known.epoch, 0) + step, EPOCH_MAX)
            sequence = self.sequence_near(known, shift) if epoch == known.epoch or known.epoch == -1 else 0
            header = data(sequence, pid=pid, epoch=epoch, txn=txn)
            header = header._replace(base_offset=end)
            alone = verdict_of(scratch, header, origin=Origin.CLIENT, guard=guard_there)
            together = verdict_of(self.state, header, origin=Origin.CLIENT, guard=guard, pending=pending)
            if isinstance(alone, DuplicateBatch) and alone.base_offset >= self.model.end:
                assert isinstance(together, ErrorCode)
            else:
                assert together == alone
            if together is not None:
                return
            scratch.apply(header, now_ms=self.clock_ms)
            known, end = Model.step(known, header, None), header.next_offset
            accepted.append(header)
        for header in accepted:
            self.write(header)

    @rule(
        pid=st.sampled_from(PIDS),
        step=st.sampled_from([0, 0, 1, 1, -1]),
        coordinator=st.sampled_from([0, 0, 0, 1, -1]),
        tv=st.sampled_from([0, 1, 2]),
        commit=st.booleans(),
        last_epoch=st.sampled_from([False] * 19 + [True]),
    )
    def end(self, pid: int, step: int, coordinator: int, tv: int, commit: bool, last_epoch: bool) -> None:
        known = self.model.producer(pid)
        epoch = EPOCH_MAX if last_epoch else min(max(known.epoch + step, 0), EPOCH_MAX)
        coordinator_epoch = max(known.coordinator + coordinator, 0)
        header, control = marker(commit=commit, pid=pid, epoch=epoch, coordinator=coordinator_epoch)
        verdict = verdict_of(self.state, header, origin=Origin.COORDINATOR, control=control, marker_tv=tv)
        assert verdict == self.model.judge_marker(header, control, tv)
        if verdict is None:
            self.write(header, control)

    @rule(behind=st.integers(0, 6))
    def advance_high_watermark(self, behind: int) -> None:
        self.high_watermark = max(self.high_watermark, self.model.end - behind)
        self.state.on_high_watermark(self.high_watermark)

    @rule()
    def everybody_is_idle_for_long(self) -> None:
        """Who has no transaction open is forgotten."""
        idle = {pid for pid in PIDS if self.model.producer(pid).opened < 0 <= self.model.producer(pid).epoch}
        self.clock_ms += 2 * IDLE_MS
        self.state.producer_expiration_ms = IDLE_MS
        assert self.state.expire(self.clock_ms) == len(idle)
        self.state.producer_expiration_ms = FOREVER_MS
        self.model.forgotten.update(dict.fromkeys(idle, self.model.end))
        self.model.asked.clear()
        self.snapshots.clear()

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.model.end, self.state.take_snapshot(), dict(self.model.heard_ms)))

    @precondition(lambda self: bool(self.snapshots))
    @rule(choice=st.integers(0, 100))
    def load_a_snapshot_and_replay(self, choice: int) -> None:
        offset, content, heard_ms = self.snapshots[choice % len(self.snapshots)]
        loaded_ms, heard_ms = heard_ms, dict(heard_ms)  # what is heard from here on is not in the snapshot
        self.state = ProducerStateManager(ORDERS, producer_expiration_ms=FOREVER_MS)
        self.state.load_snapshot(content, self.clock_ms, end_offset=offset)
        for header, control in self.model.events:
            if header.base_offset >= offset:
                assert self.state.check(header, origin=Origin.REPLICATION, control=control) is None
                completed = self.state.apply(header, control=control, now_ms=self.clock_ms)
                heard_ms = {**heard_ms, header.producer_id: self.clock_ms}
                if completed is not None:
                    self.state.complete(completed)
        self.model.reloaded_at, self.model.loaded_ms = offset, loaded_ms
        self.model.heard_ms = heard_ms
        self.model.asked.clear()
        self.guards = {pid: [] for pid in PIDS}
        self.high_watermark = self.model.end
        self.state.on_high_watermark(self.high_watermark)

    @invariant()
    def rows_agree(self) -> None:
        expected = set()
        for pid in PIDS:
            known = self.model.producer(pid)
            if known.epoch != -1:
                last_sequence = known.batches[-1][1] if known.batches else -1
                row = ProducerStatus(pid, known.epoch, last_sequence, known.timestamp, known.coordinator, known.opened)
                expected.add(row)
        rows = self.state.active_producers()
        assert (set(rows), len(rows)) == (expected, len(expected))
        assert self.state.map_end_offset == self.model.end

    @invariant()
    def stable_offsets_agree(self) -> None:
        transactions = self.model.transactions()
        undecided = [txn.first_offset for txn in transactions if txn.last_offset == -1]
        unstable = [txn.first_offset for txn in transactions if not 0 <= txn.last_offset < self.high_watermark]
        assert self.state.first_undecided_offset == min(undecided, default=None)
        assert self.state.first_unstable_offset == min(unstable, default=None)

    def batch_near(self, pid: int, step: int, shift: int, count: int, txn: bool) -> BatchHeader:
        known = self.model.producer(pid)
        epoch = min(max(known.epoch + step, 0), EPOCH_MAX)
        sequence = self.sequence_near(known, shift) if epoch == known.epoch or known.epoch == -1 else abs(shift)
        self.clock_ms += 1
        return data(sequence, count=count, pid=pid, epoch=epoch, txn=txn, timestamp=self.clock_ms)

    @staticmethod
    def sequence_near(known: Producer, shift: int) -> int:
        """Producers begin just below the wrap-around, so that most histories cross it."""
        if known.epoch == -1:
            return SEQUENCE_MAX - 3 + shift
        following = known.batches[-1][1] + 1 if known.batches else 0
        return (following + shift) % (SEQUENCE_MAX + 1)

    def write(self, header: BatchHeader, control: ControlMarker | None = None) -> None:
        header = header._replace(base_offset=self.model.end)
        completed = self.state.apply(header, control=control, now_ms=self.clock_ms)
        self.model.add(header, control)
        self.model.heard_ms[header.producer_id] = self.clock_ms
        ended = [
            txn for txn in self.model.transactions() if control is not None and txn.last_offset == header.base_offset
        ]
        assert completed == (ended[0] if ended else None)
        if completed is not None:
            still_open = [txn.first_offset for txn in self.model.transactions() if txn.last_offset == -1]
            assert self.state.lso_after(completed) == min(still_open, default=header.base_offset + 1)
            self.state.complete(completed)


def verdict_of(state: ProducerStateManager, header: BatchHeader, **circumstances: Any) -> Verdict:
    """What `check` says under the circumstances it takes by name."""
    try:
        return state.check(header, **circumstances)
    except KafkaError as error:
        return error.code


ProducerStateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestProducerState = ProducerStateMachine.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_long_walk(seed: int) -> None:
    """The steps above at random, far longer than Hypothesis goes: windows fill up and transactions pile up."""
    choice = random.Random(seed)
    machine = ProducerStateMachine()
    machine.start()
    for _ in range(250):
        random_step(machine, choice)
        machine.rows_agree()
        machine.stable_offsets_agree()


def random_step(machine: ProducerStateMachine, choice: random.Random) -> None:
    pid, flag = choice.choice(PIDS), choice.random() < 0.5
    step, shift, tv = (
        choice.choice([0, 0, 0, 0, 0, 1, -1]),
        choice.choice([0, 0, 0, -1, 1, 2]),
        choice.choice([0, 1, 2]),
    )
    kind = choice.randrange(100)
    if kind < 30:
        machine.write_transactionally(pid, choice.randint(1, 7), choice.randint(1, 2), flag)
    elif kind < 55:
        machine.end(pid, abs(step) if tv < 2 else 1 - step, choice.choice([0, 0, 1, -1]), tv, flag, kind == 54)
    elif kind < 65:
        machine.advance_high_watermark(choice.randint(0, 6))
    elif kind < 72:
        machine.verify(pid, step, shift, flag)
    elif kind < 80:
        origin = choice.choice([Origin.CLIENT, Origin.CLIENT, Origin.COORDINATOR])
        machine.send(pid, step, shift, choice.randint(1, 3), flag, choice.random() < 0.3, origin)
    elif kind < 89 and any(machine.model.producer(known).batches for known in PIDS):
        machine.send_again(choice.randrange(12), choice.random() < 0.2)
    elif kind < 93:
        machine.append_several(pid, [(choice.choice([0, 0, 1]), shift, flag), (0, 0, flag), (0, 0, flag)])
    elif kind < 97:
        machine.take_snapshot()
    elif machine.snapshots:
        machine.load_a_snapshot_and_replay(choice.randrange(12))
