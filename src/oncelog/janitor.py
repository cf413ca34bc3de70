"""What a process leaves behind, such as one that runs tests or the demo, removed however that process dies.

A process that is killed cannot clean up, and a broker that is stopped cannot either. So each process that starts
brokers has a janitor, a small process that knows every broker, the launcher, Spark's master, workers and driver, and
every temporary folder. When its owner is gone, it kills groups, such as the launcher with all brokers that it has
forked or is about to fork, then the remaining brokers, and then removes the remaining folders. It runs in its own
session, so that a signal to the owner's process group or terminal does not reach it.

This file is also the janitor's program, and imports nothing but the standard library. What is not needed to start the
launcher is imported by the functions that use it: a first broker waits for everything before that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

OWNER_POLL_S: Final = 0.2
GROUP_POLL_S: Final = 0.005
END_TIMEOUT_S: Final = 10.0
EXIT_TIMEOUT_S: Final = 30.0
Charge = tuple[str, int | str]
"""("process", pid), ("group", pid of its leader) or ("folder", path)."""


class Janitor:
    """The owner's side. The process is started when there is something to look after."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._charges: set[Charge] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, kind: str, what: int | str) -> None:
        """Look after a process, a process group or a folder; a folder before it is made."""
        with self._lock:
            self._charges.add((kind, what))
            self._tell((kind, what))

    def leave(self, kind: str, what: int | str) -> None:
        """The owner has cleaned up by itself."""
        with self._lock:
            self._charges.discard((kind, what))
            self._tell((kind, what))

    def _tell(self, charge: Charge) -> None:
        try:
            if self._process is None:
                self._start()
            self._write(charge)
        except BrokenPipeError:
            self._start()
            for each in self._charges:
                self._write(each)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd=os.sep,
            start_new_session=True,
        )

    def _write(self, charge: Charge) -> None:
        import json

        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps([charge in self._charges, *charge]).encode() + b"\n")

    def close(self) -> None:
        """At the owner's end: what it did not clean up is removed now."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT_S)

    def forget(self) -> None:
        """In a forked child: brokers and janitor are the parent's."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # it is not this process that waits for it
        self._begin()


class _Charges:
    """The janitor's side: what is to be cleaned up when the owner is gone."""

    def __init__(self) -> None:
        self._processes: dict[int, int] = {}
        self._groups: set[int] = set()
        self._folders: set[str] = set()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        import json

        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            taken, kind, what = json.loads(line)
            if kind == "process":
                self._note_process(what, taken)
            else:
                chosen = self._groups if kind == "group" else self._folders
                (chosen.add if taken else chosen.discard)(what)

    def _note_process(self, pid: int, taken: bool) -> None:
        if taken:
            self._processes[pid] = _open_process(pid)
        elif (descriptor := self._processes.pop(pid, -1)) >= 0:
            os.close(descriptor)

    def clean_up(self) -> None:
        """Folders last: a broker that is being started would make its folder again."""
        import shutil  # nobody waits for this process then

        for leader in self._groups:
            end_group(leader)
        for pid, descriptor in self._processes.items():
            _end(pid, descriptor)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def end_group(leader: int) -> None:
    """Kills all processes of a group and waits until none of them runs; on Linux alone, it waits."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    while leader in _living_groups() and time.monotonic() < deadline_s:
        time.sleep(GROUP_POLL_S)


def _living_groups() -> Iterator[int]:
    """The groups of all processes that run. Zombies do not count: where no init waits for them, they stay."""
    from pathlib import Path

    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if state not in "ZX":
                yield int(group)


def _open_process(pid: int) -> int:
    """A descriptor, so that a later process with the same pid is not killed; -1 where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _end(pid: int, descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], END_TIMEOUT_S)
            return
        os.kill(pid, signal.SIGKILL)
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline_s:
            os.kill(pid, 0)
            time.sleep(OWNER_POLL_S)


def main(owner: int) -> None:
    charges = _Charges()
    # A process that the owner has forked may keep the pipe open, so its end is not the only sign.
    while os.getppid() == owner:
        if select.select([0], [], [], OWNER_POLL_S)[0]:
            data = os.read(0, 65_536)
            if not data:
                break
            charges.feed(data)
    os.set_blocking(0, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(0, 65_536):
            charges.feed(data)
    charges.clean_up()


if __name__ == "__main__":
    main(int(sys.argv[1]))
else:
    janitor: Final = Janitor()
    atexit.register(janitor.close)
    os.register_at_fork(after_in_child=janitor.forget)
