"""Offsets, times and records are found where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.inspection.layout import PartitionFolder
from oncelog.inspection.search import find_offset, find_records, find_time
from oncelog.inspection.selection import Selection
from tests.data import kafka
from tests.unit.inspection import damages


@pytest.mark.parametrize("partition", ["txn-0", "plain-1", "compacted-0"])
def test_every_offset_that_kafka_read_is_found_with_its_key(partition: str, kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / partition)
    for offset, timestamp, key, _, _ in kafka.contents("tv2")["partitions"][partition]["uncommitted"]:
        hit = find_offset(folder, offset)
        assert hit is not None
        assert hit.record is not None
        assert (hit.record.offset, hit.record.timestamp) == (offset, timestamp)
        assert hit.record.key == (None if key is None else key.encode())


def test_an_index_entry_shortens_the_way(kafka_data: Callable[[str], Path]) -> None:
    hit = find_offset(PartitionFolder(kafka_data("tv2") / "txn-0"), 57)
    assert hit is not None
    assert hit.way["index_entry"]["position"] > 0
    assert hit.way["batches_scanned"] <= 3


def test_a_wrong_index_entry_is_noticed_and_passed_over(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    damages.put("txn-0/00000000000000000029.index", 4, ">i", 13)(folder)
    hit = find_offset(PartitionFolder(folder / "txn-0"), 35)
    assert hit is not None
    assert hit.batch.header.base_offset <= 35 <= hit.batch.header.last_offset
    assert "wrong" in hit.way["index_problem"]


def test_an_offset_beyond_the_end_is_not_found(kafka_data: Callable[[str], Path]) -> None:
    assert find_offset(PartitionFolder(kafka_data("tv2") / "txn-0"), 122) is None


def test_the_first_record_that_is_not_older_is_found(kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / "plain-1")
    records = kafka.contents("tv2")["partitions"]["plain-1"]["uncommitted"]
    for wanted in sorted({record[1] for record in records}):
        hit = find_time(folder, wanted)
        assert hit is not None
        assert hit.record is not None
        assert hit.record.offset == next(record[0] for record in records if record[1] >= wanted)
    assert find_time(folder, max(record[1] for record in records) + 1) is None


def test_records_by_key_text_producer_and_offset(kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / "txn-0")
    by_key = list(find_records(folder, Selection(key=b"committed-1-3")))
    assert [hit.record.key for hit in by_key if hit.record] == [b"committed-1-3"]
    by_text = list(find_records(folder, Selection(text=b"aborted-0-late")))
    assert len(by_text) == 3
    of_producer = list(find_records(folder, Selection(producer_ids=frozenset({3}), offsets=(0, 21))))
    assert [hit.batch.header.base_offset for hit in of_producer if hit.record is None] == [21]
    assert sum(hit.record is not None for hit in of_producer) == 10
