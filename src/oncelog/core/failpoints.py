"""Named points in the code at which a test can stop, fail or kill the broker.

`hit("log.append.before_write")` costs one dictionary look-up in an empty dictionary when nothing is armed. What an
armed point does (raise, kill, count) is decided by whoever arms it: this module only keeps the table.
"""

from __future__ import annotations

from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    _armed[name] = action


def disarm(name: str) -> None:
    _armed.pop(name, None)


def disarm_all() -> None:
    _armed.clear()


def on_nth_hit(count: int, action: Callable[[], None]) -> Callable[[], None]:
    """An action that lets `count - 1` hits pass, fires once and is quiet afterwards."""
    remaining = count

    def fire() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            action()

    return fire
