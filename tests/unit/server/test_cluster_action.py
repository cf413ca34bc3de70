"""What brokers send each other is not taken from clients, unless a setting says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.protocol.api import decode_response, response_header_version
from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.framing import parse_response_header
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_connection import connect, send
from tests.unit.server.test_transactions import ID, BrokenMarkers, Producer, stable

ENABLED = {**FEW_PARTITIONS, "oncelog.cluster.action.enable": "true"}


@pytest.fixture(params=[False, True])
def is_enabled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def settings(is_enabled: bool) -> dict[str, str]:
    return ENABLED if is_enabled else FEW_PARTITIONS


@pytest.fixture
def producer(node: BrokerInProcess) -> Producer:
    node.create("orders")
    producer = Producer(node)
    assert producer.init().value.error_code == 0
    assert producer.produce("orders", b"a").error_code == 0
    return producer


def test_a_stranger_does_not_commit_a_transaction(node: BrokerInProcess, producer: Producer, is_enabled: bool) -> None:
    commit = WritableTxnMarker(
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
    )
    answer = node.call(WriteTxnMarkersRequest(markers=[commit]), 1)
    code = answer.markers[0].topics[0].partitions[0].error_code
    assert code == (ErrorCode.NONE if is_enabled else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert stable(node) == ((2, 2) if is_enabled else (0, 1))
    if not is_enabled:
        assert producer.end(commit=False).value.error_code == 0
        log = node.broker.partitions.get("orders", 0).log
        assert [txn.first_offset for txn in log.aborted_transactions(0, 2)] == [0]


def test_a_stranger_does_not_add_partitions_for_several_ids(
    node: BrokerInProcess, producer: Producer, is_enabled: bool
) -> None:
    node.create("more")
    adding = AddPartitionsToTxnTransaction(
        transactional_id=ID,
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        topics=[AddPartitionsToTxnTopic(name="more", partitions=[0])],
    )
    answer = node.call(AddPartitionsToTxnRequest(transactions=[adding]), 5)
    assert answer.error_code == (ErrorCode.NONE if is_enabled else ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("is_enabled", [True])
def test_an_id_that_is_being_completed_does_not_hold_up_others_on_the_connection_of_a_broker(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader asks for all its producers over one connection, on which one request is served after the other."""
    bystander = Producer(node, "another")
    assert bystander.init().value.error_code == 0
    BrokenMarkers(monkeypatch)
    assert producer.end(commit=True).value.error_code == 0
    transport = connect(node)
    for asking in (producer, bystander):
        send(transport, adding(asking), 5)
    answers = [codes_of(frame) for frame in frames_of(transport.take())]
    assert answers == [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]


def adding(producer: Producer) -> AddPartitionsToTxnRequest:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def frames_of(data: bytes) -> Iterator[memoryview]:
    while data:
        length = int.from_bytes(data[:4], "big")
        yield memoryview(data)[4 : 4 + length]
        data = data[4 + length :]


def codes_of(frame: memoryview) -> int:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    _, position = parse_response_header(frame, response_header_version(key, 5))
    answer: Any = decode_response(key, 5, frame[position:])
    found: int = answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code
    return found


def test_the_setting_cannot_be_switched_on_by_a_client(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", FEW_PARTITIONS)
    assert not node.broker.settings.table["oncelog.cluster.action.enable"].dynamic
    node.broker.stop(clean=False)
