"""A child process whose end can be waited for again after a wait was interrupted."""

from __future__ import annotations

import os
import subprocess
import time
from typing import AnyStr, Final

_LONGEST_PAUSE_S: Final = 0.05


class ChildProcess(subprocess.Popen[AnyStr]):
    """`Popen` keeps its lock for good if Ctrl-C comes just after it was taken, and every later `wait` blocks forever.

    This happens in about one of 500 interrupted waits. Here nothing is locked: one thread at a time waits for a child.
    """

    def poll(self) -> int | None:
        self._look(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            self._look(0)
            return self.returncode
        deadline_s = time.monotonic() + timeout
        pause_s = 0.0005
        while self.poll() is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout)
            pause_s = min(pause_s * 2, left_s, _LONGEST_PAUSE_S)
            time.sleep(pause_s)
        return self.returncode

    def end_within(self, timeout_s: float) -> int:
        """Its exit code. It is killed if it has not ended by then."""
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def _look(self, options: int) -> None:
        if self.returncode is not None:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            self.returncode = 0  # somebody else has waited for it: its code is unknown, and Popen says 0 as well
            return
        if pid == self.pid:
            self.returncode = os.waitstatus_to_exitcode(status)
