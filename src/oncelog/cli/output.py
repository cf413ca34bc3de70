"""How commands print: text for people, JSON for scripts, the same data in both."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from oncelog.core.display import count_of, show_bytes, show_duration, show_time

__all__ = [
    "count_of",
    "json_line",
    "output_option",
    "print_json",
    "print_lines",
    "print_table",
    "show_bytes",
    "show_duration",
    "show_time",
]

TEXT_COLUMNS_MIN: Final = 8
"""A text is not shortened to less."""
F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """`--output text|json`, handed to the command as `output`."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
        help="Text for people, or JSON for scripts.",
    )(command)  # fmt: skip


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def print_lines(lines: Iterable[str]) -> None:
    """Buffered, unlike `click.echo`, which flushes every line."""
    write = sys.stdout.write
    for line in lines:
        write(line + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "nothing", whole: Sequence[str] = ()
) -> None:
    """Aligned columns without lines, so that `awk` and `cut` can take them apart; numbers to the right.

    On a terminal, long texts are shortened in the middle until a line fits; a pipe and JSON get them whole.
    Columns in `whole` are never shortened: sentences and times.
    """
    if not rows:
        click.echo(empty, err=True)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    heads = [name.upper() for name in columns]
    widths = [max(len(heads[i]), *(len(row[i]) for row in cells)) for i in range(len(heads))]
    is_number = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    widths = _fitted(widths, [right or name in whole for right, name in zip(is_number, columns, strict=True)])
    print_lines(_aligned(line, widths, is_number) for line in [heads, *cells])


def _fitted(widths: Sequence[int], stays: Sequence[bool]) -> list[int]:
    """Widths that fit on the terminal: the widest texts give way first. Where that is not enough, all stay whole."""
    fitted = list(widths)
    excess = sum(widths) + 2 * (len(widths) - 1) - (_terminal_columns() or sys.maxsize)
    while excess > 0:
        widest = max(range(len(fitted)), key=lambda i: 0 if stays[i] else fitted[i])
        if stays[widest] or fitted[widest] <= TEXT_COLUMNS_MIN:
            return list(widths)
        fitted[widest] -= 1
        excess -= 1
    return fitted


def _terminal_columns() -> int | None:
    """None where the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shortened(text: str, width: int) -> str:
    """The start and the end of a text that is too long: ids differ at either."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _aligned(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else shortened(cell, width).ljust(width)
        for cell, width, right in zip(cells, widths, is_number, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value)) or "-"
    return str(value) or "-"
