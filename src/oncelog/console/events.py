"""Server-sent events: tabs are told that there is news, and fetch the part of their page that changed.

A stream holds nothing but the number of the last poll it has told, so a slow tab misses numbers in between, and never
makes the poller wait. Streams tell of a poll one after the other: what tabs then ask for would reach the brokers at
once, and their other clients would wait.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Final

from oncelog.console.watch import ClusterWatch, WatchState, wall_ms

COMMENT_EVERY_S: Final = 15.0
STREAMS_MAX: Final = 50
SPREAD_S: Final = 0.3
"""From the first stream that tells of a poll to the last. What tabs share is kept longer (`page.CACHE_S`)."""


class EventStreams:
    """All open streams of a console, or of one session."""

    def __init__(self, watch: ClusterWatch, streams_max: int = STREAMS_MAX) -> None:
        self._watch = watch
        self._streams_max = streams_max
        self._places: set[int] = set()
        """Of open streams, from 0 on."""

    @property
    def is_full(self) -> bool:
        return len(self._places) >= self._streams_max

    def _take_place(self) -> int:
        place = next(number for number in count() if number not in self._places)
        self._places.add(place)
        return place

    def _turn_s(self, place: int) -> float:
        return SPREAD_S * place / (max(self._places) + 1)

    async def stream(self, last_number: int) -> AsyncIterator[str]:
        """Events from the one after `last_number` on, until the console stops or the tab closes."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self._watch.listeners.add(tell)
        place = self._take_place()
        try:
            yield "retry: 2000\n\n"
            while not self._watch.is_stopping:
                self._watch.keep_fresh()
                state = self._watch.state
                if state.number != last_number and state.number > 0:
                    last_number = state.number
                    yield event_text(state)
                news.clear()
                if self._watch.state.number == last_number and not self._watch.is_stopping:
                    try:
                        await asyncio.wait_for(news.wait(), COMMENT_EVERY_S)
                        await asyncio.sleep(self._turn_s(place))
                    except TimeoutError:
                        yield ": still here\n\n"
        finally:
            self._places.discard(place)
            self._watch.listeners.discard(tell)


def event_text(state: WatchState) -> str:
    now_ms = wall_ms()
    content = {"age_ms": state.age_ms(now_ms), "stale": state.is_stale(now_ms), "error": state.error or None}
    return f"id: {state.number}\nevent: poll\ndata: {json.dumps(content)}\n\n"
