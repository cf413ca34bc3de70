"""What is left of a job that has failed."""

from __future__ import annotations

import asyncio
import gc
import weakref

from oncelog.server.loop import LoopWorker


class Large:
    """Stands for the megabytes that a job had in its hands."""


class JobError(Exception):
    pass


def test_what_a_failed_job_had_is_freed_without_a_search_for_garbage() -> None:
    had: list[weakref.ref[Large]] = []

    def job() -> None:
        large = Large()
        had.append(weakref.ref(large))
        raise JobError

    async def run() -> list[type]:
        worker = LoopWorker(asyncio.get_running_loop())
        kinds: list[type] = []
        worker.run(job).then(lambda result: kinds.append(type(result)))
        await worker.until_idle()
        await asyncio.to_thread(worker.close)
        return kinds

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run()) == [JobError]
        assert had[0]() is None
    finally:
        gc.enable()
