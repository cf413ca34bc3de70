"""Other nodes of the cluster, as the broker's logic sees them: a request goes out, and its answer is promised.

`Pump` drives a state machine that sends requests: it polls the machine at once after news, and at the time that the
machine asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from oncelog.core.address import Address
from oncelog.core.clock import Scheduler, Timer
from oncelog.core.errors import KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.schema import Message

log = logging.getLogger("oncelog.server")

RETRY_MS: Final = 1_000
"""The pause after a state machine has raised an error, which is a bug."""

Answer = Message | KafkaError
"""An error means that there is no answer, and nobody knows whether the request was carried out."""


class Peers(Protocol):
    def call(self, purpose: str, address: Address, request: Message, timeout_ms: int) -> Promise[Answer]:
        """Requests of one purpose to one address share a connection and are answered in order."""

    def close(self) -> None: ...


class Pump:
    def __init__(self, scheduler: Scheduler, poll: Callable[[], int | None]) -> None:
        """`poll` sends what is due and returns in how many milliseconds to call it again; None: after the next kick."""
        self._scheduler = scheduler
        self._poll = poll
        self._timer: Timer | None = None
        self._due_ms = 0
        self._is_stopped = False

    def kick(self, delay_ms: int = 0) -> None:
        due_ms = self._scheduler.monotonic_ms() + delay_ms
        if self._is_stopped or (self._timer is not None and self._due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._scheduler.call_later_ms(delay_ms, self._run)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._timer = None
        delay_ms: int | None
        try:
            delay_ms = self._poll()
        except Exception:
            # A broker that stopped here would fall behind, or lose its registration, without a word.
            log.exception("what to send to other nodes could not be decided; it is tried again")
            delay_ms = RETRY_MS
        if delay_ms is not None:
            self.kick(max(0, delay_ms))
