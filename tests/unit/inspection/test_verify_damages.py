"""Every kind of damage is found, in the right file; an intact folder is found to be intact."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.core.ids import TopicPartition
from oncelog.inspection.verification import Severity, verify_path
from oncelog.storage.checkpoints import RECOVERY_POINTS, read_offsets
from oncelog.storage.log import Log
from oncelog.storage.log_config import LogConfig
from oncelog.storage.log_place import LogPlace
from tests.data.kafka import NAMES
from tests.unit.inspection import damages
from tests.unit.inspection.damages import LAST_LOG, LOG, Damage

RECOVERY = "recovery-point-offset-checkpoint"
WATERMARKS = "replication-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
EPOCHS = "txn-0/leader-epoch-checkpoint"
INDEX = "txn-0/00000000000000000029.index"
TIME_INDEX = "txn-0/00000000000000000029.timeindex"
TXN_INDEX = "txn-0/00000000000000000029.txnindex"
SNAPSHOT = "txn-0/00000000000000000091.snapshot"


@pytest.mark.parametrize("name", NAMES)
def test_folders_that_apache_kafka_left_are_in_order(name: str, kafka_data: Callable[[str], Path]) -> None:
    report = verify_path(kafka_data(name))
    assert [finding for finding in report.findings if finding.severity is not Severity.NOTE] == []
    assert report.partitions == 28
    assert report.batches > 400
    assert report.records > 800


DAMAGES: list[tuple[str, str, str, Damage]] = [
    ("a flipped byte", "batch.crc", LOG, damages.flip_in_batch(LOG, 3)),
    ("an impossible codec", "batch.header", LOG, damages.put_in_batch(LOG, 2, 21, ">h", 0x17)),
    ("a cut log", "log.torn", LAST_LOG, damages.cut(LAST_LOG, 5)),
    ("rubbish behind a log", "log.torn", LAST_LOG, damages.append(LAST_LOG, b"rubbish " * 20)),
    ("a size that cannot be", "log.torn", LOG, damages.put(LOG, 8, ">i", 3)),
    ("two batches exchanged", "batch.order", LOG, damages.swap_batches(LOG, 2)),
    (
        "a segment that is gone",
        "log.gap",
        "txn-0/00000000000000000091.log",
        damages.remove(*(f"txn-0/00000000000000000059.{s}" for s in ("log", "index", "timeindex", "txnindex"))),
    ),
    ("an index without its log", "index.orphan", LOG.replace(".log", ".index"), damages.remove(LOG)),
    ("a segment that repeats another", "segment.overlap", "txn-0/00000000000000000050.log",
     damages.copy(LOG, "txn-0/00000000000000000050.log")),
    ("a record count that is wrong", "batch.records", LOG, damages.put_in_batch(LOG, 1, 57, ">i", 1)),
    ("a delta that is wrong", "batch.records", "plain-1/00000000000000000032.log",
     damages.put_in_batch("plain-1/00000000000000000032.log", 0, 23, ">i", 40)),
    ("a timestamp that is wrong", "records.timestamp", LOG, damages.put_in_batch(LOG, 1, 35, ">q", 2**41)),
    ("a sequence that is wrong", "producer.order", LOG, damages.put_in_batch(LOG, 1, 53, ">i", 999)),
    ("an epoch that goes back", "producer.order", "txn-0/00000000000000000091.log",
     damages.put_in_batch("txn-0/00000000000000000091.log", 7, 51, ">h", 7)),
    ("an index entry that points elsewhere", "index.entry", INDEX, damages.put(INDEX, 12, ">i", 700)),
    ("an index entry of another offset", "index.entry", INDEX, damages.put(INDEX, 8, ">i", 8)),
    ("index entries exchanged", "index.order", INDEX, damages.swap_entries(INDEX, 8)),
    ("half an index entry", "index.torn", INDEX, damages.cut(INDEX, 3)),
    ("no index", "index.missing", INDEX, damages.remove(INDEX)),
    ("a time that never was", "timeindex.entry", TIME_INDEX, damages.put(TIME_INDEX, 7, ">B", 1)),
    ("a time of another batch", "timeindex.entry", TIME_INDEX, damages.put(TIME_INDEX, 8, ">i", 3)),
    ("times exchanged", "timeindex.order", TIME_INDEX, damages.swap_entries(TIME_INDEX, 12)),
    ("a time index that ends early", "timeindex.end", TIME_INDEX, damages.cut(TIME_INDEX, 12)),
    ("half a time", "timeindex.torn", TIME_INDEX, damages.cut(TIME_INDEX, 5)),
    ("no time index", "timeindex.missing", TIME_INDEX, damages.remove(TIME_INDEX)),
    ("an abort that is not in the index", "txnindex.missing", TXN_INDEX, damages.cut(TXN_INDEX, 34)),
    ("no transaction index", "txnindex.missing", TXN_INDEX, damages.remove(TXN_INDEX)),
    ("an abort that never was", "txnindex.entry", TXN_INDEX, damages.put(TXN_INDEX, -16, ">q", 58)),
    ("an abort from the wrong offset", "txnindex.entry", TXN_INDEX, damages.put(TXN_INDEX, 10, ">q", 24)),
    ("an abort of another producer", "txnindex.entry", TXN_INDEX, damages.put(TXN_INDEX, 2, ">q", 3)),
    ("a last stable offset that is wrong", "txnindex.entry", TXN_INDEX, damages.put(TXN_INDEX, 26, ">q", 39)),
    ("an index of the future", "txnindex.entry", TXN_INDEX, damages.put(TXN_INDEX, 0, ">h", 9)),
    ("half an abort", "txnindex.torn", TXN_INDEX, damages.cut(TXN_INDEX, 10)),
    ("a flipped byte in a snapshot", "snapshot.corrupt", SNAPSHOT, damages.flip(SNAPSHOT, 30)),
    ("another epoch in a snapshot", "snapshot.differs", SNAPSHOT, damages.put_in_snapshot(SNAPSHOT, 8, ">h", 5)),
    ("another sequence in a snapshot", "snapshot.differs", SNAPSHOT, damages.put_in_snapshot(SNAPSHOT, 10, ">i", 5)),
    ("another producer in a snapshot", "snapshot.differs", SNAPSHOT, damages.put_in_snapshot(SNAPSHOT, 0, ">q", 5000)),
    ("an open transaction in a snapshot", "snapshot.differs", SNAPSHOT,
     damages.put_in_snapshot(SNAPSHOT, 38, ">q", 80)),
    ("a snapshot of what is not there", "snapshot.beyond", "txn-0/00000000000000000500.snapshot",
     damages.copy(SNAPSHOT, "txn-0/00000000000000000500.snapshot")),
    ("no snapshot", "snapshot.missing", SNAPSHOT, damages.remove(SNAPSHOT)),
    ("another leader epoch", "epochs.differ", EPOCHS, damages.replace_text(EPOCHS, "0 0", "4 0")),
    ("a leader epoch to come", "epochs.beyond", EPOCHS, damages.replace_text(EPOCHS, "1\n0 0", "2\n0 0\n1 900")),
    ("no leader epochs", "epochs.unreadable", EPOCHS, damages.remove(EPOCHS)),
    ("leader epochs that are no numbers", "epochs.unreadable", EPOCHS, damages.replace_text(EPOCHS, "0 0", "x y")),
    ("a leader epoch that goes back", "epochs.order", LOG,
     lambda folder: (damages.put(LOG, 12, ">i", 3)(folder), damages.replace_text(EPOCHS, "0 0", "3 0")(folder))[0]),
    ("a recovery point beyond the end", "checkpoint.recovery_point", RECOVERY,
     damages.replace_text(RECOVERY, "txn 0 122", "txn 0 130")),
    ("a recovery point before the end", "checkpoint.recovery_point", RECOVERY,
     damages.replace_text(RECOVERY, "txn 0 122", "txn 0 100")),
    ("a partition without recovery point", "checkpoint.missing", RECOVERY,
     lambda folder: (damages.replace_text(RECOVERY, "txn 0 122\n", "")(folder),
                     damages.replace_text(RECOVERY, "0\n27\n", "0\n26\n")(folder))[0]),
    ("a high watermark beyond the end", "checkpoint.high_watermark", WATERMARKS,
     damages.replace_text(WATERMARKS, "txn 0 122", "txn 0 123")),
    ("a start beyond the end", "checkpoint.log_start", STARTS,
     damages.replace_text(STARTS, "0\n0\n", "0\n1\ntxn 0 400\n")),
    ("a cleaner beyond the end", "checkpoint.cleaner", "cleaner-offset-checkpoint",
     damages.replace_text("cleaner-offset-checkpoint", "compacted 0 104", "compacted 0 1104")),
    ("a checkpoint of nonsense", "checkpoint.unreadable", RECOVERY,
     damages.replace_text(RECOVERY, "txn 0 122", "txn 0 many")),
    ("a topic id that is none", "metadata.corrupt", "txn-0/partition.metadata",
     damages.replace_text("txn-0/partition.metadata", "topic_id", "topic")),
    ("the topic id of another topic", "metadata.differs", "txn-1/partition.metadata",
     damages.copy("plain-0/partition.metadata", "txn-1/partition.metadata")),
    ("no topic id", "metadata.missing", "txn-1/partition.metadata", damages.remove("txn-1/partition.metadata")),
    ("no identity", "meta.missing", "meta.properties", damages.remove("meta.properties")),
    ("an identity of nonsense", "meta.corrupt", "meta.properties",
     damages.replace_text("meta.properties", "version=1", "version=77")),
    ("a coordinator that has forgotten", "transaction.hanging", "txn-0",
     lambda folder: [path.unlink() for path in folder.glob("__transaction_state-*/*.log")] and None),
]  # fmt: skip


@pytest.mark.parametrize(("check", "file", "damage"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_a_damage_is_found_in_its_file(
    check: str, file: str, damage: Damage, kafka_data: Callable[[str], Path]
) -> None:
    folder = kafka_data("tv2")
    damage(folder)
    report = verify_path(folder)
    found = [(finding.check, str(finding.path.relative_to(folder))) for finding in report.findings]
    assert (check, file) in found
    assert not report.is_clean
    assert all(finding.what and finding.at_start for finding in report.findings)


def opened_end(folder: Path, *, clean: bool) -> int:
    """Where txn-0 ends once a broker has opened it."""
    partition = TopicPartition("txn", 0)
    config = LogConfig(index_interval_bytes=300, segment_bytes=3000)
    place = LogPlace(folder / "txn-0", partition, now_ms=0)
    point = read_offsets(folder / RECOVERY_POINTS)[partition]
    log = Log(place, config, clean=clean, log_start_offset=0, recovery_point=point)
    log.load()
    return log.log_end_offset


@pytest.mark.parametrize("name", ["tv2", "tv2-killed"])
@pytest.mark.parametrize(
    "damage",
    [
        damages.flip_in_batch(LOG, 3),
        damages.flip_in_batch(LAST_LOG, 0),
        damages.flip_in_batch(LAST_LOG, 1),
        damages.cut(LAST_LOG, 5),
        damages.append(LAST_LOG, b"rubbish " * 20),
        damages.swap_batches(LOG, 2),
    ],
    ids=["below the recovery point", "first batch", "second batch", "cut", "rubbish", "exchanged"],
)
def test_what_a_broker_is_said_to_do_is_what_it_does(
    name: str, damage: Damage, kafka_data: Callable[[str], Path]
) -> None:
    folder = kafka_data(name)
    damage(folder)
    report = verify_path(folder / "txn-0")
    said = [found.at_start for found in report.findings if found.path.suffix == ".log"]
    assert said
    cuts = [int(match[1]) for text in said if (match := re.match(r"cuts the log at offset (\d+)", text))]
    assert opened_end(folder, clean=name == "tv2") == min(cuts, default=122)


@pytest.mark.parametrize(
    ("base_offset", "recovery_point", "severity"),
    [(118, 118, Severity.NOTE), (118, 122, Severity.WARNING), (91, 118, Severity.ERROR)],
    ids=["as a kill leaves it", "fsynced and gone", "never scanned"],
)
def test_an_abort_that_the_next_start_adds_to_the_index_by_itself_is_no_error(
    base_offset: int, recovery_point: int, severity: Severity, kafka_data: Callable[[str], Path]
) -> None:
    folder = kafka_data("tv2-killed")
    index = folder / f"txn-0/{base_offset:020d}.txnindex"
    content = index.read_bytes()
    index.unlink()
    damages.replace_text(RECOVERY, "txn 0 118", f"txn 0 {recovery_point}")(folder)
    findings = verify_path(folder / "txn-0").findings
    assert [f.severity for f in findings if f.check == "txnindex.missing"] == [severity]
    opened_end(folder, clean=False)
    was_repaired = index.exists() and index.read_bytes() == content
    assert was_repaired is (severity is not Severity.ERROR)


def test_a_single_file_stands_for_its_partition(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    damages.flip_in_batch(LOG, 3)(folder)
    assert not verify_path(folder / LOG).is_clean
    assert verify_path(folder / "txn-1").is_clean


def test_headers_alone_are_faster_and_see_no_records(kafka_data: Callable[[str], Path]) -> None:
    report = verify_path(kafka_data("tv2"), deep=False)
    assert report.is_clean
    assert report.records == 0


def test_a_file_of_rubbish_does_not_fill_the_report(kafka_data: Callable[[str], Path]) -> None:
    folder = kafka_data("tv2")
    (folder / INDEX).write_bytes(bytes(range(1, 9)) * 200)
    report = verify_path(folder / "txn-0")
    assert len(report.findings) < 100
    assert sum(report.hidden.values()) > 300
