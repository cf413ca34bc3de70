"""The connections of one client on its event loop, and the time there: all that `cluster` needs of asyncio."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from contextlib import AbstractAsyncContextManager

from oncelog.client.cluster import Cluster
from oncelog.client.config import ClientConfig
from oncelog.client.connection import Connection
from oncelog.client.errors import IllegalState
from oncelog.tls import client_context


class Connections:
    """One to each address and channel, opened when it is first asked for and again after it broke."""

    def __init__(self, config: ClientConfig) -> None:
        self.rng = random.Random()
        self._config = config
        self._opening: dict[tuple[str, int, str], asyncio.Task[Connection]] = {}
        self._closed = False
        self._tls: ssl.SSLContext | None = None

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    def limit(self, ms: float) -> AbstractAsyncContextManager[object]:
        """What takes longer ends with TimeoutError."""
        return asyncio.timeout(ms / 1000)

    def open_one(self, host: str, port: int, channel: str) -> Connection | None:
        """The connection to an address if there is one, without waiting."""
        task = self._opening.get((host, port, channel))
        return task.result() if task is not None and _is_usable(task) else None

    async def connect(self, host: str, port: int, channel: str) -> Connection:
        """The connection to an address, opened if there is none. Raises ConnectionLost."""
        if self._closed:
            raise IllegalState("this client is closed")
        key = (host, port, channel)
        task = self._opening.get(key)
        if task is None or (task.done() and not _is_usable(task)):
            task = self._opening[key] = asyncio.create_task(self._open(host, port))
        return await asyncio.shield(task)

    async def _open(self, host: str, port: int) -> Connection:
        settings = self._config.tls
        if settings is not None and self._tls is None:
            # It reads the system's certificates, which are many files.
            self._tls = await asyncio.to_thread(client_context, settings)
        return await Connection.open(self._config, host, port, self._tls)

    async def close(self) -> None:
        """Close all of them; waiting callers get ConnectionLost."""
        self._closed = True
        tasks = list(self._opening.values())
        self._opening.clear()
        for task in tasks:
            if task.done() and not task.cancelled() and not task.exception():
                task.result().close()
            else:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def open_cluster(config: ClientConfig) -> Cluster:
    """A cluster that is reached by connections of its own."""
    return Cluster(config, Connections(config))


def _is_usable(task: asyncio.Task[Connection]) -> bool:
    return task.done() and not task.cancelled() and not task.exception() and not task.result().closed
