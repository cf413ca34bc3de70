"""Logs of a process without a descriptor to spare: writes are served or refused, and all of them served again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_dir import LogDir
from tests.unit.storage.log_harness import NOW_MS, TOPIC_ID, append_txn, end_txn, ranges
from tests.unit.storage.no_descriptors import no_descriptor_left

PRODUCER = 7


def open_transactions(tmp_path: Path, count: int) -> tuple[LogDir, list[Log]]:
    """Partitions with a transaction each that is not ended."""
    folder = LogDir.open(tmp_path, node_id=1, config_for=lambda _: LogConfig(), now_ms=NOW_MS)
    logs = [folder.create_log(TopicPartition("t", n), TOPIC_ID, LogConfig(), now_ms=NOW_MS) for n in range(count)]
    for log in logs:
        append_txn(log, PRODUCER)
    return folder, logs


def test_transactions_are_aborted_while_connections_have_all_descriptors(tmp_path: Path) -> None:
    folder, logs = open_transactions(tmp_path, 20)
    with no_descriptor_left():
        for log in logs:
            end_txn(log, PRODUCER, commit=False)
            assert log.aborted_transactions(0, 2) == [(PRODUCER, 0, 1, 2)]
    assert folder.close({})


def test_writes_refused_for_want_of_descriptors_are_served_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, logs = open_transactions(tmp_path, 3)
    for log in logs:
        log.segments[-1].close()
    with no_descriptor_left():
        for log in logs:
            with pytest.raises(KafkaError) as caught:
                end_txn(log, PRODUCER, commit=False)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert caplog.messages == []
    for log in logs:
        end_txn(log, PRODUCER, commit=False)
        assert ranges(log) == [(0, 0), (1, 1)]
    assert folder.close({})
