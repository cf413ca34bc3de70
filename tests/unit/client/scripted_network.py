"""A network for the client's core, without sockets, in a time of its own: a script answers every request."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncelog.client.config import ClientConfig
from oncelog.client.errors import ConnectionLost
from oncelog.client.wire import Wire
from oncelog.protocol.schema import Message

CONFIG = ClientConfig(bootstrap_servers="boot:1", retry_backoff_ms=100, retry_backoff_max_ms=1_000)
T = TypeVar("T")
Script = Callable[[str, Message], Message | Exception]
"""What a broker, named by its address, answers to a request; an exception is raised in the client."""


class ScriptedConnection:
    def __init__(self, network: ScriptedNetwork, address: str) -> None:
        self.wire = Wire(CONFIG, address, lambda frame: None)
        self._network = network

    def __str__(self) -> str:
        return self.wire.peer

    async def call(self, request: Message, response_type: type[Message], **options: Any) -> Any:
        network = self._network
        network.asked.append((self.wire.peer, type(request).__name__))
        network.time_s += network.answer_s
        answer = network.script(self.wire.peer, request)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, response_type)
        return answer


class ScriptedNetwork:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.rng = random.Random(1)
        self.time_s = 1000.0
        self.answer_s = 0.001
        self.down: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.pauses_ms: list[float] = []

    def now_s(self) -> float:
        return self.time_s

    async def sleep(self, ms: float) -> None:
        self.pauses_ms.append(ms)
        self.time_s += ms / 1000

    def limit(self, ms: float) -> Any:
        return contextlib.nullcontext()

    def open_one(self, host: str, port: int, channel: str) -> Any:
        return None

    async def connect(self, host: str, port: int, channel: str) -> Any:
        if host in self.down:
            raise ConnectionLost(f"cannot connect to {host}")
        return ScriptedConnection(self, host)

    async def close(self) -> None:
        return

    def count(self, request_name: str) -> int:
        return sum(1 for _, name in self.asked if name == request_name)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Without an event loop: what runs on this network never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine waits for something that is not of this network")
