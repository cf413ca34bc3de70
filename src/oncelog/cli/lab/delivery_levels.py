"""The same work and the same crash, with three orders of output and offsets."""

from __future__ import annotations

from collections import Counter

from oncelog.cli.lab.stage import Stage

RECORDS = 30
LEVELS = {
    "at-most-once": "the offsets are committed first, then the output is written",
    "at-least-once": "the output is written first, then the offsets are committed",
    "exactly-once": "output and offsets are one transaction, which is not committed yet",
}


def run(stage: Stage) -> None:
    stage.create("input", *(f"output-{level}" for level in LEVELS))
    source = stage.producer()
    for number in range(RECORDS):
        source.send("input", f"{number}", partition=0)
    source.flush()
    outcome: dict[str, tuple[int, int]] = {}
    for level, order in LEVELS.items():
        stage.step(f"{level}: {order}. Killed in the second batch of ten, then started again.")
        stage.say(f"   first run:  {', '.join(stage.worker(level, f'{level}-1', die_at=2))}")
        stage.say(f"   second run: {', '.join(stage.worker(level, f'{level}-2'))}")
        counts = Counter(stage.values(f"output-{level}"))
        lost = RECORDS - len(counts)
        doubled = sum(count - 1 for count in counts.values())
        outcome[level] = lost, doubled
        stage.say(f"   {sum(counts.values())} records came out: {lost} lost, {doubled} doubled")
    stage.check("at most once: ten are lost, none is doubled", outcome["at-most-once"] == (10, 0), outcome)
    stage.check("at least once: none is lost, ten are doubled", outcome["at-least-once"] == (0, 10), outcome)
    stage.check("exactly once: none is lost, none is doubled", outcome["exactly-once"] == (0, 0), outcome)
