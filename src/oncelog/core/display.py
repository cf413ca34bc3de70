"""Times, durations, sizes and counts as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


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


def are(number: int) -> str:
    return "is" if number == 1 else "are"
