"""Orders of a test to the broker that it has started: a line on the standard input, and an answer on the output.

    reset                   all data goes, as if the broker had just been started on an empty folder
    lose-answers API COUNT  the next requests of that name are carried out, and answered by closing the connection
    fail-appends COUNT      the next writes to logs fail as on a full disk

The answer is `done`, or `failed: ` and why. Only `oncelog serve --take-orders` obeys; `oncelog.testing` gives orders.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from types import GeneratorType
from typing import Any

from oncelog.core import failpoints
from oncelog.core.promise import Promise
from oncelog.protocol.api_keys import ApiKey
from oncelog.server.broker import Broker
from oncelog.server.context import HANG_UP, RequestContext
from oncelog.server.dispatch import Handler
from oncelog.server.server import Server
from oncelog.server.turns import Steps

log = logging.getLogger("oncelog.server")

_APPEND = "log.append.before_write"


class Orders:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(sys.stdin.fileno(), self._read, loop)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            loop.remove_reader(sys.stdin.fileno())
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            task = loop.create_task(self._answer(line.decode()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, line: str) -> None:
        try:
            await self._obey(*line.split())
            answer = "done"
        except Exception as error:
            log.warning("the order %r failed", line, exc_info=True)
            answer = f"failed: {error}"
        sys.stdout.write(answer.replace("\n", " ") + "\n")
        sys.stdout.flush()

    async def _obey(self, order: str, *words: str) -> None:
        match (order, *words):
            case ("reset",):
                failpoints.disarm_all()
                await self._server.reset()
            case ("lose-answers", api, count):
                self._lose_answers(api, int(count))
            case ("fail-appends", count):
                self._fail_appends(int(count))
            case _:
                raise ValueError(f"{order} is no order")

    def _lose_answers(self, api: str, count: int) -> None:
        served = self._server.broker.dispatcher.versions
        keys = {key.stem.lower(): key for key in served if isinstance(key, ApiKey)}
        if api.lower() not in keys:
            raise ValueError(f"{api} is no request that this broker serves")
        key = keys[api.lower()]
        if self._server.broker.dispatcher.forwarder.takes(key):
            self._server.broker.dispatcher.forwarder.lost[key] = count
            return
        remaining = count

        def wrap(handler: Handler) -> Handler:
            def lose(broker: Broker, request: Any, context: RequestContext) -> Any:
                nonlocal remaining
                answer = handler(broker, request, context)
                if remaining <= 0 or answer is None:
                    return answer
                remaining -= 1
                return _lost_after(answer) if isinstance(answer, GeneratorType) else _lost(answer)

            return lose

        self._server.broker.dispatcher.wrap_handler(key, wrap)

    def _fail_appends(self, count: int) -> None:
        remaining = count

        def fail() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining <= 0:
                failpoints.disarm(_APPEND)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        failpoints.arm(_APPEND, fail)


def _lost(answer: Any) -> Any:
    return answer.map(lambda _: HANG_UP) if isinstance(answer, Promise) else HANG_UP


def _lost_after(steps: Steps[Any]) -> Steps[Any]:
    """What the request asks for is done by its steps."""
    return _lost((yield from steps))
