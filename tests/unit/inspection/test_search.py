"""Offsets, times and records are found where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncelog.cli.main import cli
from oncelog.core.codec import Codec
from oncelog.core.errors import KafkaError
from oncelog.inspection.batch_file import InspectedBatch
from oncelog.inspection.layout import PartitionFolder, StoredFile
from oncelog.inspection.search import find_offset, find_records, find_time
from oncelog.inspection.selection import Selection
from oncelog.protocol.batch import Record, build_batch, pack_batch
from tests.data import kafka
from tests.unit.inspection import damages


def nothing_is_hidden(file: StoredFile, batch: InspectedBatch, error: KafkaError) -> None:
    raise AssertionError(f"{file.path}: offset {batch.header.base_offset} cannot be read: {error}")


@pytest.mark.parametrize("partition", ["txn-0", "plain-1", "compacted-0"])
def test_every_offset_that_kafka_read_is_found_with_its_key(partition: str, kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / partition)
    for offset, timestamp, key, _, _ in kafka.contents("tv2")["partitions"][partition]["uncommitted"]:
        hit = find_offset(folder, offset, nothing_is_hidden)
        assert hit is not None
        assert hit.record is not None
        assert (hit.record.offset, hit.record.timestamp) == (offset, timestamp)
        assert hit.record.key == (None if key is None else key.encode())


def test_an_index_entry_shortens_the_way(kafka_data: Callable[[str], Path]) -> None:
    hit = find_offset(PartitionFolder(kafka_data("tv2") / "txn-0"), 57, nothing_is_hidden)
    assert hit is not None
    assert hit.way["index_entry"]["position"] > 0
    assert hit.way["batches_scanned"] <= 3


def test_a_wrong_index_entry_is_noticed_and_passed_over(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    damages.put("txn-0/00000000000000000029.index", 4, ">i", 13)(folder)
    hit = find_offset(PartitionFolder(folder / "txn-0"), 35, nothing_is_hidden)
    assert hit is not None
    assert hit.batch.header.base_offset <= 35 <= hit.batch.header.last_offset
    assert "wrong" in hit.way["index_problem"]


def test_an_offset_beyond_the_end_is_not_found(kafka_data: Callable[[str], Path]) -> None:
    assert find_offset(PartitionFolder(kafka_data("tv2") / "txn-0"), 122, nothing_is_hidden) is None


def test_the_first_record_that_is_not_older_is_found(kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / "plain-1")
    records = kafka.contents("tv2")["partitions"]["plain-1"]["uncommitted"]
    for wanted in sorted({record[1] for record in records}):
        hit = find_time(folder, wanted, nothing_is_hidden)
        assert hit is not None
        assert hit.record is not None
        assert hit.record.offset == next(record[0] for record in records if record[1] >= wanted)
    assert find_time(folder, max(record[1] for record in records) + 1, nothing_is_hidden) is None


def test_records_by_key_text_producer_and_offset(kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / "txn-0")
    by_key = list(find_records(folder, Selection(key=b"committed-1-3"), nothing_is_hidden))
    assert [hit.record.key for hit in by_key if hit.record] == [b"committed-1-3"]
    by_text = list(find_records(folder, Selection(text=b"aborted-0-late"), nothing_is_hidden))
    assert len(by_text) == 3
    of_producer = list(find_records(folder, Selection(producer_ids=frozenset({3}), offsets=(0, 21)), nothing_is_hidden))
    assert [hit.batch.header.base_offset for hit in of_producer if hit.record is None] == [21]
    assert sum(hit.record is not None for hit in of_producer) == 10


def test_batches_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """What is looked for may be in them."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    damaged = pack_batch(
        b"no zstd", 2, attributes=Codec.ZSTD, last_offset_delta=1, timestamp_ms=5, max_timestamp_ms=5, base_offset=1,
        leader_epoch=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
    )  # fmt: skip
    (folder / "00000000000000000000.log").write_bytes(
        build_batch([Record(0, 0, b"k", b"v")], timestamp_ms=5)
        + damaged
        + build_batch([Record(0, 0, b"k", b"v")], timestamp_ms=5, base_offset=3)
    )
    hidden: list[int] = []

    def tell(_: StoredFile, batch: InspectedBatch, __: KafkaError) -> None:
        hidden.append(batch.header.base_offset)

    found = [hit.batch.header.base_offset for hit in find_records(PartitionFolder(folder), Selection(key=b"k"), tell)]
    assert (found, hidden) == ([0, 3], [1])
    found_by_offset = find_offset(PartitionFolder(folder), 1, tell)
    assert found_by_offset is not None
    assert (found_by_offset.record, hidden) == (None, [1, 1])
    result = CliRunner().invoke(cli, ["log", "find", str(folder), "--text", "nowhere"])
    assert result.exit_code == 1
    assert "offsets 1 to 2 at byte" in result.stderr
