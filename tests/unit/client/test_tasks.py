"""Work beside the caller: one at a time under each name."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog.client.tasks import Tasks


def test_work_that_was_cancelled_before_its_first_step_can_be_started_again() -> None:
    """`poll(0)` starts a join, and `unsubscribe()` ends it in the same turn of the loop: the consumer never joined
    again."""
    cluster: Any = None  # it is asked after an error
    done: list[int] = []

    async def work(number: int) -> None:
        done.append(number)

    async def scenario() -> None:
        ended = asyncio.Event()
        tasks = Tasks(cluster, ended=ended.set, failed=lambda error: done.append(-1))
        tasks.start("join", work, 1)
        await tasks.cancel("join")
        assert "join" not in tasks
        tasks.start("join", work, 2)
        await ended.wait()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert done == [2]
