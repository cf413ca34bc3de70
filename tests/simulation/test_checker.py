"""The checker itself: it complains about bad histories that are put before it by hand, and not about good ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.coordinator.txn.metadata import TxnMetadata
from oncelog.coordinator.txn.records import encode_record
from oncelog.coordinator.txn.state import TxnState
from oncelog.coordinator.txn.versions import TransactionVersion
from oncelog.core.ids import ProducerEpoch, ProducerId, TopicPartition
from oncelog.protocol.batch import Record, build_batch, build_control_batch
from oncelog.protocol.messages.end_txn import EndTxnResponse
from oncelog.protocol.messages.fetch import AbortedTransaction, PartitionData
from oncelog.protocol.messages.produce import PartitionProduceResponse
from tests.simulation import wire
from tests.simulation.invariants import check_view
from tests.simulation.log_audit import audit
from tests.simulation.model import Fate, Model, SentRecord, Transaction, Violation
from tests.simulation.wire import Identity, Place, Seen

pytestmark = pytest.mark.simulation

A: Place = ("out", 0)
B: Place = ("out", 1)


class Past:
    """A history by hand: one producer, its transactions, and what a reader gets."""

    def __init__(self) -> None:
        self.model = Model()
        self.view: dict[Place, list[Seen]] = {A: [], B: []}
        self._count = 0

    def send(self, value: str, place: Place, transaction: Transaction | None, *, acked_at: int | None = None) -> None:
        self._count += 1
        self.model.sent(SentRecord(value, place, (1, self._count), "p", transaction, arrived=True))
        if acked_at is not None:
            witness = self.model.produced({place: [value]})[1]
            witness({place: PartitionProduceResponse(error_code=0, base_offset=acked_at)})

    def end(self, transaction: Transaction, commit: bool, code: int | None = 0) -> None:
        arrived, answered = self.model.ending(transaction, commit, "p")
        arrived()
        if code is not None:
            answered(EndTxnResponse(error_code=code, producer_id=-1))

    def read(self, value: str, place: Place) -> None:
        offset = len(self.view[place])
        self.view[place].append(Seen(offset, 1, 0, True, value, None))

    def complaint(self) -> str | None:
        try:
            check_view(self.model, self.view)
        except Violation as violation:
            return violation.invariant
        return self.model.problems[0].invariant if self.model.problems else None


@pytest.fixture
def past() -> Past:
    return Past()


def committed(past: Past) -> Transaction:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.send("b", B, transaction)
    past.end(transaction, commit=True)
    return transaction


def test_a_good_history_passes(past: Past) -> None:
    committed(past)
    past.read("a", A)
    past.read("b", B)
    assert past.complaint() is None


def test_a_committed_record_that_is_missing_is_noticed(past: Past) -> None:
    committed(past)
    past.read("a", A)
    assert past.complaint() == "exactly-once"


def test_a_record_that_is_read_twice_is_noticed(past: Past) -> None:
    committed(past)
    past.read("a", A)
    past.read("a", A)
    past.read("b", B)
    assert past.complaint() == "exactly-once"


def test_half_a_transaction_is_noticed(past: Past) -> None:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.send("b", B, transaction)
    past.end(transaction, commit=True, code=None)
    past.read("b", B)
    assert transaction.fate is Fate.EITHER
    assert past.complaint() == "all-or-nothing"


@pytest.mark.parametrize("code", [90, 47, 48, 49])
def test_a_record_is_not_read_when_its_commit_was_refused(past: Past, code: int) -> None:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.end(transaction, commit=True, code=code)
    past.read("a", A)
    assert past.complaint() == "committed-only"


def test_a_commit_that_failed_to_be_logged_may_have_happened(past: Past) -> None:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.end(transaction, commit=True, code=16)
    past.read("a", A)
    assert past.complaint() is None


def test_a_record_of_an_open_transaction_is_noticed_when_it_is_read(past: Past) -> None:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.model.read_committed(A, 0, "a")
    assert [problem.invariant for problem in past.model.problems] == ["committed-only"]


def test_records_out_of_order_are_noticed(past: Past) -> None:
    transaction = past.model.begin("t", "id")
    past.send("a", A, transaction)
    past.send("b", A, transaction)
    past.end(transaction, commit=True)
    past.read("b", A)
    past.read("a", A)
    assert past.complaint() == "in-order"


def test_an_acknowledged_record_at_another_offset_is_noticed(past: Past) -> None:
    past.send("a", A, None, acked_at=3)
    past.read("a", A)
    assert past.complaint() == "no-duplicates"


def test_two_acknowledgements_with_different_offsets_are_noticed(past: Past) -> None:
    past.send("a", A, None, acked_at=0)
    past.model.produced({A: ["a"]})[1]({A: PartitionProduceResponse(error_code=0, base_offset=7)})
    assert past.model.problems[0].invariant == "no-duplicates"


def test_an_acknowledged_record_that_is_missing_is_noticed(past: Past) -> None:
    past.send("a", A, None, acked_at=0)
    assert past.complaint() == "exactly-once"


def test_commit_and_abort_of_the_same_transaction_are_noticed(past: Past) -> None:
    past.end(committed(past), commit=False)
    assert past.model.problems[0].invariant == "all-or-nothing"


def test_an_epoch_that_goes_back_is_noticed() -> None:
    model = Model()
    model.given_identity("id", Identity(1, 3), is_new=True, holder="a")
    model.given_identity("id", Identity(1, 2), is_new=True, holder="b")
    assert model.problems[0].invariant == "epochs-grow"


def test_an_epoch_that_a_second_instance_gets_again_is_noticed() -> None:
    model = Model()
    model.given_identity("id", Identity(1, 3), is_new=True, holder="a")
    model.given_identity("id", Identity(1, 3), is_new=True, holder="b")
    assert model.problems[0].invariant == "epochs-grow"


def test_a_producer_id_that_comes_back_is_noticed() -> None:
    model = Model()
    for producer_id in (1, 2, 1):
        model.given_identity("id", Identity(producer_id, 0), is_new=True, holder="a")
    assert model.problems[0].invariant == "epochs-grow"


def test_a_producer_id_that_is_given_out_twice_is_noticed() -> None:
    model = Model()
    model.given_identity(None, Identity(1, 0), is_new=True, holder="a")
    model.given_identity("id", Identity(1, 0), is_new=True, holder="b")
    assert model.problems[0].invariant == "producer-ids-unique"


def test_a_replaced_instance_that_comes_back_is_noticed() -> None:
    model = Model()
    model.given_identity("id", Identity(1, 0), is_new=True, holder="a")
    model.given_identity("id", Identity(1, 1), is_new=True, holder="b")
    model.given_identity("id", Identity(1, 2), is_new=False, holder="a")
    assert model.problems[0].invariant == "fenced-stays-fenced"


def test_an_offset_of_an_aborted_transaction_is_noticed() -> None:
    model = Model()
    transaction = model.begin("t", "id")
    transaction.offsets["group", A] = 5
    model.read_offset("group", A, 5)
    assert model.problems[0].invariant == "offsets-atomic"


def test_an_offset_that_nobody_committed_is_noticed() -> None:
    model = Model()
    model.read_offset("group", A, 5)
    assert model.problems[0].invariant == "offsets-atomic"


# -- what a consumer makes of a fetch


def data(value: str, offset: int, producer_id: int) -> bytes:
    return build_batch(
        [Record(0, 0, None, value.encode())],
        timestamp_ms=1,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    return build_control_batch(
        commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=1, base_offset=offset
    )


def test_the_filter_skips_aborted_ranges_only() -> None:
    records = [data("no", 0, 1), marker(1, 1, commit=False), data("yes", 2, 1), marker(3, 1, commit=True)]
    part = PartitionData(
        records=b"".join(records), aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=0)]
    )
    delivered, position = wire.filtered(part, 0)
    assert [record.value for record in delivered] == ["yes"]
    assert position == 4


# -- the files


def write_log(folder: Path, place: Place, batches: list[bytes]) -> None:
    home = folder / f"{place[0]}-{place[1]}"
    home.mkdir()
    (home / f"{0:020}.log").write_bytes(b"".join(batches))


def decision(state: TxnState, offset: int, *, epoch: int = 0, places: tuple[Place, ...] = (A,)) -> bytes:
    metadata = TxnMetadata(
        ProducerId(1),
        ProducerEpoch(epoch),
        1000,
        state,
        1,
        partitions=frozenset(TopicPartition(*place) for place in places),
        start_ms=1,
    )
    record = encode_record("id", metadata, TransactionVersion.TV1)
    return build_batch([Record(0, 0, record.key, record.value)], timestamp_ms=1, base_offset=offset)


def complaint_about(folder: Path, **arguments: Any) -> str | None:
    try:
        audit(folder, **arguments)
    except Violation as violation:
        return violation.invariant
    return None


COMMITTED = [
    decision(TxnState.ONGOING, 0),
    decision(TxnState.PREPARE_COMMIT, 1),
    decision(TxnState.COMPLETE_COMMIT, 2, places=()),
]
STATE: Place = ("__transaction_state", 0)


def test_files_of_a_committed_transaction_pass(tmp_path: Path) -> None:
    write_log(tmp_path, STATE, COMMITTED)
    write_log(tmp_path, A, [data("a", 0, 1), marker(1, 1, commit=True), marker(2, 1, commit=True)])
    assert complaint_about(tmp_path) is None


def test_a_missing_marker_is_noticed(tmp_path: Path) -> None:
    write_log(tmp_path, STATE, COMMITTED)
    write_log(tmp_path, A, [data("a", 0, 1)])
    assert complaint_about(tmp_path) == "as-logged"


def test_a_marker_of_the_other_kind_is_noticed(tmp_path: Path) -> None:
    write_log(tmp_path, STATE, COMMITTED)
    write_log(tmp_path, A, [data("a", 0, 1), marker(1, 1, commit=False)])
    assert complaint_about(tmp_path) == "as-logged"


def test_a_marker_that_nobody_decided_is_noticed(tmp_path: Path) -> None:
    write_log(tmp_path, A, [data("a", 0, 1), marker(1, 1, commit=False)])
    assert complaint_about(tmp_path) == "as-logged"
    assert complaint_about(tmp_path, undecided={1}) is None


def test_a_state_that_cannot_follow_is_noticed(tmp_path: Path) -> None:
    write_log(tmp_path, STATE, [decision(TxnState.PREPARE_COMMIT, 0), decision(TxnState.COMPLETE_ABORT, 1, places=())])
    assert complaint_about(tmp_path) == "as-logged"


def test_a_gap_and_a_broken_batch_are_noticed(tmp_path: Path) -> None:
    write_log(tmp_path, A, [data("a", 0, 1), data("b", 2, 1)])
    assert complaint_about(tmp_path) == "files-whole"
    broken = bytearray(data("a", 0, 1))
    broken[-1] ^= 1
    write_log(tmp_path, B, [bytes(broken)])
    assert complaint_about(tmp_path) == "files-whole"
