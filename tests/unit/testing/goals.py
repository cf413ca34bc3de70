"""How fast `oncelog.testing` is: `python -m tests.unit.testing.goals`, on a machine that does nothing else.

Prints the figures beside the goals. The exit code is 1 if a goal is missed. The first broker of a process waits for
the imports of the broker, once for a whole test run; under pytest they overlap with the tests before it. Files are
compiled, as pip leaves those of a package.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import oncelog.testing

START_S_MAX: Final = 0.15
RESET_S_MAX: Final = 0.005
HUNDRED_TESTS_S_MAX: Final = 30.0
ROUNDS: Final = 15
TESTS: Final = 100
_FIRST = """
import time
begun = time.perf_counter()
import oncelog.testing
with oncelog.testing.broker():
    print(time.perf_counter() - begun)
"""
_BEHIND = """
import time
def test_without():
    time.sleep(0.5)
def test_with(request):
    begun = time.perf_counter()
    request.getfixturevalue("oncelog_broker")
    print("waited", time.perf_counter() - begun, "s")
def test_other(oncelog_broker):
    pass
"""
_MANY = f"""
import oncelog.testing, pytest
@pytest.mark.parametrize('number', range({TESTS}))
def test_one(number):
    with oncelog.testing.broker() as broker:
        assert broker.running
"""


class Figure(NamedTuple):
    what: str
    measured_s: float
    goal_s: float | None

    @property
    def is_met(self) -> bool:
        return self.goal_s is None or self.measured_s <= self.goal_s

    def __str__(self) -> str:
        goal = "no goal" if self.goal_s is None else f"goal {show(self.goal_s)}{'' if self.is_met else ': MISSED'}"
        return f"{self.what:<48} {show(self.measured_s):>8}  {goal}"


def show(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def compiled(folder: str) -> Mapping[str, str]:
    """An environment in which Python keeps what it has compiled, there."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def first_starts() -> list[float]:
    def first() -> float:
        command = [sys.executable, "-c", _FIRST]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
        return float(done.stdout)

    with tempfile.TemporaryDirectory() as folder:
        environment = compiled(folder)
        first()
        return [first() for _ in range(ROUNDS // 3)]


def behind_a_test() -> list[float]:
    """What the first test with a broker waits for it, half a second after the first test has begun."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        outputs = [run_tests(Path(folder), _BEHIND, compiled(cache)).stdout for _ in range(ROUNDS // 3 + 1)]
    return [float(output.partition("waited ")[2].partition(" s")[0]) for output in outputs[1:]]


def starts_and_resets() -> tuple[list[float], list[float]]:
    starts, resets = [], []
    with oncelog.testing.broker():  # the imports
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            with oncelog.testing.broker() as broker:
                starts.append(time.perf_counter() - begun)
                for _ in range(ROUNDS):
                    broker.create_topic()
                    begun = time.perf_counter()
                    broker.reset()
                    resets.append(time.perf_counter() - begun)
    return starts, resets


def run_many_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """A hundred tests with a broker each, as a user's pytest runs them."""
    return run_tests(folder, _MANY, os.environ)


def run_tests(folder: Path, text: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "test_these.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1_200, cwd=folder, env=environment)


def hundred_tests() -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        done = run_many_tests(Path(folder))
        took_s = time.perf_counter() - begun
    if f"{TESTS} passed" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return took_s


def main() -> int:
    starts, resets = starts_and_resets()
    figures = [
        Figure("the first broker of a process, with all imports", statistics.median(first_starts()), START_S_MAX),
        Figure("the first one of pytest, behind 0.5 s of tests", statistics.median(behind_a_test()), START_S_MAX),
        Figure("a further broker, until it accepts clients", statistics.median(starts), START_S_MAX),
        Figure("a reset", statistics.median(resets), RESET_S_MAX),
        Figure(f"{TESTS} tests with a broker each", hundred_tests(), HUNDRED_TESTS_S_MAX),
    ]
    sys.stdout.write("".join(f"{figure}\n" for figure in figures))
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
