"""On the path of a broker's process: Python imports this by itself at its start.

It notes how long the event loop worked at a stretch: a timer that is due every millisecond looks at the CPU time of the
loop's thread. CPU time does not grow while others have the processor, so a busy machine does not count. The longest
stretch is written to the file that ONCELOG_LOOP_WATCH names, where the reader may set it back to zero.
"""

import asyncio
import mmap
import os
import struct
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

TICK_S = 0.001
LONGEST = struct.Struct("d")


class LoopWatch:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), LONGEST.size)
        self._last_s = time.thread_time()

    def tick(self) -> None:
        now_s = time.thread_time()
        if now_s - self._last_s > LONGEST.unpack(self._memory)[0]:
            self._memory[:] = LONGEST.pack(now_s - self._last_s)
        self._last_s = now_s
        asyncio.get_running_loop().call_later(TICK_S, self.tick)


def _watch(path: Path) -> None:
    original = asyncio.Runner.run

    async def watched(main: Coroutine[Any, Any, Any]) -> Any:
        LoopWatch(path).tick()
        return await main

    def run(self: asyncio.Runner, main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return original(self, watched(main), **options)

    asyncio.Runner.run = run  # type: ignore[method-assign]


if "ONCELOG_LOOP_WATCH" in os.environ:
    _watch(Path(os.environ["ONCELOG_LOOP_WATCH"]))
