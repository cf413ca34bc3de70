"""Work that goes on beside the caller on an event loop: each under a name, never two under one name at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from oncelog.client.cluster import Cluster
from oncelog.client.errors import is_retriable


class Tasks:
    """A failure that a retry may mend is left to the next start of the same work; any other is reported."""

    def __init__(self, cluster: Cluster, *, ended: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self.cluster = cluster
        self._ended = ended
        self._failed = failed
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._closed = False

    def __contains__(self, name: Hashable) -> bool:
        task = self._running.get(name)
        return task is not None and not task.done()  # one that is cancelled before its first step takes nothing back

    def start(self, name: Hashable, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Unless work of this name is going on."""
        if name not in self and not self._closed:
            self._running[name] = asyncio.create_task(self._run(name, work, *arguments))

    async def _run(self, name: Hashable, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # noqa: BLE001  # the next call of the application raises it
            if not is_retriable(error):
                self._failed(error)
            await self.cluster.network.sleep(self.cluster.backoff().next_ms())
        finally:
            self._running.pop(name, None)
        self._ended()

    async def cancel(self, *names: Hashable) -> None:
        """End work of these names, and wait until it has ended."""
        tasks = [self._running[name] for name in names if name in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        self._closed = True
        await self.cancel(*self._running)
