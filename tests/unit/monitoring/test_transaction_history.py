"""Records of `__transaction_state` as events."""

from __future__ import annotations

from types import SimpleNamespace

from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.records import encode_key, encode_value
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.ids import ProducerEpoch, ProducerId
from oncelog.monitoring.transaction_history import EventDecoder


def record(state: TxnState, *, start_ms: int = 100, updated_ms: int = 100, name: str = "a") -> SimpleNamespace:
    metadata = TxnMetadata(ProducerId(1), ProducerEpoch(0), 1_000, state, updated_ms, start_ms=start_ms)
    value = encode_value(metadata, TransactionVersion.TV2)
    return SimpleNamespace(key=encode_key(name), value=value, timestamp_ms=updated_ms, offset=7)


def whats(*records: SimpleNamespace) -> list[str]:
    return [event.what for event in EventDecoder().events(records)]


def test_a_begin_differs_from_added_partitions_by_what_was_before() -> None:
    ongoing = record(TxnState.ONGOING)
    assert whats(ongoing, ongoing, record(TxnState.COMPLETE_COMMIT), ongoing) == [
        "began",
        "added partitions",
        "committed",
        "began",
    ]
    assert whats(ongoing, record(TxnState.ONGOING, name="b")) == ["began", "began"]


def test_an_abort_after_the_time_out_is_one_by_the_coordinator() -> None:
    assert whats(record(TxnState.PREPARE_ABORT, updated_ms=1_099)) == ["abort decided"]
    assert whats(record(TxnState.PREPARE_ABORT, updated_ms=1_100)) == ["timed out"]
    assert whats(record(TxnState.PREPARE_ABORT, start_ms=-1, updated_ms=9_999)) == ["abort decided"]


def test_every_state_that_is_logged_has_a_name() -> None:
    logged = [TxnState.EMPTY, TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT]
    assert whats(*map(record, logged)) == ["initialised", "commit decided", "committed", "aborted"]


def test_a_tombstone_forgets_the_id() -> None:
    ongoing = record(TxnState.ONGOING)
    tombstone = SimpleNamespace(key=ongoing.key, value=None, timestamp_ms=1, offset=8)
    assert whats(ongoing, tombstone, ongoing) == ["began", "forgotten", "began"]


def test_records_that_a_newer_broker_wrote_are_left_out() -> None:
    known = record(TxnState.ONGOING)
    newer_key = SimpleNamespace(key=b"\0\x09" + known.key[2:], value=known.value, timestamp_ms=1, offset=1)
    newer_value = SimpleNamespace(key=known.key, value=b"\0\x09" + known.value[2:], timestamp_ms=1, offset=2)
    cut_off = SimpleNamespace(key=known.key, value=known.value[:5], timestamp_ms=1, offset=3)
    assert whats(newer_key, newer_value, cut_off, known) == ["began"]
