"""Brokers by fork: a process that has imported everything once makes a new broker in a few milliseconds.

This is the owner's side, `forking` the program of that process. Both import as little as they can before the first
broker runs: a test waits for it.

The launcher gets a message per broker over a socket: descriptors of a file with what to start, environment and folder,
of its standard streams, and one on which it writes the exit code. It ends when its owner does, and its brokers end
with it: they are told by the kernel, and they are of its process group, which the janitor kills. Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Final

from oncelog.child_process import ChildProcess
from oncelog.janitor import end_group, janitor

_PROGRAM: Final = __file__.removesuffix("launcher.py") + "forking.py"


class LaunchedProcess:
    """A process that the launcher has forked: as much of `Popen` as a broker needs."""

    def __init__(self, pid: int, stdin: IO[str], stdout: IO[str], status: int) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._code if self._code is not None else self._read_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._code if self._code is not None else self._read_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("oncelog serve", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        # It may end between the two, as in Popen: the launcher has collected it, and its code is on the way.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_code(self, timeout: float | None) -> int | None:
        ending = select.poll()  # a test may have thousands of files open, and `select` knows numbers below 1024 alone
        ending.register(self._status, select.POLLIN)
        if not ending.poll(None if timeout is None else timeout * 1000):
            return None
        text = os.read(self._status, 64)
        os.close(self._status)
        if text:
            self._code = int(text)
        else:  # the launcher is gone, and nobody would ever learn how the broker ends
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._code = -signal.SIGKILL
        return self._code


class Launcher:
    """The owner's side. The process is started with the first broker."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process: ChildProcess[bytes] | None = None
        self._socket: socket.socket | None = None

    def warm_up(self) -> None:
        """Starts the process, and does not wait for it: for those who know that they will ask for a broker."""
        with self._lock:
            if self._socket is None and sys.platform == "linux":
                self._start()

    def launch(self, start: Mapping[str, object], stderr: int) -> LaunchedProcess:
        """A broker that takes orders. `start` are the arguments of `server.main.serve_for_test`."""
        import json  # while the launcher imports a broker
        from pathlib import Path

        stdin_read, stdin_write = os.pipe()
        stdout_read, stdout_write = os.pipe()
        status_read, status_write = os.pipe()
        what = os.memfd_create("what-to-start")  # an environment may be larger than a message of a socket
        given = [what, stdin_read, stdout_write, stderr, status_write]
        try:
            asked = {"start": start, "environment": dict(os.environ), "folder": str(Path.cwd())}
            os.write(what, json.dumps(asked).encode())
            with self._lock:
                pid = self._ask(given)
        except BaseException:
            self._end()
            for descriptor in (stdin_write, stdout_read, status_read):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (what, stdin_read, stdout_write, status_write):
                os.close(descriptor)
        return LaunchedProcess(pid, os.fdopen(stdin_write, "w"), os.fdopen(stdout_read), status_read)

    def _ask(self, descriptors: Sequence[int]) -> int:
        for is_last in (False, True):
            connection = self._socket if self._socket is not None else self._start()
            try:
                socket.send_fds(connection, [b"!"], descriptors)
                answer = connection.recv(64)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
            if answer:
                return int(answer)
            self._close()
            if is_last:
                break
        raise RuntimeError("the process that starts brokers has ended; its last words are on the standard error")

    def _start(self) -> socket.socket:
        # The socket first: whatever interrupts this, the process that may have been started ends when it is closed.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        with theirs:
            self._process = ChildProcess(
                [sys.executable, "-P", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the owner, who ends brokers in an order
            )
        janitor.take("group", self._process.pid)  # before it is asked for a broker
        return ours

    def _close(self) -> None:
        connection, self._socket = self._socket, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.wait()
            janitor.leave("group", process.pid)

    def _end(self) -> None:
        """After a launch that was interrupted: nobody knows the broker that is being forked, so all of them go.

        That others are running already is rare. The first broker takes as long as all imports, a further one some
        milliseconds.
        """
        with self._lock:
            if self._process is not None:
                end_group(self._process.pid)
            self._close()

    def close(self) -> None:
        with self._lock:
            self._close()

    def forget(self) -> None:
        """In a forked child: the launcher is the parent's."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # it is not this process that waits for it
        self._begin()


launcher: Final = Launcher()
atexit.register(launcher.close)
os.register_at_fork(after_in_child=launcher.forget)
