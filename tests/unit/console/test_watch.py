"""One poller for all tabs: old data is kept with its age, and nobody is asked while nobody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog.console import watch as watch_module
from oncelog.console.watch import ClusterWatch, status_row
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.monitoring.snapshot import Poller
from tests.unit.monitoring.fake_admin import FakeAdmin
from tests.waiting import wait_until


class Stage:
    """A poller that can be made to fail, and counts."""

    def __init__(self) -> None:
        self.polls = 0
        self.fails = False
        self.fault: Exception | None = None
        self.now_ms = 1_000_000
        self._poller = Poller(FakeAdmin(), now_ms=lambda: self.now_ms)  # type: ignore[arg-type]

    def poll(self) -> Any:
        self.polls += 1
        if self.fails:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody listens there")
        if self.fault is not None:
            raise self.fault
        return self._poller.poll()


@contextmanager
def watching(stage: Stage) -> Iterator[ClusterWatch]:
    watch = ClusterWatch(stage, 5, lambda: stage.now_ms)  # type: ignore[arg-type]
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def test_nobody_is_asked_before_somebody_looks() -> None:
    stage = Stage()
    with watching(stage) as watch:
        assert watch.state.snapshot is None
        assert stage.polls == 0
        watch.look()
        wait_until(lambda: watch.state.snapshot is not None)
        wait_until(lambda: stage.polls > 3)


def test_polling_rests_when_nobody_has_looked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "INTEREST_MS", 100)
    stage = Stage()
    with watching(stage) as watch:
        watch.look()
        wait_until(lambda: not watch._wanted.is_set())
        before = watch.state.number
        assert watch.state.number == before == stage.polls
        watch.look()
        wait_until(lambda: watch.state.number > before)


def test_a_failed_poll_keeps_the_last_snapshot_with_its_age_and_the_reason() -> None:
    stage = Stage()
    with watching(stage) as watch:
        watch.look()
        wait_until(lambda: watch.state.snapshot is not None)
        good = watch.state
        stage.fails = True
        stage.now_ms += 12_000
        wait_until(lambda: watch.state.failed_since_ms is not None)
        state = watch.state
        assert state.snapshot is not None
        row = status_row(state, "here:9092", stage.now_ms + 3_000)
        assert (row["stale"], row["age_ms"], row["failed_since_ms"]) == (True, 15_000, stage.now_ms)
        assert row["error"] == "nobody listens there"
        assert state.number > good.number
        stage.fails = False
        wait_until(lambda: watch.state.failed_since_ms is None)
        assert not watch.state.is_stale(stage.now_ms)


def test_a_poll_that_failed_after_a_long_wait_is_soon_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is back would be called away for three times as long as the last poll has waited for it."""
    monkeypatch.setattr(watch_module, "REST_FACTOR", 1_000)
    monkeypatch.setattr(watch_module, "FAILED_REST_S", 0.01, raising=False)
    stage = Stage()
    stage.fails = True
    quick = stage.poll

    def slow() -> Any:
        time.sleep(0.05)
        return quick()

    stage.poll = slow  # type: ignore[method-assign]
    with watching(stage) as watch:
        watch.look()
        wait_until(lambda: watch.state.number > 2, timeout_s=60)


def test_a_fault_of_one_poll_is_shown_and_does_not_end_polling() -> None:
    stage = Stage()
    with watching(stage) as watch:
        watch.look()
        stage.fault = ZeroDivisionError("a fault")
        wait_until(lambda: "a fault" in watch.state.error)
        stage.fault = None
        wait_until(lambda: watch.state.failed_since_ms is None)


def test_a_cluster_that_never_answered_is_known_as_such() -> None:
    stage = Stage()
    stage.fails = True
    with watching(stage) as watch:
        watch.look()
        wait_until(lambda: watch.state.number > 0)
        state = watch.state
        assert (state.snapshot, state.error) == (None, "nobody listens there")


def test_listeners_hear_of_every_poll_and_of_the_end() -> None:
    heard: list[int] = []
    stage = Stage()
    with watching(stage) as watch:
        tell: Callable[[], None] = lambda: heard.append(watch.state.number)  # noqa: E731
        watch.listeners.add(tell)
        watch.look()
        wait_until(lambda: len(heard) > 2)
        watch.stop()
        wait_until(lambda: watch.is_stopping)
    assert heard == sorted(heard)


def test_a_page_does_not_wait_long_for_a_slow_first_poll() -> None:
    stage = Stage()
    entered, leave = threading.Event(), threading.Event()
    quick = stage.poll

    def slow() -> Any:
        entered.set()
        leave.wait(60)
        return quick()

    stage.poll = slow  # type: ignore[method-assign]
    with watching(stage) as watch:
        assert watch.look().number == 0, "there is nothing yet, and that is said"
        assert entered.is_set()
        leave.set()
        wait_until(lambda: watch.state.snapshot is not None)
