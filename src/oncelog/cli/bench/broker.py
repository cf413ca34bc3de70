"""The embedded broker as a side of a comparison: a process of its own, with its default settings but for one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog import __version__
from oncelog.bench.side import Side
from oncelog.testing import BrokerProcess

READY_TIMEOUT_S: Final = 120


class EmbeddedBroker:
    """With default settings, except that deleted segments are removed at once and not written to disk later."""

    def __init__(self, folder: Path) -> None:
        self._process = BrokerProcess(folder / "data", {"log.segment.delete.delay.ms": 0}, log_level="warning")

    @property
    def bootstrap_servers(self) -> str:
        return self._process.bootstrap_servers

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process.start(timeout_s=READY_TIMEOUT_S)

    def stop(self) -> None:
        self._process.stop(timeout_s=READY_TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()


def oncelog_side() -> Side:
    description = f"Oncelog {__version__}, one node, default settings, deleted files removed at once"
    return Side("oncelog", EmbeddedBroker, description=description)
