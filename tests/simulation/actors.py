"""Clients as scripts: generators that send requests and sleep, and are resumed with the answers.

    answers = yield [call, call]      # sent at once on the client's link; an answer, or LOST, for each
    yield 250                         # sleep, in milliseconds

A client whose link breaks opens another one with its next request. A client can be killed at any moment: its script
ends where it stands and nobody tells the broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.simulation.network import LOST, Call, Link

if TYPE_CHECKING:
    from tests.simulation.history import History

T = TypeVar("T")
Script = Generator[Any, Any, T]

REQUEST_TIMEOUT_MS: Final = 9_000
"""Longer than the broker may take for anything but joining a group."""


class Fenced(Exception):
    """The broker will not have this client any more: it must start over as a new one."""


class MustAbort(Exception):
    """The transaction cannot be committed, but the producer can go on after aborting it."""


class Actor:
    def __init__(self, history: History, name: str) -> None:
        self.history = history
        self.model = history.model
        self.name = name
        self.rng = random.Random(history.rng.random())
        self.alive = True
        self.on_end: Callable[[], None] = lambda: None
        self._link: Link | None = None
        self._script: Script[None] | None = None
        self._step = 0

    def script(self) -> Script[None]:
        raise NotImplementedError

    def start(self) -> None:
        self._script = self.script()
        self._resume(None)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.trace("is killed")
            if self._link is not None:
                self._link.snap()
            if self._script is not None:
                self._script.close()
            self.on_end()

    def trace(self, text: str) -> None:
        self.history.trace(self.name, text)

    def now_ms(self) -> int:
        return self.history.clock.now_ms()

    def chance(self, permille: int) -> bool:
        return permille > 0 and self.rng.randrange(1000) < permille

    def call(self, call: Call) -> Script[Any]:
        (answer,) = yield [call]
        return answer

    def retry(
        self, make: Callable[[], Call], codes: Callable[[Any], set[int]], retriable: frozenset[int]
    ) -> Script[Any]:
        """Sends until there is an answer whose codes are not all worth another try. Returns that answer."""
        while True:
            answer = yield from self.call(make())
            if answer is not LOST and not (codes(answer) & retriable):
                return answer
            yield self.rng.randrange(5, 120)

    def _resume(self, value: Any) -> None:
        if not self.alive or self._script is None:
            return
        self._step += 1
        try:
            command = self._script.send(value)
        except StopIteration:
            self.alive = False
            if self._link is not None:
                self._link.snap()
            self.on_end()
            return
        if isinstance(command, int):
            step = self._step
            self.history.clock.call_later_ms(command, lambda: self._resume(None) if step == self._step else None)
        else:
            self._send(command)

    def _send(self, calls: list[Call]) -> None:
        if self._link is None or self._link.broken:
            self._link = self.history.network.open(self.name)
        link, step = self._link, self._step
        answers: list[Any] = [None] * len(calls)
        missing = len(calls)

        def arrived(index: int, answer: Any) -> None:
            nonlocal missing
            answers[index] = answer
            missing -= 1
            if missing == 0 and step == self._step:
                # Not on the stack of whoever broke the link.
                self.history.clock.call_later_ms(0, lambda: self._resume(answers) if step == self._step else None)

        for index, call in enumerate(calls):
            link.send(call, self.timeout_ms(calls), lambda answer, index=index: arrived(index, answer))  # type: ignore[misc]

    def timeout_ms(self, calls: list[Call]) -> int:
        return REQUEST_TIMEOUT_MS
