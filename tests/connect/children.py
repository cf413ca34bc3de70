"""Connectors in forked processes, which die by kill -9 at failpoints: fast to start, and as dead as a real one."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable

from oncelog.core import failpoints


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """A function in a process of its own. `wait` returns its exit code: 0, 1 after an exception, -9 after a kill."""

    def __init__(self, run: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                run()
                code = 0
            except BaseException:  # noqa: BLE001  # nothing may leave a forked process
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 60) -> int:
        deadline_s = time.monotonic() + timeout_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline_s:
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"the process did not end within {timeout_s:g} s")
            time.sleep(0.005)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)


def dying_at(name: str, run: Callable[[], object], nth: int = 1) -> Child:
    """A child that is killed at the nth hit of a failpoint."""

    def armed() -> None:
        failpoints.arm(name, failpoints.on_nth_hit(nth, kill_self))
        run()

    return Child(armed)


def dying_at_random(names: list[str], chance: float, seed: int, run: Callable[[], object]) -> Child:
    """A child that may be killed at each hit of each failpoint."""

    def armed() -> None:
        dice = random.Random(seed)

        def maybe() -> None:
            if dice.random() < chance:
                kill_self()

        for name in names:
            failpoints.arm(name, maybe)
        run()

    return Child(armed)
