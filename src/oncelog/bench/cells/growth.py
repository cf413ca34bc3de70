"""How costs grow with what has piled up: aborted transactions, partitions, transactional ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from oncelog.bench.cells.lifecycle import OwnBrokerCell
from oncelog.bench.drive import require_success
from oncelog.bench.measurement import Measurement
from oncelog.bench.side import resident_mb

ABORTED_PERCENT: Final = 90
ABORTING_PRODUCERS: Final = 32
SAMPLE_TRANSACTIONS: Final = 400
SAMPLE_RECORDS: Final = 200_000


class AbortedGrowth(OwnBrokerCell):
    """A log with x aborted transactions, one committed among ten, read by a read_committed consumer."""

    _committed = 0

    def fill(self) -> None:
        load = replace(
            self.workload,
            transactions=self.workload.x * 100 // ABORTED_PERCENT,
            aborted_percent=ABORTED_PERCENT,
            producers=ABORTING_PRODUCERS,
            linger_ms=0,
        )
        self._committed = int(require_success(self.drive_own("transactions", load)).figures["committed_records"])

    def measure(self) -> Measurement:
        # `transactions` tells the reader that there are markers and aborted values in the log.
        reading = replace(self.workload, transactions=1, isolation="read_committed")
        # Starting comes last, because each start adds a record.
        read = require_success(self.drive_own("consume", reading, self._committed))
        tail = require_success(self.drive_own("tail-fetch", reading))
        start_s = self.restart_s(kill=False)
        recovery_s = self.restart_s(kill=True)
        self._committed += 2
        return replace(
            read,
            figures={
                "read_us_per_transaction": read.figures["seconds"] / self.workload.x * 1e6,
                "tail_fetch_ms": tail.figures["tail_fetch_ms"],
                "start_s": start_s,
                "recovery_s": recovery_s,
            },
        )


class PartitionGrowth(OwnBrokerCell):
    """A topic of x partitions, all of them written to."""

    _create_s: float | None = None
    """How long it took to create the topic, if no round has used it yet."""

    def prepare(self) -> None:
        self._broker = self.bench.new_broker(self.workload.name)
        self._broker.start()
        self.topic, self._create_s = self._new_topic()

    def _new_topic(self) -> tuple[str, float]:
        if self.topic:
            require_success(self.drive_own("delete-topic"))
        return self.create_topic_timed(
            servers=self.broker.bootstrap_servers, workload=replace(self.workload, partitions=self.workload.x)
        )

    def measure(self) -> Measurement:
        if self._create_s is None:
            self.topic, self._create_s = self._new_topic()
        create_s, self._create_s = self._create_s, None
        load = replace(self.workload, partitions=self.workload.x, records=self.workload.records or SAMPLE_RECORDS)
        produced = require_success(self.drive_own("produce", load))
        start_s = self.restart_s(kill=False)
        return replace(
            produced,
            figures={
                "us_per_record": 1e6 / produced.figures["records_per_s"],
                "create_s": create_s,
                "start_s": start_s,
                "memory_mb": resident_mb(self.broker.pid),
            },
        )


class IdGrowth(OwnBrokerCell):
    """A coordinator that knows x transactional ids, and one producer that commits transactions."""

    def fill(self) -> None:
        require_success(self.drive_own("init-ids"))

    def measure(self) -> Measurement:
        load = replace(self.workload, transactions=self.workload.transactions or SAMPLE_TRANSACTIONS, linger_ms=0)
        committed = require_success(self.drive_own("transactions", load))
        start_s = self.restart_s(kill=False)
        return replace(
            committed,
            figures={
                "ms_per_transaction": committed.figures["ms_per_transaction"],
                "start_s": start_s,
                "memory_mb": resident_mb(self.broker.pid),
            },
        )
