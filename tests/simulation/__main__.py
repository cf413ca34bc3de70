"""`python -m tests.simulation`: random histories for a while, or one history again."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.simulation.plan import THEMES
from tests.simulation.runner import play, play_all, random_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to play (default 60)")
    parser.add_argument("--seed", type=int, help="play this history only, and print its trace")
    parser.add_argument("--from-seed", type=int, help="play seeds in order from here on instead of random ones")
    parser.add_argument("--theme", choices=THEMES, help="with --seed: the history that a search for a mutant has named")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, options.theme)
    started_s = time.monotonic()
    seeds = random_seeds() if options.from_seed is None else itertools.count(options.from_seed)
    played, failure = play_all(seeds, options.seconds)
    print(f"{played} histories in {time.monotonic() - started_s:.0f} s")  # noqa: T201
    if failure is not None:
        print(failure)  # noqa: T201
    return 1 if failure is not None else 0


def _replay(seed: int, theme: str | None) -> int:
    history, failure = play(seed, theme, tracing=True)
    print("\n".join(history.traced))  # noqa: T201
    print(f"plan: {history.plan}\n{history.played_summary()}\ndigest {history.digest}")  # noqa: T201
    print(failure.text if failure is not None else "every promise was kept")  # noqa: T201
    return 1 if failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
