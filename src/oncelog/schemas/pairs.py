"""Comparing two schemas that may be recursive. No I/O.

Pairs of subschemas that are being compared are taken for compatible, so that recursion ends. That can be wrong. So the
comparison is repeated with the pairs that the former one has found to be incompatible, until there are no more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from oncelog.schemas.schema import InvalidSchema

COMPARISONS_MAX: Final = 50_000
"""Of parts of two schemas: more of them would keep others waiting for too long."""


def problems_of(compare: Callable[[Pairs], list[str]]) -> list[str]:
    """The problems between two schemas. Raises InvalidSchema when there are too many pairs."""
    pairs, known = Pairs({}, []), 0
    problems = compare(pairs)
    while not problems and len(pairs.incompatible) > known:
        known = len(pairs.incompatible)
        pairs = Pairs(pairs.incompatible, pairs.kept)
        problems = compare(pairs)
    return problems


class Pairs:
    """The pairs that one comparison has looked at."""

    def __init__(self, assumed: dict[tuple[int, int], list[str]], kept: list[Any]) -> None:
        self._assumed = assumed
        self._known: dict[tuple[int, int], list[str]] = {}
        self._left = COMPARISONS_MAX
        self.kept = kept
        """Subschemas whose identities are keys of the others, so that they stay theirs."""

    @property
    def incompatible(self) -> dict[tuple[int, int], list[str]]:
        return {pair: problems for pair, problems in self._known.items() if problems}

    def spend(self) -> None:
        """Count a step. Raises InvalidSchema when there are too many."""
        self._left -= 1
        if self._left < 0:
            raise InvalidSchema(f"it has too many parts: comparing it takes more than {COMPARISONS_MAX} steps")

    def problems(self, one: Any, other: Any, compare: Callable[[], list[str]]) -> list[str]:
        """What `compare` finds between the two. It is called once for each pair."""
        pair = (id(one), id(other))
        if pair not in self._known:
            self.kept += [one, other]
            self._known[pair] = self._assumed.get(pair, [])
            self._known[pair] = compare()
        return self._known[pair]
