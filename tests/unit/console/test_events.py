"""When open streams tell of a poll."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from oncelog.console.events import SPREAD_S, EventStreams
from oncelog.console.watch import ClusterWatch


class Polls(ClusterWatch):
    """Nobody is asked: a test says when there was a poll."""

    def __init__(self) -> None:
        super().__init__(None, 1000)  # type: ignore[arg-type]  # nobody polls

    def poll(self) -> None:
        self._state = replace(self._state, number=self._state.number + 1)
        self._notify()


async def told_s(polls: Polls, streams: EventStreams, count: int) -> list[float]:
    """How long after a poll each of some streams has told of it."""
    told: list[float] = [0.0] * count

    async def listen(number: int, stream: Any) -> None:
        await anext(stream)
        told[number] = time.monotonic()

    opened = [streams.stream(0) for _ in range(count)]
    for stream in opened:
        assert (await anext(stream)).startswith("retry")
    listening = [asyncio.create_task(listen(number, stream)) for number, stream in enumerate(opened)]
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    polls.poll()
    await asyncio.gather(*listening)
    for stream in opened:
        await stream.aclose()
    return [at_s - began_s for at_s in told]


def test_tabs_are_told_of_a_poll_one_after_the_other() -> None:
    polls = Polls()
    told = asyncio.run(told_s(polls, EventStreams(polls), 3))
    assert told[1] >= SPREAD_S / 3
    assert told[2] >= 2 * SPREAD_S / 3


def test_one_tab_alone_does_not_wait_for_others_that_were_closed() -> None:
    polls = Polls()
    streams = EventStreams(polls)
    asyncio.run(told_s(polls, streams, 3))
    assert streams._turn_s(streams._take_place()) == 0
