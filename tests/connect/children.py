"""Connectors in forked processes, which die by kill -9 at failpoints: fast to start, and as dead as a real one."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from oncelog.core import failpoints


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    """All threads stand still until SIGCONT comes, the calling one before it does anything else."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Child:
    """A function in a process of its own. `wait` returns its exit code: 0, 1 after an exception, -9 after a kill."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            # What the parent left for the collector may own threads that were not forked: to free a producer of
            # librdkafka here is a segmentation fault.
            gc.freeze()
            try:
                run()
                code = 0
            except BaseException:  # noqa: BLE001  # nothing may leave a forked process
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def has_ended(self) -> bool:
        """`wait` has its exit code afterwards too."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 300) -> int:
        deadline_s = time.monotonic() + timeout_s
        while not self.has_ended():
            if time.monotonic() > deadline_s:
                self.kill()
                raise AssertionError(f"the process did not end within {timeout_s:g} s")
            time.sleep(0.005)
        return self._code or 0

    def kill(self) -> None:
        if not self.has_ended():
            self.signal(signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


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
