"""The transactions of a producer on a network that a script answers for: what the coordinator is asked, and when."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.client.cluster import Cluster
from oncelog.client.errors import (
    AbortableError,
    ErrorCode,
    FatalError,
    IllegalState,
    KafkaError,
    ProducerFenced,
    TimedOut,
)
from oncelog.client.prepared_transaction import Completion, PreparedTransaction, resume
from oncelog.client.producer_config import ProducerConfig
from oncelog.client.producer_transactions import ProducerTransactions
from oncelog.client.transaction_state import Event, State
from oncelog.core.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsResponse, TransactionState
from oncelog.protocol.messages.end_txn import EndTxnResponse
from oncelog.protocol.messages.find_coordinator import FindCoordinatorResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.unit.client.scripted_network import CONFIG, ScriptedNetwork, run

PLACE = TopicPartition("orders", 0)
SETTINGS = ProducerConfig.parse({"bootstrap.servers": "boot:1", "transactional.id": "billing"})
PREPARED = PreparedTransaction("billing", 7, 3, 1)


class Coordinator:
    """Gives epochs out one after the other, and ends transactions with the code it is set to."""

    def __init__(self) -> None:
        self.epoch = -1
        self.end_code = self.init_code = ErrorCode.NONE
        self.described = TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        self.network = ScriptedNetwork(self._answer)
        self.cluster = Cluster(CONFIG, self.network)

    def _answer(self, peer: str, request: Any) -> Any:
        match type(request).__name__:
            case "FindCoordinatorRequest":
                return FindCoordinatorResponse(node_id=1, host="one", port=1)
            case "InitProducerIdRequest":
                self.epoch += 1
                return InitProducerIdResponse(error_code=self.init_code, producer_id=7, producer_epoch=self.epoch)
            case "EndTxnRequest":
                return EndTxnResponse(error_code=self.end_code)
            case "DescribeTransactionsRequest":
                return DescribeTransactionsResponse(transaction_states=[self.described])
            case name:
                raise AssertionError(name)


def begun(coordinator: Coordinator, version: int = 1) -> ProducerTransactions:
    transactions = ProducerTransactions(coordinator.cluster, SETTINGS)
    assert run(transactions.init(keep_prepared=False)) is None
    transactions.client.transaction_version = version
    transactions.begin()
    return transactions


def aborted(transactions: ProducerTransactions) -> None:
    transactions.state.on(Event.ABORT)
    run(transactions.end(commit=False))


def test_an_empty_transaction_ends_without_a_request() -> None:
    coordinator = Coordinator()
    transactions = begun(coordinator)
    aborted(transactions)
    assert coordinator.network.count("EndTxnRequest") == 0
    assert transactions.state.current is State.READY


def test_before_tv2_a_partition_is_admitted_once_it_was_added_and_over_tv2_at_once() -> None:
    assert not begun(Coordinator(), version=1).admits(PLACE)
    assert begun(Coordinator(), version=2).admits(PLACE)
    over = begun(Coordinator(), version=2)
    aborted(over)
    assert not over.admits(PLACE)


def test_before_tv2_a_lost_batch_costs_an_epoch_and_a_transaction_without_losses_costs_none() -> None:
    coordinator = Coordinator()
    transactions = begun(coordinator)
    transactions._added.add(PLACE)
    assert transactions.admits(PLACE)
    aborted(transactions)
    assert (coordinator.network.count("EndTxnRequest"), transactions.client.identity.epoch) == (1, 0)
    transactions.begin()
    assert isinstance(transactions.batch_failed(TimedOut("no answer")), AbortableError)
    assert transactions.state.current is State.ABORTABLE_ERROR
    aborted(transactions)
    assert transactions.client.identity.epoch == 1


@pytest.mark.parametrize(("version", "ends"), [(1, True), (2, False)])
def test_an_abort_that_is_refused_bumps_the_epoch_before_tv2_only(version: int, ends: bool) -> None:
    coordinator = Coordinator()
    transactions = begun(coordinator, version)
    transactions._added.add(PLACE)
    assert transactions.admits(PLACE)
    coordinator.end_code = ErrorCode.INVALID_TXN_STATE
    if ends:
        aborted(transactions)
        assert (transactions.state.current, transactions.client.identity.epoch) == (State.READY, 1)
    else:
        with pytest.raises(FatalError):
            aborted(transactions)
        assert transactions.state.current is State.FATAL_ERROR


def test_before_tv2_a_prepared_transaction_leaves_a_gap_of_one_epoch() -> None:
    transactions = begun(Coordinator())
    transactions._added.add(PLACE)
    assert transactions.admits(PLACE)
    prepared = transactions.prepare()
    assert transactions.holds(prepared)
    assert not transactions.holds(prepared._replace(producer_epoch=9))
    transactions.state.on(Event.COMMIT)
    run(transactions.end(commit=True))
    assert transactions.client.identity.epoch == prepared.producer_epoch + 2
    with pytest.raises(IllegalState, match="nothing is prepared"):
        transactions.holds(prepared)


def test_what_is_committed_is_not_called_fenced_because_the_next_epoch_is_refused() -> None:
    coordinator = Coordinator()
    transactions = begun(coordinator)
    transactions._added.add(PLACE)
    assert transactions.admits(PLACE)
    transactions.prepare()
    transactions.state.on(Event.COMMIT)
    coordinator.init_code = ErrorCode.PRODUCER_FENCED
    run(transactions.end(commit=True))
    with pytest.raises(ProducerFenced):
        transactions.begin()


def prepared(coordinator: Coordinator) -> ProducerTransactions:
    transactions = begun(coordinator)
    transactions._added.add(PLACE)
    assert transactions.admits(PLACE)
    transactions.prepare()
    return transactions


def test_what_is_committed_is_not_to_be_done_again_because_the_next_epoch_may_not_be_had() -> None:
    coordinator = Coordinator()
    transactions = prepared(coordinator)
    transactions.state.on(Event.COMMIT)
    coordinator.init_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    run(transactions.end(commit=True))
    with pytest.raises(AbortableError):
        transactions.begin()
    coordinator.init_code = ErrorCode.NONE
    aborted(transactions)
    assert (transactions.state.current, coordinator.network.count("EndTxnRequest")) == (State.READY, 1)
    assert run(resume(coordinator.cluster, PREPARED, skip_epoch=True)) is Completion.COMMITTED
    coordinator.init_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert run(resume(coordinator.cluster, PREPARED, skip_epoch=True)) is Completion.COMMITTED


def test_a_commit_that_lacks_the_next_epoch_alone_may_have_been_done() -> None:
    coordinator = Coordinator()
    transactions = prepared(coordinator)
    transactions.state.on(Event.COMMIT)
    coordinator.init_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(TimedOut) as caught:
        run(transactions.end(commit=True))
    assert caught.value.in_doubt
    with pytest.raises(TimedOut) as caught:
        run(resume(coordinator.cluster, PREPARED, skip_epoch=True))
    assert caught.value.in_doubt
    coordinator.init_code = ErrorCode.NONE
    transactions.state.on(Event.COMMIT)
    run(transactions.end(commit=True))
    assert (transactions.state.current, coordinator.network.count("EndTxnRequest")) == (State.READY, 2)


def state(name: str, epoch: int, producer_id: int = 7) -> TransactionState:
    return TransactionState(
        transactional_id="billing", transaction_state=name, producer_id=producer_id, producer_epoch=epoch
    )


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), IllegalState),
        (state("CompleteCommit", 3), Completion.ENDED_BEFORE),
        (state("CompleteAbort", 5), Completion.ENDED_BEFORE),
        (state("CompleteAbort", 4), AbortableError),
        (state("Ongoing", 3), IllegalState),
    ],
)
def test_what_a_refused_completion_means(described: TransactionState, expected: Any) -> None:
    coordinator = Coordinator()
    coordinator.end_code, coordinator.described = ErrorCode.INVALID_TXN_STATE, described
    if isinstance(expected, Completion):
        assert run(resume(coordinator.cluster, PREPARED, skip_epoch=True)) is expected
    else:
        with pytest.raises(expected):
            run(resume(coordinator.cluster, PREPARED, skip_epoch=True))


def test_a_transaction_that_cannot_time_out_had_ended_if_its_id_is_forgotten() -> None:
    coordinator = Coordinator()
    coordinator.end_code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    outcome = run(resume(coordinator.cluster, PREPARED, skip_epoch=True, never_times_out=True))
    assert outcome is Completion.ENDED_BEFORE


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (state("CompleteAbort", 0, producer_id=8), AbortableError),
        (state("PrepareAbort", 32767), AbortableError),
        (state("CompleteCommit", 0, producer_id=8), Completion.ENDED_BEFORE),
        (state("CompleteAbort", 1, producer_id=8), Completion.ENDED_BEFORE),
        (state("Empty", 1, producer_id=8), Completion.ENDED_BEFORE),
    ],
)
def test_the_last_transaction_of_a_producer_id_may_have_timed_out_too(
    described: TransactionState, expected: Any
) -> None:
    """Its end uses the epochs up, and the coordinator goes on with another producer id."""
    coordinator = Coordinator()
    coordinator.end_code, coordinator.described = ErrorCode.PRODUCER_FENCED, described
    last = PREPARED._replace(producer_epoch=32766, transaction_version=2)
    if isinstance(expected, Completion):
        assert run(resume(coordinator.cluster, last, skip_epoch=True)) is expected
    else:
        with pytest.raises(expected):
            run(resume(coordinator.cluster, last, skip_epoch=True))


def test_a_completion_before_tv2_takes_the_next_epoch_out_of_use() -> None:
    coordinator = Coordinator()
    assert run(resume(coordinator.cluster, PREPARED, skip_epoch=True)) is Completion.COMMITTED
    assert coordinator.network.count("InitProducerIdRequest") == 1
    assert run(resume(coordinator.cluster, PREPARED, skip_epoch=False)) is Completion.COMMITTED
    assert coordinator.network.count("InitProducerIdRequest") == 1


def test_errors_of_other_kinds_become_abortable_when_partitions_are_added() -> None:
    coordinator = Coordinator()
    transactions = begun(coordinator)

    async def refused(*_: Any, **__: Any) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")

    transactions.client.add_partitions = refused  # type: ignore[method-assign]
    with pytest.raises(AbortableError, match="begin it again"):
        run(transactions.add([PLACE]))
    assert transactions.state.current is State.ABORTABLE_ERROR
    assert ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0)) == transactions.client.identity
