"""Descriptors of logs and brokers that a test lets go of without closing them, as a crash does.

A process that crashes gives its descriptors back. In the process of the tests they would stay open to the end of the
run, and select(), which Spark's Python side uses, knows none above 1023. So whatever opens files is noted here when it
does, and is closed by its own `close` when the crashed process would be gone. Closing descriptors by their numbers
instead would close those of others: an owner that closes its own later does not know that the number is in use again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncelog.storage.file_cache import FileCache
from oncelog.storage.log_dir import LogDir


class Kind(NamedTuple):
    """A class whose objects hold descriptors."""

    owner: type
    opens: str
    """The method that opens files."""
    paths: Callable[[Any], list[Path]]
    """Of the files that are open now."""
    close: Callable[[Any], None]


class Noted(NamedTuple):
    number: int
    owner: Any
    kind: Kind

    @property
    def paths(self) -> list[Path]:
        return self.kind.paths(self.owner)

    def close(self) -> None:
        self.kind.close(self.owner)


_KINDS: Final = (
    Kind(
        FileCache,
        "open",
        lambda cache: [handle.path for handle in cache._open],
        FileCache.close_all,
    ),
    Kind(LogDir, "__init__", lambda folder: [folder.path] if folder._lock._descriptors else [], LogDir.abandon),
)
_LOOKED_THROUGH_AFTER: Final = 1000

_numbers = count(1)
_noted: dict[int, Noted] = {}
"""By `id`, which stays the owner's as long as it is in here."""
_look_through_at = _LOOKED_THROUGH_AFTER


def last_number() -> int:
    """To be given to `close_opened_since`."""
    return next(_numbers)


def close_opened_since(number: int) -> None:
    for noted in list(_noted.values()):
        if noted.number > number:
            noted.close()
    _forget_closed()


def close_under(folder: Path) -> None:
    """Close what has a file in this folder open."""
    for noted in list(_noted.values()):
        if any(path.is_relative_to(folder) for path in noted.paths):
            noted.close()
    _forget_closed()


def _forget_closed() -> None:
    """Those that are opened again are noted again."""
    global _look_through_at
    for key, noted in list(_noted.items()):
        if not noted.paths:
            del _noted[key]
    _look_through_at = len(_noted) + _LOOKED_THROUGH_AFTER


def _note_when_opened(kind: Kind) -> None:
    method = getattr(kind.owner, kind.opens)

    @wraps(method)
    def noting(owner: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(owner, *arguments, **named)
        finally:
            if len(_noted) >= _look_through_at:
                _forget_closed()
            _noted.setdefault(id(owner), Noted(next(_numbers), owner, kind))

    setattr(kind.owner, kind.opens, noting)


for _kind in _KINDS:
    _note_when_opened(_kind)
