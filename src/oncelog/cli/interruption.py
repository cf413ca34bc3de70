"""How commands are ended from outside: SIGTERM and SIGHUP do what Ctrl-C does, and differ in the exit code only.

All become KeyboardInterrupt, so that what is open is closed on the way: a transaction is aborted, a member leaves its
group, and the command says what became of its work.
"""

from __future__ import annotations

import select
import signal
from types import FrameType
from typing import Final, NoReturn

LOOK_EVERY_S: Final = 0.5
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's asked the process to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def treat_signals_as_ctrl_c() -> None:
    """Signals that are ignored stay so: `nohup` means it. Only for the main thread."""
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def treat_signals_as_python_does() -> None:
    """For programs of others, which expect nothing else."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


def _terminate(signal_number: int, _: FrameType | None) -> NoReturn:
    raise Terminated(signal_number)


def await_readable(descriptor: int) -> None:
    """Wait until a read does not block. A signal that comes just before a blocking read would wait for its end."""
    while not select.select([descriptor], [], [], LOOK_EVERY_S)[0]:
        pass


def exit_code(interruption: BaseException | None) -> int:
    """128 and the number of the signal, as shells have it."""
    return 128 + (interruption.signal_number if isinstance(interruption, Terminated) else signal.SIGINT)


def cause(interruption: BaseException | None) -> str:
    if isinstance(interruption, Terminated):
        return f"ended by {signal.Signals(interruption.signal_number).name}"
    return "interrupted"
