"""The brokers of the demo, and controllers if there are any, as far as they can be killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

DOWN_S: Final = 1.0


class Nodes(Protocol):
    @property
    def lanes(self) -> Sequence[str]:
        """The name of each node in the picture."""

    def kill(self, kind: str) -> str | None:
        """kill -9 for the node that is of this kind now. Returns its lane; None if there is none at the moment."""

    def revive(self, lane: str) -> None:
        """Start it again, when it was away for long enough to matter. Raises DemoFailed."""


class Process(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


class OneBroker:
    """A broker that is alone: no other takes its place while it is down."""

    lanes = ("broker",)

    def __init__(self, broker: Process) -> None:
        self._broker = broker

    def kill(self, kind: str) -> str:
        self._broker.kill()
        return kind

    def revive(self, _: str) -> None:
        time.sleep(DOWN_S)
        self._broker.start()
