"""All wire scenarios, by the file that holds their transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.conformance.scenario import Scenario
from tests.conformance.scenarios import (
    adding,
    administering,
    ending,
    exhausting,
    grouping,
    initialising,
    marking,
    offsets,
    poisoning,
    producing,
    reading,
    securing,
    timing,
)

FILES: Final[dict[str, Sequence[Scenario]]] = {
    "initialising": initialising.SCENARIOS,
    "adding": adding.SCENARIOS,
    "ending": ending.SCENARIOS,
    "producing": producing.SCENARIOS,
    "poisoning": poisoning.SCENARIOS,
    "offsets": offsets.SCENARIOS,
    "marking": marking.SCENARIOS,
    "reading": reading.SCENARIOS,
    "timing": timing.SCENARIOS,
    "exhausting": exhausting.SCENARIOS,
    "grouping": grouping.SCENARIOS,
    "administering": administering.SCENARIOS,
    "securing": securing.SCENARIOS,
}
