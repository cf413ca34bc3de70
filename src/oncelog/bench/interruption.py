"""Ctrl-C and SIGTERM end a measurement cleanly: brokers are stopped, folders removed, and finished rounds shown.

Both become exceptions, so that every `finally` runs. A terminal sends Ctrl-C to the brokers and drivers as well, so the
cleaning up must not rely on them.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from oncelog.child_process import ChildProcess

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


class Terminated(SystemExit):
    """SIGTERM. Where nobody catches it, the process ends with the exit code that shells have for it."""

    def __init__(self) -> None:
        super().__init__(EXIT_TERMINATED)


INTERRUPTIONS: Final = (KeyboardInterrupt, Terminated)


class _Held:
    is_on = False
    has_come = False


@contextmanager
def sigterm_in_order() -> Iterator[None]:
    """While it lasts, SIGTERM raises Terminated. Only for the main thread."""
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminate(_: int, __: FrameType | None) -> None:
    _Held.has_come = _Held.is_on
    if not _Held.is_on:
        raise Terminated


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[ChildProcess[str]]:
    """A child process that is killed if the block is left by an exception.

    While it is being started, SIGTERM is held back: raised within the constructor, it would leave a process that
    nobody knows of.
    """
    _Held.is_on = True
    try:
        with ChildProcess(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                _Held.is_on = False
                if _Held.has_come:
                    _terminate(signal.SIGTERM, None)
                yield process
            except BaseException:
                process.kill()
                raise
    finally:
        _Held.is_on = False


def exit_code(interruption: BaseException) -> int:
    return EXIT_TERMINATED if isinstance(interruption, Terminated) else EXIT_INTERRUPTED
