"""The program of the launcher: imports a broker once, and forks it for each message of its owner; see `launcher`.

It is run by its path and imports nothing of its own package, which a broker does not need. What the first broker does
not need to begin is imported a moment after it, or before the second.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

_DESCRIPTORS: Final = 5
PAUSE_MS: Final = 500
"""After the first broker, before what others do not import themselves: the first and its test need the cores."""
_PROGRAM: Final = "oncelog.server.main"
_MODULES: Final = (
    _PROGRAM,
    "oncelog.server.orders",
    "oncelog.server.own_controller",
    "oncelog.server.membership",
    "oncelog.server.replication",
    "oncelog.server.cluster_topics",
)
_HANDLERS: Final = "oncelog.server.handlers"
_DISPATCH: Final = "oncelog.server.dispatch"
_PR_SET_PDEATHSIG: Final = 1


class Forking:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._statuses: dict[int, int] = {}
        self._has_launched = False
        self._has_everything = False
        self._woken, waking = os.pipe()
        self._news = select.poll()  # the owner's socket has the number that it had with the owner, which may be any
        for descriptor in (connection.fileno(), self._woken):
            self._news.register(descriptor, select.POLLIN)
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        while True:
            pause_ms = PAUSE_MS if self._has_launched and not self._has_everything else None
            ready = [descriptor for descriptor, _ in self._news.poll(pause_ms)]
            if not ready:
                self._import_rest()
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ended()
            if self._connection.fileno() in ready and not self._launch():
                return

    def _launch(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._connection, 1, _DESCRIPTORS)
        if not message:
            return False
        if self._has_launched:
            self._import_rest()
        start, *streams, status = descriptors
        launcher_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            _end_with(launcher_pid)
            self._become_broker(start, streams)
        for descriptor in (start, *streams):
            os.close(descriptor)
        self._statuses[pid] = status
        self._has_launched = True
        try:
            self._connection.send(str(pid).encode())
        except BrokenPipeError:  # the owner has ended meanwhile
            os.kill(pid, signal.SIGKILL)
            return False
        return True

    def _import_rest(self) -> None:
        if not self._has_everything:
            _import_handlers()
            self._has_everything = True

    def _become_broker(self, start: int, streams: Sequence[int]) -> NoReturn:
        code = 1
        try:
            given: dict[str, Any] = json.loads(os.pread(start, os.fstat(start).st_size, 0))
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            # All of them, whatever the number of the owner's socket.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            code = _run(given)
        except BaseException:  # noqa: BLE001  a fork must not go on as if it were the launcher
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)

    def _report_ended(self) -> None:
        while self._statuses:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            descriptor = self._statuses.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _end_with(parent: int) -> None:
    """A broker does not outlive its launcher: nobody else collects it and tells its owner."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        os._exit(1)


def _run(given: dict[str, Any]) -> int:
    os.environ.clear()
    os.environ.update(given["environment"])
    os.chdir(given["folder"])
    code: int = importlib.import_module(_PROGRAM).serve_for_test(**given["start"])
    return code


def _import_server() -> None:
    """By name, as the interpreter does with a program: this package does not know the broker that it runs."""
    gc.disable()  # there is no garbage yet, and looking for it would take a tenth of the time
    for name in _MODULES:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")
    gc.enable()
    gc.freeze()


def _import_handlers() -> None:
    """Those that a broker would import when they are first asked for."""
    import pkgutil

    handlers = importlib.import_module(_HANDLERS)
    for name in importlib.import_module(_DISPATCH).USED_SOON:
        importlib.import_module(name)
    for module in pkgutil.iter_modules(handlers.__path__):
        importlib.import_module(f"{_HANDLERS}.{module.name}")
    gc.collect()
    gc.freeze()


def main(descriptor: int) -> None:
    _import_server()
    with socket.socket(fileno=descriptor) as connection:
        Forking(connection).run()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the owner may know of Oncelog by other ways than the environment
    main(int(sys.argv[1]))
