"""A copying process for the labs: reads `input` as a group, writes `output`, and kills itself at a given batch.

    python -m oncelog.cli.lab.worker SERVERS LEVEL NAME [DIE_AT]

LEVEL says what comes first: `at-most-once` commits the offsets and then writes; `at-least-once` writes and then
commits; `exactly-once` does both in one transaction. DIE_AT is the number of the batch in whose middle it kills itself.
It ends by itself when it has read its partitions to their end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from oncelog.client.consumer import Consumer
from oncelog.client.consumer_records import ConsumerRecord
from oncelog.client.producer import Producer
from oncelog.core.ids import TopicPartition

BATCH_RECORDS: Final = 10
POLL_MS: Final = 100
SESSION_TIMEOUT_MS: Final = 600
TRANSACTION_TIMEOUT_MS: Final = 1_000
"""Short, because a lab waits for it: what a killed worker leaves open holds its successor back for so long."""


def transformed(record: ConsumerRecord) -> bytes:
    return b"copy of " + bytes(record.value or b"")


class Worker:
    def __init__(self, servers: str, level: str, name: str, die_at: int | None) -> None:
        self._level = level
        self._die_at = die_at
        self._batches = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"copiers-{level}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 3,
                "max.poll.records": BATCH_RECORDS,
            }
        )
        transactional = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, **(transactional if level == "exactly-once" else {})}
        )

    def run(self) -> None:
        if self._level == "exactly-once":
            self._producer.init_transactions()
        self._consumer.subscribe(["input"])
        while not self._is_at_end():
            records = self._consumer.poll(POLL_MS, BATCH_RECORDS)
            if records:
                self._batches += 1
                self._copy(records)
                print(f"copied {len(records)}", flush=True)
        self._producer.close()
        self._consumer.close()

    def _is_at_end(self) -> bool:
        ours = self._consumer.assignment()
        if not ours:
            return False
        ends = self._consumer.end_offsets(ours)
        return all(self._consumer.position(partition) >= ends[partition] for partition in ours)

    def _copy(self, records: list[ConsumerRecord]) -> None:
        offsets = {record.topic_partition: record.offset + 1 for record in records}
        if self._level == "at-most-once":
            self._consumer.commit(offsets)
            self._die_if_due()
            self._write(records)
        elif self._level == "at-least-once":
            self._write(records)
            self._die_if_due()
            self._consumer.commit(offsets)
        else:
            self._copy_in_transaction(records, offsets)

    def _copy_in_transaction(self, records: list[ConsumerRecord], offsets: dict[TopicPartition, int]) -> None:
        with self._producer.transaction():
            self._write(records)
            self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            self._die_if_due()

    def _write(self, records: list[ConsumerRecord]) -> None:
        sent = [self._producer.send(f"output-{self._level}", transformed(r), partition=r.partition) for r in records]
        for future in sent:
            future.result(30)

    def _die_if_due(self) -> None:
        if self._batches == self._die_at:
            print("dying", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main(servers: str, level: str, name: str, die_at: str = "") -> None:
    Worker(servers, level, name, int(die_at) if die_at else None).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
