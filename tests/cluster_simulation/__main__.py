"""`python -m tests.cluster_simulation`: histories of a replicated partition, by seed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster_simulation.history import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_simulation", description=__doc__)
    parser.add_argument("--from-seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further history is begun after that")
    options = parser.parse_args()
    started, failures, played = time.monotonic(), 0, 0
    for seed in range(options.from_seed, options.from_seed + options.count):
        if time.monotonic() - started > options.seconds:
            break
        tally, failure = play(seed)
        played += 1
        failures += failure is not None
        print(seed, tally if failure is None else failure.text, flush=True)  # noqa: T201
    print(f"{played} histories, {failures} with a broken promise, {time.monotonic() - started:.1f} s")  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
