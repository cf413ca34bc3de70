"""`python -m tests.mutants.search 60 [theme]`: with a mutant, histories until one breaks a promise."""

from __future__ import annotations

import sys

from tests.mutants import hook  # noqa: F401  before anything of the broker is imported
from tests.mutants.runner import PROMISE_BROKEN
from tests.simulation.runner import play


def main() -> int:
    within, theme = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    for seed in range(1, within + 1):
        failure = play(seed, theme)[1]
        if failure is not None:
            print(f"history {seed}: {failure.text}")  # noqa: T201
            return PROMISE_BROKEN
    print(f"{within} histories, and every promise was kept")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
