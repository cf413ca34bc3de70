"""A worker that is as slow as the test wants it to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncelog.core.promise import Promise
from tests.unit.server.harness import BrokerInProcess
from tests.virtual_clock import VirtualScheduler


class HeldWorker:
    """Jobs run when the test says so, and their results come when it says so: as on a thread that is busy."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Promise[Any]]] = []
        self.results: list[tuple[Promise[Any], Any]] = []

    def run(self, job: Callable[[], Any]) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        self.jobs.append((job, promise))
        return promise

    def work(self) -> None:
        job, promise = self.jobs.pop(0)
        try:
            result = job()
        except Exception as error:  # noqa: BLE001  handed to whoever asked, as a worker does
            result = error
        self.results.append((promise, result))

    def deliver(self) -> None:
        promise, result = self.results.pop(0)
        promise.resolve(result)

    def finish_one(self) -> None:
        if self.jobs:
            self.work()
        self.deliver()

    def finish(self, clock: VirtualScheduler) -> None:
        clock.advance_ms(0)
        while self.jobs or self.results:
            self.finish_one()
            clock.advance_ms(0)


def hold_worker(node: BrokerInProcess) -> HeldWorker:
    """Of everything but changes of the metadata."""
    worker = HeldWorker()
    node.broker.worker = node.broker.flusher._worker = worker
    return worker


def hold_metadata(node: BrokerInProcess, worker: HeldWorker) -> None:
    """Changes of the metadata wait for this worker."""
    controller = node.broker.own_controller
    assert controller is not None
    controller.log._worker = worker
