"""A connector starts again after temporary errors, and stops for good after others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from oncelog.client import BufferExhausted
from oncelog.connect import supervisor as module
from oncelog.connect.errors import Fenced
from oncelog.connect.finding import Finding
from oncelog.connect.kinds import Kind
from oncelog.connect.metrics import ConnectMetrics
from oncelog.connect.progress import Progress
from oncelog.connect.supervisor import SupervisedConnector, Supervisor
from tests.waiting import wait_until


class Scripted(Kind):
    """Each start does the next thing of a script: raise it, or call it."""

    name = "scripted"
    temporary = (ZeroDivisionError,)

    def __init__(self, *script: Any) -> None:
        self.script = list(script)

    @contextmanager
    def task(self, progress: Progress) -> Iterator[Any]:
        self.progress = progress
        yield self

    def run(self, stopping: Callable[[], bool]) -> None:
        if not self.script:
            wait_until(stopping)
            return
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        step(self.progress)

    def _check(self) -> Iterator[Finding]:
        yield from ()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.01)


def run(kind: Kind) -> tuple[SupervisedConnector, list[str]]:
    states: list[str] = []
    connector = SupervisedConnector(kind, lambda status: states.append(status.state))
    connector.start()
    return connector, states


def test_temporary_errors_are_followed_by_another_start() -> None:
    connector, states = run(Scripted(ZeroDivisionError(), BufferExhausted("full"), lambda p: p.committed(5, "x")))
    assert connector.join(60)
    assert states == ["starting", "waiting", "starting", "waiting", "starting", "ended"]
    assert connector.status.restarts == 2 and connector.status.progress.records == 5


@pytest.mark.parametrize("error", [Fenced("taken over"), RuntimeError("a bug")])
def test_other_errors_stop_it_and_are_told(error: Exception) -> None:
    connector, states = run(Scripted(error, lambda p: p.committed(5, "x")))
    assert connector.join(60)
    assert states[-1] == "stopped" and str(error) in connector.status.error


def test_a_request_to_stop_ends_all_and_figures_are_served() -> None:
    supervisor = Supervisor([Scripted(), Scripted(Fenced("x"))], lambda status: None)
    supervisor.start()
    assert not supervisor.has_ended(0.05)
    registry = CollectorRegistry()
    registry.register(ConnectMetrics(lambda: supervisor.statuses[:1]))
    assert b'oncelog_connect_up{connector="scripted"} 1.0' in generate_latest(registry)
    supervisor.stop()
    assert [status.state for status in supervisor.statuses] == ["ended", "stopped"]
