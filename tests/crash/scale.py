"""How often the crash tests kill: a few times in `make test`, `make test-crash KILLS=500` more often."""

from __future__ import annotations

import os
from typing import Final

KILLS: Final = int(os.environ.get("ONCELOG_CRASH_KILLS", "0"))
"""At random, over all tests that do so; and about as many at failpoints. 0 is the short form."""

_TESTS_WITH_RANDOM_KILLS: Final = 7
_KILLS_PER_ROUND: Final = 40

ROUNDS: Final = max(1, KILLS // _KILLS_PER_ROUND)
"""How many times the broker is killed at each failpoint, at another hit of it each time."""
TIMEOUT_S: Final = 600 + KILLS


def random_kills(short: int) -> int:
    return max(short, -(-KILLS // _TESTS_WITH_RANDOM_KILLS))
