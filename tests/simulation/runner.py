"""Many histories, one after the other, until one fails or time is up."""

from __future__ import annotations

import random
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.history import History
from tests.simulation.plan import Plan
from tests.simulation.station import memory_folder, without_garbage_collection

TRACE_LINES_SHOWN = 150


@dataclass(frozen=True)
class Failure:
    seed: int
    text: str
    plan: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        shown = "\n".join(self.trace[-TRACE_LINES_SHOWN:])
        return (
            f"history {self.seed} failed: {self.text}\n"
            f"plan: {self.plan}\n"
            f"{shown}\n"
            f"again, with its whole trace: python -m tests.simulation --seed {self.seed}"
        )


def play(seed: int, theme: str | None = None, *, tracing: bool = False) -> tuple[History, Failure | None]:
    with tempfile.TemporaryDirectory(prefix="oncelog-sim-", dir=memory_folder()) as folder:
        history = History(seed, Path(folder) / "data", Plan.draw(seed, theme), tracing=tracing)
        try:
            with without_garbage_collection():
                history.play()
        except Exception as error:  # noqa: BLE001  whatever the broker raises is what the history is about
            text = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            return history, Failure(seed, text, str(history.plan), tuple(history.traced))
        return history, None


def play_all(seeds: Iterable[int], seconds: float) -> tuple[int, Failure | None]:
    """How many histories were played, and the first that failed, with its trace."""
    deadline_s = time.monotonic() + seconds
    played = 0
    for seed in seeds:
        if time.monotonic() > deadline_s:
            break
        played += 1
        failure = play(seed)[1]
        if failure is not None:
            again = play(seed, tracing=True)[1]
            return played, again if again is not None else failure
    return played, None


def random_seeds() -> Iterator[int]:
    source = random.SystemRandom()
    while True:
        yield source.randrange(1_000_000, 10**12)
