"""A producer that never stops: its transaction gets another partition whenever its time-out is near.

A transaction may be open for its time-out, counted from its start, however busy it is: readers wait for its end.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.actors import Fenced, MustAbort, Script
from tests.simulation.producers import TxnClient

DAWDLER_TIMEOUT_MS: Final = 4_000
STEP_MS: Final = 3_500
OVERDUE_MS: Final = 2_000
"""More than the coordinator takes to look and to decide."""


class Dawdler(TxnClient):
    def script(self) -> Script[None]:
        try:
            yield from self.initialise()
            yield from self._dawdle()
        except (Fenced, MustAbort):
            self.trace("was stopped")

    def _dawdle(self) -> Script[None]:
        transaction = self.begin()
        starts, begun_ms = self.history.station.starts, 0
        for number, place in enumerate(self.history.output_places):
            yield from self.write([self.compose(place, [f"{self.name}:{number}"], transaction)])
            begun_ms = begun_ms or self.now_ms()
            yield STEP_MS
        open_ms = self.now_ms() - begun_ms
        yield from self.end(commit=True)
        is_overdue = open_ms > self.txn_timeout_ms + OVERDUE_MS and starts == self.history.station.starts
        if is_overdue and not self.history.plan.clock_jumps and not self.history.plan.disk_trouble:
            self.model.violated(
                "nobody-waits", f"{transaction.name} was committed when it had been open for {open_ms} ms"
            )
