"""What the cleaner has done to a log is no damage."""

from __future__ import annotations

from pathlib import Path

from oncelog.inspection.verification import Severity, verify_path
from oncelog.storage.producer_snapshot import decode_snapshot
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import BACKOFF_MS, SETTINGS, SMALL, partition_of, write
from tests.unit.storage.cleaner_harness import put_txn
from tests.unit.storage.log_harness import end_txn


def test_a_snapshot_that_has_forgotten_a_transaction_is_in_order(tmp_path: Path) -> None:
    """Its records are before the snapshot, its marker behind it, and both are still there."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("t", **SMALL)
    log = partition_of(node).log
    put_txn(log, 5, 0, ("a", "a" * 190))
    write(node, ("b", "b" * 100))
    end_txn(log, 5, commit=True)
    for number in range(5):
        write(node, (f"c{number}", "c" * 190))
    snapshot = log.folder / f"{log.segments[1].base_offset:020d}.snapshot"
    assert [entry.txn_first_offset for entry in decode_snapshot(snapshot.read_bytes())] == [0]
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1
    assert [entry.txn_first_offset for entry in decode_snapshot(snapshot.read_bytes())] == [-1]
    node.broker.stop()
    assert [found for found in verify_path(tmp_path / "data").findings if found.severity is not Severity.NOTE] == []
