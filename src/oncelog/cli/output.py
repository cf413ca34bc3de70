"""How commands print: text for people, JSON for scripts, the same data in both."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from oncelog.cli.parsing import Choice
from oncelog.cli.progress import hidden
from oncelog.cli.terminal import columns_of, shortened
from oncelog.core.display import count_of, show_bytes, show_duration, show_time

__all__ = [
    "count_of",
    "json_line",
    "output_option",
    "print_command",
    "print_json",
    "print_lines",
    "print_rows",
    "print_table",
    "print_wrapped",
    "show_bytes",
    "show_duration",
    "show_time",
    "with_name",
    "wrapped",
]

TEXT_COLUMNS_MIN: Final = 8
"""A text is not shortened to less."""
F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """`--output text|json`, handed to the command as `output`."""
    return click.option(
        "-o", "--output", type=Choice(["text", "json"]), default="text", show_default=True,
        help="Text for people, or JSON for scripts.",
    )(command)  # fmt: skip


def print_json(value: Any) -> None:
    print_lines([json.dumps(value, indent=2, ensure_ascii=False)])


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def print_lines(lines: Iterable[str]) -> None:
    """Buffered, unlike `click.echo`, which flushes every line."""
    with hidden():
        write = sys.stdout.write
        for line in lines:
            write(line + "\n")


def wrapped(text: str, indent: int) -> list[str]:
    """A line. Where it is too long for the terminal, it goes on in further ones, indented; words stay whole."""
    columns = columns_of(sys.stdout)
    if columns is None or len(text) <= columns:
        return [text]
    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=False, subsequent_indent=" " * indent)


def print_wrapped(text: str, indent: int) -> None:
    print_lines(wrapped(text, indent))


def with_name(before: str, name: str, behind: str = "") -> str:
    """A line with a name in it, which is shortened in the middle where the line is too long for the terminal."""
    columns = columns_of(sys.stdout) or sys.maxsize
    return before + shortened(name, max(columns - len(before) - len(behind), TEXT_COLUMNS_MIN)) + behind


def print_command(before: str, command: str) -> None:
    """A command behind a text, in a line of its own where both have no room. It is to be copied, so it stays whole."""
    line = f"{before} {command}"
    indent = len(before) - len(before.lstrip()) + 2
    has_room = len(line) <= (columns_of(sys.stdout) or sys.maxsize)
    print_lines([line] if has_room else [before, " " * indent + command])


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "nothing", whole: Sequence[str] = ()
) -> None:
    """Aligned columns without lines, so that `awk` and `cut` can take them apart; numbers to the right.

    On a terminal, long texts are shortened in the middle until a line fits; a pipe and JSON get them whole.
    Columns in `whole` are never shortened: sentences and times.
    """
    if not rows:
        with hidden():
            click.echo(empty, err=True)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    heads = [name.upper() for name in columns]
    widths = _widths(heads, cells)
    is_number = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    widths = _fitted(widths, [right or name in whole for right, name in zip(is_number, columns, strict=True)])
    print_lines(_aligned(line, widths, is_number) for line in [heads, *cells])


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: str = "text", *, empty: str = "nothing"
) -> None:
    """The rows as JSON, or these columns of them as a table."""
    if output == "json":
        print_json(rows)
    else:
        names = [column.replace("_", " ") for column in columns]
        print_table(names, [[row[column] for column in columns] for row in rows], empty=empty)


def fits(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bool:
    """Whether a table of these has room on the terminal, with nothing shortened."""
    return _excess(_widths(columns, [[_cell(value) for value in row] for row in rows])) <= 0


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]


def _excess(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1) - (columns_of(sys.stdout) or sys.maxsize)


def _fitted(widths: Sequence[int], stays: Sequence[bool]) -> list[int]:
    """Widths that fit on the terminal: the widest texts give way first. Where that is not enough, all stay whole."""
    fitted = list(widths)
    excess = _excess(widths)
    while excess > 0:
        widest = max(range(len(fitted)), key=lambda i: 0 if stays[i] else fitted[i])
        if stays[widest] or fitted[widest] <= TEXT_COLUMNS_MIN:
            return list(widths)
        fitted[widest] -= 1
        excess -= 1
    return fitted


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
