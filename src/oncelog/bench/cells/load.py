"""Loads on a running cluster."""

from __future__ import annotations

from dataclasses import replace

from oncelog.bench.cells.cell import Cell
from oncelog.bench.drive import must
from oncelog.bench.measurement import Measurement


class LoadCell(Cell):
    """A topic per round, deleted with it, so that each round starts alike and little has to be written to disk."""

    _looked = False

    def measure(self) -> Measurement:
        topic = self.create_topic()
        measurement = self.bench.drive(self.job(self.workload.kind, topic))
        if self.workload.kind == "produce" and not measurement.problem:
            measurement = self._look_again(topic, measurement)
        self.delete_topic(topic)
        return measurement

    def _look_again(self, topic: str, measurement: Measurement) -> Measurement:
        """Every record of the first round is read back and compared, off the clock."""
        if self._looked:
            return measurement
        found = self.bench.drive(self.job("verify", topic))
        if found.problem:
            return Measurement.failed(f"read back: {found.problem} {found.note}".strip())
        self._looked = True
        return measurement


class ConsumeCell(Cell):
    """A topic that is filled once and read in every round."""

    _topic = ""
    _expected = 0

    def prepare(self) -> None:
        self._topic = self.create_topic()
        workload = self.workload
        if workload.transactions:
            filled = must(self.bench.drive(self.job("transactions", self._topic, replace(workload, linger_ms=5))))
            is_all = workload.isolation == "read_uncommitted"
            self._expected = (
                workload.transactions * workload.per_transaction if is_all else int(filled.figures["committed_records"])
            )
        else:
            must(self.bench.drive(self.job("produce", self._topic)))
            self._expected = workload.records

    def measure(self) -> Measurement:
        return self.bench.drive(self.job("consume", self._topic, expected=self._expected))

    def verify(self) -> Measurement | None:
        return self.bench.drive(self.job("verify", self._topic, expected=self._expected))

    def close(self) -> None:
        if self._topic:
            self.delete_topic(self._topic)
