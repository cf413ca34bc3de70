"""What a mutant is: a change of the source, and who must find it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Histories:
    """The first histories of the simulation, by seed; with a theme, those that are about it.

    One of them must break one of the promises, if any are named.
    """

    within: int
    promises: frozenset[str] = frozenset()
    theme: str | None = None

    def __str__(self) -> str:
        return f"{self.within} histories" + (f" of {self.theme}" if self.theme else "")


@dataclass(frozen=True)
class Suite:
    """Arguments of pytest, of which a test must fail."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.arguments)


Search = Histories | Suite


def histories(within: int, *promises: str, theme: str | None = None) -> Histories:
    return Histories(within, frozenset(promises), theme)


def suite(*arguments: str) -> Suite:
    return Suite(arguments)


@dataclass(frozen=True)
class Mutant:
    name: str
    module: str
    old: str
    """Occurs once in the module."""
    new: str
    found_by: tuple[Search, ...]
    is_quick: bool = False
    """Found in a second or two, and so part of `make test`."""

    def source(self) -> str:
        """The mutated module. ValueError if the text that it changes is not there, or not once."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise ValueError(f"{self.name}: there is no module {self.module}")
        text = Path(spec.origin).read_text()
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the text to change is {count} times in {self.module}:\n{self.old}")
        return text.replace(self.old, self.new)
