"""Loads on a running cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from oncelog.bench.cells.cell import Cell
from oncelog.bench.drive import require_success
from oncelog.bench.measurement import Measurement

READ_BACK: Final = ("produce", "transactions", "commit-cost")


class LoadCell(Cell):
    """A topic per round, deleted with it, so that each round starts alike and little has to be written to disk."""

    def measure(self) -> Measurement:
        topic = self.create_topic()
        try:
            measurement = self.bench.drive(self.job(self.workload.driver or self.workload.kind, topic))
            if self.is_last_round and not measurement.problem and self.workload.kind in READ_BACK:
                measurement = self._read_back(topic, measurement)
        except BaseException:
            # Nothing may be left on somebody else's cluster. A broker of ours ends anyway, or has ended already.
            if not self.bench.side.is_ours:
                self.delete_topic(topic)
            raise
        self.delete_topic(topic)
        return measurement

    def _read_back(self, topic: str, measurement: Measurement) -> Measurement:
        """A reader of committed records must find every record that was reported, off the clock."""
        workload, committed = self.workload, measurement.figures.get("committed_records")
        if committed is not None:
            # There are markers, and transactions tell the reader so.
            workload = replace(workload, transactions=workload.transactions or 1, isolation="read_committed")
        expected = workload.records if committed is None else int(committed)
        found = self.bench.drive(self.job("verify", topic, workload, expected))
        return Measurement.failed(f"read back: {found.problem} {found.note}".strip()) if found.problem else measurement


class ConsumeCell(Cell):
    """A topic that is filled once and read in every round."""

    _topic = ""
    _expected = 0

    def prepare(self) -> None:
        self._topic = self.create_topic()
        workload = self.workload
        if workload.transactions:
            filled = require_success(
                self.bench.drive(self.job("transactions", self._topic, replace(workload, linger_ms=5)))
            )
            is_all = workload.isolation == "read_uncommitted"
            self._expected = (
                workload.transactions * workload.per_transaction if is_all else int(filled.figures["committed_records"])
            )
        else:
            require_success(self.bench.drive(self.job("produce", self._topic)))
            self._expected = workload.records

    def measure(self) -> Measurement:
        return self.bench.drive(self.job("consume", self._topic, expected=self._expected))

    def verify(self) -> Measurement | None:
        found = self.bench.drive(self.job("verify", self._topic, expected=self._expected))
        self._delete()
        return found

    def close(self) -> None:
        if not self.bench.side.is_ours:
            self._delete()

    def _delete(self) -> None:
        topic, self._topic = self._topic, ""
        if topic:
            self.delete_topic(topic)
