"""Signals: SIGTERM and SIGHUP end a command as Ctrl-C does, with another exit code.

All become KeyboardInterrupt, so that a command closes what is open: it aborts its transaction, leaves its group, and
reports what it has done.
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
    """Signals that are ignored stay ignored, as under `nohup`. Only for the main thread."""
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def treat_signals_as_python_does() -> None:
    """For user programs, which expect the default behaviour."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


def _terminate(signal_number: int, _: FrameType | None) -> NoReturn:
    raise Terminated(signal_number)


def await_readable(descriptor: int) -> None:
    """Wait until a read does not block: a signal just before a blocking read would be handled only after it."""
    while not select.select([descriptor], [], [], LOOK_EVERY_S)[0]:
        pass


def exit_code(interruption: BaseException | None) -> int:
    """128 plus the number of the signal, as in shells."""
    return 128 + (interruption.signal_number if isinstance(interruption, Terminated) else signal.SIGINT)


def cause(interruption: BaseException | None) -> str:
    if isinstance(interruption, Terminated):
        return f"ended by {signal.Signals(interruption.signal_number).name}"
    return "interrupted"
