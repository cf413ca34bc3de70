"""From timestamps to offsets, exact to the record."""

from __future__ import annotations

import bisect
from pathlib import Path

import pytest

from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.time_lookup import first_record_from, latest_record
from tests.unit.storage.cleaner_harness import clean, compacted_log, keyed, put
from tests.unit.storage.log_harness import NOW_MS, SMALL, append, batch, new_log, reopen


@pytest.fixture(params=[0, 1, 4])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """Batches of three records, 10 ms apart, offset n at 10 n; several segments; one codec each."""
    log = new_log(tmp_path, SMALL)
    for number in range(40):
        append(log, count=3, timestamp=NOW_MS + 30 * number, step_ms=10, codec=request.param, epoch=number // 20)
    return log


def test_first_record_at_or_after_a_timestamp_is_found(log: Log) -> None:
    times = [NOW_MS + 10 * offset for offset in range(120)]
    for timestamp in range(NOW_MS - 5, NOW_MS + 1195, 7):
        found = first_record_from(log, timestamp, end_offset=120)
        offset = bisect.bisect_left(times, timestamp)
        if offset == 120:
            assert found is None
        else:
            assert found == (times[offset], offset, offset // 60)


def test_answer_stays_below_the_end_offset_and_above_the_log_start(log: Log) -> None:
    assert first_record_from(log, NOW_MS + 500, end_offset=50) is None
    assert first_record_from(log, NOW_MS + 490, end_offset=50) is not None
    log.delete_records(31)
    found = first_record_from(log, NOW_MS, end_offset=120)
    assert found is not None
    assert found.offset == 31


@pytest.mark.parametrize("clean", [True, False])
def test_largest_timestamp_is_found_before_and_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = new_log(tmp_path, SMALL)
    for number in range(30):
        peak = 5000 if number == 11 else 0
        append(log, count=2, timestamp=NOW_MS + number + peak, step_ms=1, epoch=2)
    for _ in range(2):
        assert latest_record(log) == (NOW_MS + 5012, 23, 2)
        found = first_record_from(log, NOW_MS + 40, end_offset=60)
        assert found is not None
        assert found.offset == 22
        log = reopen(log, clean=clean)


def test_timestamps_out_of_order_give_the_first_match(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=0))
    for timestamp in (50, 10, 70, 20, 60, 90, 5):
        append(log, timestamp=NOW_MS + timestamp)
    for timestamp, offset in ((0, 0), (50, 0), (51, 2), (70, 2), (71, 5), (90, 5)):
        found = first_record_from(log, NOW_MS + timestamp, end_offset=7)
        assert found is not None
        assert found.offset == offset


def test_log_append_time_is_the_time_of_all_records_of_a_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    append(log, count=3, timestamp=1, step_ms=7, now_ms=NOW_MS)
    append(log, count=3, timestamp=1, step_ms=7, now_ms=NOW_MS + 100)
    found = first_record_from(log, NOW_MS + 1, end_offset=6)
    assert found == (NOW_MS + 100, 3, 0)
    assert latest_record(log) == (NOW_MS + 100, 3, 0)


def test_log_without_timestamps_has_none_to_find(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig())
    assert latest_record(log) is None
    append(log, timestamp=-1)
    assert first_record_from(log, 0, end_offset=1) is None
    assert latest_record(log) is None


def test_largest_timestamp_of_a_batch_that_compaction_has_emptied_is_none_to_find(tmp_path: Path) -> None:
    """As in Kafka: the header counts for the maximum, and no other batch is asked."""
    log = compacted_log(tmp_path)
    append(log, keyed(("a", "1"), timestamp=NOW_MS + 10, producer_id=5, producer_epoch=0, base_sequence=0))
    put(log, ("a", "2"))
    assert latest_record(log) == (NOW_MS + 10, 0, 0)
    clean(log)
    assert latest_record(log) is None


def test_largest_timestamp_after_a_cut(tmp_path: Path) -> None:
    log = new_log(tmp_path, LogConfig(index_interval_bytes=1 << 20))
    for timestamp in (50, 80, 70, 90):
        append(log, timestamp=NOW_MS + timestamp)
    log.truncate_to(3, now_ms=NOW_MS)
    assert latest_record(log) == (NOW_MS + 80, 1, 0)
    append(log, batch(timestamp=NOW_MS + 85))
    assert latest_record(log) == (NOW_MS + 85, 3, 0)


def test_the_log_start_has_the_epoch_that_wrote_it(log: Log) -> None:
    assert log.leader_epochs.earliest == (0, 0)
    log.delete_records(70)
    assert log.leader_epochs.earliest == (1, 70)
