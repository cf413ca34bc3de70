"""What a command is doing, on one line of the terminal, once that takes longer than a second.

The line is on the standard error, and is erased when the command goes on. It is left out in pipes, with
`--quiet`, and where the output is JSON.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Self, TypeVar

import click

from oncelog.cli.terminal import columns_of, shortened
from oncelog.core.display import show_duration

T = TypeVar("T")

SHOWN_AFTER_S: Final = 1.0
REDRAWN_EVERY_S: Final = 0.2
_ERASE: Final = "\r\x1b[K"
_OFF: Final = "oncelog.cli.progress.off"


class doing:  # noqa: N801  # used as a statement: with doing("reading files")
    """Shows what the command does, and for how long it has printed nothing else. In another one it shows nothing."""

    _shown: doing | None = None

    def __init__(self, what: str | Callable[[], str], *, unless: bool = False) -> None:
        self._what = what
        self._is_wanted = not unless
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._quiet_since_s = 0.0
        """When the command has last said anything."""
        self._is_drawn = False

    def __enter__(self) -> Self:
        if self._is_wanted and doing._shown is None and is_shown():
            doing._shown = self
            self._quiet_since_s = time.monotonic()
            threading.Thread(target=self._draw_until_ended, name="oncelog-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Also within `hidden`, so the thread that draws is not waited for: it looks whether this has ended."""
        if doing._shown is self:
            doing._shown = None
            with self._lock:
                self._ended.set()
                self._erase()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        with self._lock:
            self._erase()
            try:
                yield
            finally:
                self._quiet_since_s = time.monotonic()

    def _draw_until_ended(self) -> None:
        while not self._ended.wait(REDRAWN_EVERY_S):
            with self._lock:
                quiet_s = time.monotonic() - self._quiet_since_s
                if quiet_s >= SHOWN_AFTER_S and not self._ended.is_set():
                    self._draw(int(quiet_s))

    def _draw(self, seconds: int) -> None:
        what = self._what if isinstance(self._what, str) else self._what()
        text = f"{what} ... {f'{seconds} s' if seconds < 60 else show_duration(seconds * 1000)}"
        # One column stays free: a terminal that has drawn the last one begins a new line.
        sys.stderr.write(_ERASE + shortened(text, (columns_of(sys.stderr) or 80) - 1))
        sys.stderr.flush()
        self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._is_drawn = False


def hidden() -> AbstractContextManager[None]:
    """Without the line that is shown, if there is one, for other output."""
    shown = doing._shown
    return nullcontext() if shown is None else shown.hidden()


def echo(text: str, *, err: bool = False) -> None:
    with hidden():
        click.echo(text, err=err)


def say(text: str) -> None:
    echo(text, err=True)


def each(items: Sequence[T], what: Callable[[T], str], *, unless: bool = False) -> Iterator[T]:
    """The items. The line shows which of them is being worked on."""
    done = 0
    with doing(lambda: f"{what(items[done])}, {done + 1} of {len(items)}", unless=unless):
        for item in items:
            yield item
            done = min(done + 1, len(items) - 1)


def is_shown() -> bool:
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return False
    context = click.get_current_context(silent=True)
    if context is not None and (
        context.meta.get(_OFF) or context.params.get("quiet") or context.params.get("output") == "json"
    ):
        return False
    return sys.stdout.isatty() or _is_file(sys.stdout)


def turn_off() -> None:
    """From here on the command shows by its output that it goes on."""
    click.get_current_context().meta[_OFF] = True
    if doing._shown is not None:
        doing._shown.end()


def _is_file(stream: object) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)  # type: ignore[attr-defined]  # a stream
    except (OSError, ValueError):
        return False
