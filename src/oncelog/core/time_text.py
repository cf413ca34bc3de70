"""Durations and times as people write them. What cannot be read is a ValueError."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_DURATION_MS_MAX: Final = 100 * 365 * 86_400_000
"""A hundred years: what nobody means, and before the numbers do not fit their fields any more."""


def duration_ms(text: str) -> int:
    """`250ms`, `10s`, `5m` or `5min`, `2h`, `1d`; a plain number is seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        found = float(match[1]) * _UNITS_MS[match[2]] if match is not None else float(text) * 1000
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 2h")
    if abs(found) > _DURATION_MS_MAX:
        raise ValueError(f"{text!r} is too long: a duration is at most 36500d")
    return int(found)


def time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970: given as such, as a date and time (UTC unless it says otherwise), or as `-10m`: ago."""
    text = text.strip()
    if text.startswith("-"):
        return now_ms - duration_ms(text[1:])
    if text == "now":
        return now_ms
    if text.isdigit() and len(text) > 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-01-31T12:00, milliseconds since 1970, or -10m for ten minutes ago"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
