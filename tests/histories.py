"""Plays histories of a simulation from the command line: `python -m FOLDER [--seeds N] [--from-seed S]`."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Callable

TOLD_EVERY = 500


def main(play: Callable[[int], None]) -> None:
    """`play` raises if the history of a seed is bad. The first bad one ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from-seed", type=int, default=0)
    options = parser.parse_args()
    # Thousands of faults that are wanted, each of which a server warns of.
    logging.basicConfig(level=logging.ERROR)
    begin = time.monotonic()
    # Most of what is there stays there. What a history leaves behind is looked for once, when it is over.
    gc.freeze()
    gc.disable()
    for seed in range(options.from_seed, options.from_seed + options.seeds):
        try:
            play(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed} failed\n")
            raise
        gc.collect()
        played = seed + 1 - options.from_seed
        if played % TOLD_EVERY == 0:
            sys.stdout.write(f"{played} histories, {time.monotonic() - begin:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{options.seeds} histories held, in {time.monotonic() - begin:.0f} s\n")
