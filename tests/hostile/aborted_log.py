"""A log with tens of thousands of aborted transactions, written into a data folder before its first start.

Through requests it would take a minute. A broker takes the folder over with the topic in it.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

from oncelog.core.ids import TopicPartition
from oncelog.protocol.batch import Record, build_batch, build_control_batch
from oncelog.storage.log import Log, LogPlace
from oncelog.storage.log_config import LogConfig

ABORTED_TOPIC: Final = "aborted"
_ROUNDS: Final = 200
_AT_A_TIME: Final = 200
"""Producers whose transactions are open together."""
COMMITTED: Final = _ROUNDS
"""Records: one in each round, and its offset is its value."""


def write_aborted_log(data_dir: Path) -> None:
    now_ms = int(time.time() * 1000)
    partition = TopicPartition(ABORTED_TOPIC, 0)
    data_dir.mkdir(parents=True, exist_ok=True)
    log = Log.create(LogPlace(data_dir / str(partition), partition, now_ms), LogConfig(), uuid.uuid4())
    for round_number in range(_ROUNDS):
        batches: list[bytes] = []
        for producer in range(_AT_A_TIME):
            offset = log.log_end_offset + len(batches)
            batches.append(
                build_batch([Record(0, 0, None, b"%d" % offset)], timestamp_ms=now_ms, base_offset=offset,
                            leader_epoch=0, producer_id=producer, producer_epoch=0, base_sequence=round_number,
                            transactional=True)
            )  # fmt: skip
        for producer in range(_AT_A_TIME):
            batches.append(
                build_control_batch(producer == 7, producer_id=producer, producer_epoch=0, coordinator_epoch=0,
                                    timestamp_ms=now_ms, base_offset=log.log_end_offset + len(batches), leader_epoch=0)
            )  # fmt: skip
        log.append_as_follower(b"".join(batches), leader_epoch=0, now_ms=now_ms)
    log.close()
