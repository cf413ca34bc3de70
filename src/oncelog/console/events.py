"""Server-sent events: tabs are told that there is news, and fetch the part of their page that changed.

A stream holds nothing but the number of the last poll it has told, so a slow tab misses numbers in between, and never
makes the poller wait.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from oncelog.console.watch import ClusterWatch, WatchState, wall_ms

COMMENT_EVERY_S: Final = 15.0
STREAMS_MAX: Final = 50


class EventStreams:
    """All open streams of a console, or of one session."""

    def __init__(self, watch: ClusterWatch, streams_max: int = STREAMS_MAX) -> None:
        self._watch = watch
        self._streams_max = streams_max
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= self._streams_max

    async def stream(self, last_number: int) -> AsyncIterator[str]:
        """Events from the one after `last_number` on, until the console stops or the tab closes."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        self._watch.listeners.add(tell)
        self._open += 1
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
                    except TimeoutError:
                        yield ": still here\n\n"
        finally:
            self._open -= 1
            self._watch.listeners.discard(tell)


def event_text(state: WatchState) -> str:
    now_ms = wall_ms()
    content = {"age_ms": state.age_ms(now_ms), "stale": state.is_stale(now_ms), "error": state.error or None}
    return f"id: {state.number}\nevent: poll\ndata: {json.dumps(content)}\n\n"
