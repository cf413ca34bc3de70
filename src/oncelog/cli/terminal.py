"""Text that fits a terminal."""

from __future__ import annotations

import shutil
from typing import TextIO


def columns_of(stream: TextIO) -> int | None:
    """None where the stream is no terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def shortened(text: str, width: int) -> str:
    """The start and the end of a text that is too long: ids differ at either."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
