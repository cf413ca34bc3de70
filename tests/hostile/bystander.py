"""A process that asks a broker for little all the time, and how long it waits.

`-m tests.hostile.bystander ADDRESS PID` begins a new measurement at each line that it reads, and answers with the p99
of the last one, in seconds: of the time that passed, and of the CPU time that the broker's process spent meanwhile,
which does not depend on what else the machine has to do.

It is a process of its own, so that work of the attacker in the test's process is not taken for waiting.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from typing import Final, NamedTuple

from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from tests.hostile.wire import Client

PING_INTERVAL_S = 0.005
PROCESS_CPU_CLOCK: Final = 2
"""Of another process, in the way that Linux numbers its clocks."""


class Waits(NamedTuple):
    p99_s: float
    cpu_p99_s: float
    """Of the broker, while the bystander waited."""


class Bystander:
    """The process, and the p99 of its waits since it was last asked for."""

    def __init__(self, address: str, broker_pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.bystander", address, str(broker_pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Bystander:
        self.waits()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def waits(self) -> Waits:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Waits(*map(float, self._process.stdout.readline().split()))


def _p99_s(waits_s: list[float]) -> float:
    return sorted(waits_s)[len(waits_s) * 99 // 100] if waits_s else 0.0


def main(address: str, broker_pid: int) -> None:
    client = Client(address)
    waits_s: list[float] = []
    cpu_s: list[float] = []
    clock = ~broker_pid << 3 | PROCESS_CPU_CLOCK
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if selector.select(PING_INTERVAL_S):
                if not sys.stdin.readline():
                    return
                sys.stdout.write(f"{_p99_s(waits_s)} {_p99_s(cpu_s)}\n")
                sys.stdout.flush()
                waits_s.clear()
                cpu_s.clear()
            asked_s, spent_s = time.monotonic(), time.clock_gettime(clock)
            client.ask(ApiVersionsRequest(), 0)
            waits_s.append(time.monotonic() - asked_s)
            cpu_s.append(time.clock_gettime(clock) - spent_s)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
