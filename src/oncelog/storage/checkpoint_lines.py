"""The form that all checkpoint files share: a version, a count, and as many lines of fields separated by blanks.

    0                     version
    2                     number of lines that follow
    orders 0 1500
    orders 1 1342

Reading fails on another version, a malformed line or a wrong count, because half a checkpoint would silently move
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

_VERSION: Final = "0"

T = TypeVar("T")


class CorruptCheckpointError(Exception):
    """A checkpoint file that cannot be read as one, or is not what was written."""


def encode_lines(lines: Iterable[str]) -> bytes:
    lines = list(lines)
    return ("\n".join([_VERSION, str(len(lines)), *lines]) + "\n").encode()


def decode_lines(content: bytes, parse: Callable[[list[str]], T]) -> list[T]:
    """What `parse` makes of the fields of each line. It raises ValueError for those that it cannot read."""
    try:
        version, count, *lines = content.decode().splitlines()
        if version.strip() != _VERSION or int(count) != len(lines):
            raise CorruptCheckpointError(f"version {version} with {count} entries announced, {len(lines)} found")
    except ValueError as error:
        raise CorruptCheckpointError(f"no version {_VERSION} and count at the top: {error}") from None
    return [_parsed(line, parse) for line in lines]


def _parsed(line: str, parse: Callable[[list[str]], T]) -> T:
    try:
        return parse(line.split())
    except ValueError as error:
        raise CorruptCheckpointError(f"malformed line {line!r}: {error}") from None
