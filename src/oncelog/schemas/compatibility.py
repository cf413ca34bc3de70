"""Compatibility levels: which of the former schemas a new one is compared with, and in which direction. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelog.schemas.schema import ParsedSchema


class Level(NamedTuple):
    new_reads_old: bool
    old_reads_new: bool
    all_versions: bool
    """Or the last one alone."""


LEVELS: Final[Mapping[str, Level]] = {
    "NONE": Level(False, False, False),
    "BACKWARD": Level(True, False, False),
    "BACKWARD_TRANSITIVE": Level(True, False, True),
    "FORWARD": Level(False, True, False),
    "FORWARD_TRANSITIVE": Level(False, True, True),
    "FULL": Level(True, True, False),
    "FULL_TRANSITIVE": Level(True, True, True),
}
DEFAULT_LEVEL: Final = "BACKWARD"
Loader = Callable[[int], tuple[str, ParsedSchema]]
"""The kind and the schema of a version."""


def incompatibilities(level: str, new: tuple[str, ParsedSchema], versions: Sequence[int], load: Loader) -> list[str]:
    """Why a schema cannot follow the versions of a subject, oldest first; empty if it can."""
    rule = LEVELS[level]
    compared = versions if rule.all_versions else versions[-1:]
    if not (rule.new_reads_old or rule.old_reads_new):
        return []
    return [problem for version in reversed(compared) for problem in _compare(rule, new, version, load(version))]


def _compare(rule: Level, new: tuple[str, ParsedSchema], version: int, old: tuple[str, ParsedSchema]) -> list[str]:
    if new[0] != old[0]:
        return [f"version {version} is of the kind {old[0]}, and the new one of the kind {new[0]}"]
    backward: list[Any] = new[1].unreadable(old[1]) if rule.new_reads_old else []
    forward: list[Any] = old[1].unreadable(new[1]) if rule.old_reads_new else []
    return [
        *(f"the new schema cannot read what version {version} wrote: {problem}" for problem in backward),
        *(f"version {version} cannot read what the new schema writes: {problem}" for problem in forward),
    ]
