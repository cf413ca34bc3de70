"""The names of the files of a segment: its base offset in 20 digits, and a suffix for each kind of file."""

from __future__ import annotations

from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
DELETED_SUFFIX: Final = ".deleted"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset a file is named after, or None."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None
