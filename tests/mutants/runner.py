"""Runs a search against a mutant, in a process of its own, and says what became of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.hook import VARIABLE
from tests.mutants.mutant import Histories, Mutant, Search, Suite

ROOT: Final = Path(__file__).parents[2]
SEARCH_SECONDS_MAX: Final = 600
HYPOTHESIS_SEED: Final = "20240229"
TESTS_FAILED: Final = 1
"""As pytest exits. Anything else but 0 means that it could not run the tests."""
PROMISE_BROKEN: Final = 10
"""As `search` exits, likewise."""


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    search: Search
    is_found: bool
    text: str
    seconds: float

    def __str__(self) -> str:
        what = "found" if self.is_found else "SURVIVED"
        return f"{what:<9} {self.seconds:>5.1f} s  {self.mutant.name}  ({self.search})"


def run(mutant: Mutant, search: Search, *, seconds_max: float = SEARCH_SECONDS_MAX) -> Verdict:
    """ValueError if the mutant cannot be put in."""
    mutant.source()
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            _command(search),
            cwd=ROOT,
            env={**os.environ, VARIABLE: mutant.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        is_found, text = False, f"no answer after {seconds_max} s"
    else:
        is_found, text = _is_found(search, done.returncode, done.stdout), done.stdout
    return Verdict(mutant, search, is_found, text, time.monotonic() - started_s)


def _command(search: Search) -> list[str]:
    if isinstance(search, Histories):
        theme = [search.theme] if search.theme else []
        return [sys.executable, "-m", "tests.mutants.search", str(search.within), *theme]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.mutants.no_shrinking"]
    return [
        *(sys.executable, "-m", "pytest", "-p", "tests.mutants.hook", *options),
        *(f"--hypothesis-seed={HYPOTHESIS_SEED}", *search.arguments),
    ]


def _is_found(search: Search, code: int, output: str) -> bool:
    if isinstance(search, Suite):
        return code == TESTS_FAILED
    if code != PROMISE_BROKEN or not search.promises:
        return code == PROMISE_BROKEN
    promise = output.partition(": ")[2].partition(":")[0]
    return promise in search.promises
