"""Transactions as spans over offsets, compared with what Kafka's coordinator and readers said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.inspection.layout import PartitionFolder, partition_folders
from oncelog.inspection.transactional_ids import read_transactional_ids, state_changes
from oncelog.inspection.transactions import read_history
from oncelog.monitoring.transaction_spans import TransactionOutcome
from tests.data import kafka


@pytest.mark.parametrize("name", kafka.NAMES)
def test_the_last_stable_offset_is_what_kafka_told_its_readers(name: str, kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data(name)
    told = kafka.contents(name)["partitions"]
    compared = 0
    for partition_folder in partition_folders(folder):
        partition = str(partition_folder.partition)
        if partition in told:
            history = read_history(partition_folder)
            assert history.last_stable_offset == told[partition]["last_stable_offset"], partition
            assert history.end_offset == told[partition]["high_watermark"], partition
            compared += 1
    assert compared > 10


def test_what_is_neither_aborted_nor_open_is_what_a_committed_reader_gets(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    told = kafka.contents("tv2")["partitions"]
    for number in range(3):
        history = read_history(PartitionFolder(folder / f"txn-{number}"))
        committed = [record[0] for record in told[f"txn-{number}"]["committed"]]
        everything = [record[0] for record in told[f"txn-{number}"]["uncommitted"]]
        aborted = [span for span in history.spans if span.outcome is TransactionOutcome.ABORTED]
        assert sum(span.records for span in aborted) > 0
        hidden = sum(span.records for span in aborted if span.first_offset < history.last_stable_offset)
        below = [offset for offset in everything if offset < history.last_stable_offset]
        assert len(committed) == len(below) - hidden


def test_aborted_ranges_are_those_of_the_transaction_indexes(kafka_data: Callable[[str], Path]) -> None:
    history = read_history(PartitionFolder(kafka_data("tv2") / "txn-0"))
    spans = [
        (s.producer_id, s.first_offset, s.marker_offset)
        for s in history.spans
        if s.outcome is TransactionOutcome.ABORTED
    ]
    indexed = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in history.aborted]
    assert sorted(spans) == sorted(indexed)


def test_a_transaction_that_began_in_a_deleted_segment_is_known_from_the_snapshot(
    kafka_data: Callable[[str], Path],
) -> None:
    folder = kafka_data("tv2")
    whole = read_history(PartitionFolder(folder / "txn-0"))
    for path in (folder / "txn-0").glob("000000000000000000[03]0.*"):
        path.unlink()
    for path in (folder / "txn-0").glob("00000000000000000029.*"):
        if path.suffix != ".snapshot":
            path.unlink()
    history = read_history(PartitionFolder(folder / "txn-0"))
    assert history.start_offset == 59
    early = [span for span in history.spans if span.began_before_log]
    assert [(span.first_offset, span.marker_offset) for span in early] == [
        (span.first_offset, span.marker_offset)
        for span in whole.spans
        if span.first_offset < 59 and (span.marker_offset or 999) >= 59
    ]


def test_producer_ids_have_the_names_of_their_transactional_ids(kafka_data: Callable[[str], Path]) -> None:
    ids = read_transactional_ids(kafka_data("tv2"))
    described = kafka.contents("tv2")["transactions"]
    assert ids.is_complete
    assert set(described) <= set(ids.names.values())
    assert ids.producer_ids_of("tx-open")
    assert ids.names[next(iter(ids.producer_ids_of("tx-open")))] == "tx-open"


def test_the_history_of_an_id_is_all_its_state_changes_in_order(kafka_data: Callable[[str], Path]) -> None:
    changes = [c for c in state_changes(kafka_data("tv2")) if c.transactional_id == "tx-after-open"]
    assert [change.value.transaction_status for change in changes if change.value is not None] == [0, 1, 2, 4, 1, 3, 5]
    assert [change.offset for change in changes] == sorted(change.offset for change in changes)


def test_only_the_producers_asked_for_and_what_is_open(kafka_data: Callable[[str], Path]) -> None:
    folder = PartitionFolder(kafka_data("tv2") / "txn-0")
    spans = read_history(folder, producer_ids=[3]).spans
    assert {span.producer_id for span in spans if span.outcome is not TransactionOutcome.OPEN} == {3}
    assert any(span.outcome is TransactionOutcome.OPEN for span in spans)
