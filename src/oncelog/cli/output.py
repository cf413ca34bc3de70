"""How commands print: text for people, JSON for scripts, the same data in both."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "nothing") -> None:
    """Aligned columns without lines, so that `awk` and `cut` can take them apart; numbers to the right."""
    if not rows:
        click.echo(empty, err=True)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    heads = [name.upper() for name in columns]
    widths = [max(len(heads[i]), *(len(row[i]) for row in cells)) for i in range(len(heads))]
    is_number = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    print_lines(_aligned(line, widths, is_number) for line in [heads, *cells])


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _aligned(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
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


def show_time(timestamp_ms: int | None) -> str:
    """In UTC, to the millisecond."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def show_duration(duration_ms: float) -> str:
    """`350 ms`, `12.3 s`, `5 min 7 s`, `3 h 20 min`, `2 d 4 h`."""
    seconds = duration_ms / 1000
    if seconds < 1:
        return f"{duration_ms:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, smaller, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60)):
        if seconds < size * (60 if unit == "min" else 24):
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {smaller}"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def show_bytes(size: int) -> str:
    """`512 B`, `1.5 kB`, `3.2 MB`."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def count_of(number: int, noun: str) -> str:
    """`1 record`, `3 records`, `2 batches`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith(("s", "ch", "x")) else f"{number:,} {noun}s"
