"""A process that asks a broker for little all the time, and how long it waits: `-m tests.hostile.bystander ADDRESS`.

It begins a new measurement at each line that it reads, and answers with the p99 of the last one, in seconds.

It is a process of its own, so that work of the attacker in the test's process is not taken for waiting.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time

from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from tests.hostile.wire import Client

PING_INTERVAL_S = 0.005


class Bystander:
    """The process, and `p99_s` of the time since it was last asked for."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.bystander", address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Bystander:
        self.p99_s()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def p99_s(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _p99_s(waits_s: list[float]) -> float:
    return sorted(waits_s)[len(waits_s) * 99 // 100] if waits_s else 0.0


def main(address: str) -> None:
    client = Client(address)
    waits_s: list[float] = []
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if selector.select(PING_INTERVAL_S):
                if not sys.stdin.readline():
                    return
                sys.stdout.write(f"{_p99_s(waits_s)}\n")
                sys.stdout.flush()
                waits_s.clear()
            asked_s = time.monotonic()
            client.ask(ApiVersionsRequest(), 0)
            waits_s.append(time.monotonic() - asked_s)


if __name__ == "__main__":
    main(sys.argv[1])
