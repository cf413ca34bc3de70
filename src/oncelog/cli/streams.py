"""The standard streams of a command: some may be closed, be full, or not know all letters.

A shell closes them by `>&-`. Python has None in their place then, and the next file or socket that is opened gets their
number.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final

import click

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare() -> None:
    """Closed streams fail when they are used: reading from stdin, writing to stdout. Nobody could be told on stderr."""
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
        raise click.ClickException("the standard output is closed: >/dev/null is for output that nobody wants")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr does. A letter that the terminal does not have, or a file name that is not UTF-8, is no error.
        sys.stdout.reconfigure(errors="backslashreplace")


def sentence(error: OSError) -> str:
    """What happened, without the number of the error."""
    if error.strerror is None:
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno in _NO_ROOM:
        return f"the output cannot be written: {error.strerror}"
    return "the standard input is closed" if error.errno == errno.EBADF else error.strerror
