"""What brokers send each other is not taken from clients, unless a setting says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.core.errors import ErrorCode
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
from tests.unit.server.test_transactions import ID, Producer, stable

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


def test_the_setting_cannot_be_switched_on_by_a_client(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", FEW_PARTITIONS)
    assert not node.broker.settings.table["oncelog.cluster.action.enable"].dynamic
    node.broker.stop(clean=False)
