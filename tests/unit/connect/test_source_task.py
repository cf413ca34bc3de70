"""The logic of a source without database and broker: any restarts, each commit once, nothing confirmed too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.connect.errors import Fenced, Refused
from oncelog.connect.pgoutput import lsn_text
from oncelog.connect.progress import Progress, SnapshotProgress
from oncelog.connect.settings import source_settings
from oncelog.connect.source import Event, Idle, Note, Resume, SourceCommit, SourceRecord, Stored
from oncelog.connect.source_resume import Server, Slot, decide
from oncelog.connect.source_task import SourceTask
from oncelog.core import failpoints

NOTE = Note("system", 1, "slot", 1, False)
POINTS = ["source.before_take_over", "source.after_take_over", "source.after_read", "log.produced", "log.committed",
          "source.after_confirm", "source.snapshot.noted", "source.snapshot.read",
          "source.snapshot.committed"]  # fmt: skip


class Crash(BaseException):
    """The process is gone: nothing of it may clean up."""


class World:
    """A database with transactions at positions, and a log; both outlive the connector."""

    def __init__(self, sizes: list[int]) -> None:
        self.transactions = [(10 * (at + 2), [f"{at}.{n}" for n in range(size)]) for at, size in enumerate(sizes)]
        self.end = 10 * (len(sizes) + 2)
        self.confirmed = 0
        self.committed: list[str] = []
        self.stored: Stored | None = None


class FakeSource:
    def __init__(self, world: World, at_once: int) -> None:
        self._world, self._at_once = world, at_once
        self.snapshot_position = 15
        self.snapshot_progress = SnapshotProgress()
        self.seen_position = world.end

    def resume(self, stored: Stored | None) -> Resume:
        slot = Slot(self._world.confirmed, "reserved") if self._world.confirmed else None
        if stored is not None and stored.note.is_snapshot:
            slot = None
        return decide("c", "slot", stored, Server("system", 1, self._world.end, slot))

    def snapshot(self) -> Iterator[SourceRecord]:
        self._world.confirmed = self.snapshot_position
        yield record("snapshot")

    def stream(self, position: int) -> None:
        assert position >= self._world.confirmed
        events: list[Event] = []
        for end, rows in self._world.transactions:
            if end > position:
                for row in rows:
                    # A keepalive may come between any two: it is about what is before this transaction's commit.
                    events += [record(row), Idle(end - 5, True)]
                events.append(SourceCommit(end))
        self._events = events

    def read(self, timeout_s: float) -> list[Event]:
        chunk, self._events = self._events[: self._at_once], self._events[self._at_once :]
        return chunk or [Idle(self._world.end, True)]

    def confirm(self, position: int) -> None:
        assert self._world.stored is not None and position <= self._world.stored.position, "confirmed too early"
        self._world.confirmed = position

    def current_position(self) -> int:
        return self._world.end

    def position_text(self, position: int) -> str:
        return lsn_text(position)


def record(value: str) -> SourceRecord:
    return SourceRecord("t", None, value.encode(), [], 0)


class FakeLog:
    """What is open when its process dies is aborted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[str] = []

    @property
    def records(self) -> int:
        return len(self._open)

    def take_over(self) -> None: ...

    def read(self) -> Stored | None:
        return self._world.stored

    def send(self, sent: SourceRecord) -> None:
        self._open.append((sent.value or b"").decode())

    def commit(self, stored: Stored) -> None:
        failpoints.hit("log.produced")
        self._world.committed += self._open
        self._world.stored = stored
        self._open = []
        failpoints.hit("log.committed")


def run(world: World, at_once: int, batch_rows: int) -> None:
    given_settings = {"name": "c", "url": "x", "publication": "p", "batch_rows": batch_rows, "batch_ms": 0}
    source: Any = FakeSource(world, at_once)
    log: Any = FakeLog(world)
    progress = Progress()
    SourceTask(source_settings(given_settings, {}), source, log, progress).run(lambda: progress.is_current)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.integers(1, 7),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 3)), max_size=6),
)
def test_any_deaths_leave_each_transaction_once_and_in_order(
    sizes: list[int], at_once: int, batch_rows: int, deaths: list[tuple[str, int]]
) -> None:
    world = World(sizes)
    for point, nth in deaths:

        def die() -> None:
            raise Crash

        failpoints.arm(point, failpoints.on_nth_hit(nth, die))
        try:
            run(world, at_once, batch_rows)
        except Crash:
            pass
        finally:
            failpoints.disarm_all()
    run(world, at_once, batch_rows)
    assert world.committed == ["snapshot", *(row for _, rows in world.transactions for row in rows)]
    assert world.stored is not None and world.confirmed <= world.stored.position


def test_a_position_that_does_not_fit_because_a_newer_instance_went_on_is_told_as_fenced() -> None:
    class Overtaken(FakeLog):
        """A newer instance takes over behind the first answer."""

        calls = 0

        def take_over(self) -> None:
            self.calls += 1
            if self.calls > 1:
                raise Fenced("a newer instance has taken over")

    world = World([1])
    world.stored, world.confirmed = Stored(15, NOTE), 20
    source: Any = FakeSource(world, 1)
    log: Any = Overtaken(world)
    settings_of_source = source_settings({"name": "c", "url": "x", "publication": "p"}, {})
    with pytest.raises(Fenced):
        SourceTask(settings_of_source, source, log, Progress()).start()
    honest: Any = FakeLog(world)
    with pytest.raises(Refused, match="somebody else has moved it"):
        SourceTask(settings_of_source, source, honest, Progress()).start()


GOOD = Stored(100, NOTE)
SERVER = Server("system", 1, 200, Slot(100, "reserved"))


@pytest.mark.parametrize(
    ("stored", "server", "problem"),
    [
        (None, SERVER, "no stored position"),
        (Stored(100, NOTE._replace(slot="x")), SERVER, "belongs to the slot x"),
        (GOOD, SERVER._replace(system="y"), "another server"),
        (GOOD, SERVER._replace(timeline=2), "accept_timeline = 2"),
        (GOOD, SERVER._replace(wal_lsn=99), "restored from a backup"),
        (GOOD, SERVER._replace(slot=None), "is gone"),
        (GOOD, SERVER._replace(slot=Slot(101, "reserved")), "somebody else has moved it"),
        (GOOD, SERVER._replace(slot=Slot(100, "lost")), "has removed log"),
    ],
)
def test_what_could_lose_or_repeat_something_is_refused(stored: Stored | None, server: Server, problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        decide("name", "slot", stored, server)


def test_what_fits_goes_on_or_begins() -> None:
    assert decide("name", "slot", GOOD, SERVER) == Resume(None)
    assert decide("name", "slot", GOOD, SERVER._replace(timeline=2), accepted_timeline=2) == Resume(None)
    first = decide("name", "slot", None, SERVER._replace(slot=None)).snapshot
    assert first == NOTE._replace(is_snapshot=True)
    again = decide("name", "slot", Stored(0, first), SERVER).snapshot
    assert again == first._replace(generation=2)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"version": 2}'])
def test_a_note_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"note|Expecting"):
        Note.parse(text)
    assert Note.parse(NOTE.text()) == NOTE
