"""A broker whose disk runs full at any operation: errors that clients retry, no wrong answers, and on with it later."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import RETRIABLE, ErrorCode, KafkaError
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import committed
from tests.unit.storage.cleaner_harness import read_committed
from tests.unit.storage.faulty_disk import FaultyDisk

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
    "oncelog.parked.request.ms": "0",
}
ATTEMPTS_MAX = 12


class Client:
    """Does what every client does with a retriable error: the same again, a little later."""

    def __init__(self, node: BrokerInProcess) -> None:
        self.node = node
        self.values: list[bytes] = []
        self.refusals = 0

    def until_done(self, request: Any, version: int, code_of: Any, done: tuple[ErrorCode, ...] = ()) -> Any:
        for _ in range(ATTEMPTS_MAX):
            try:
                response = self.node.call(request, version)
                code = ErrorCode(code_of(response))
            except KafkaError as error:
                # The connection is closed then, and the client comes back.
                code = error.code
            if code is ErrorCode.NONE or code in done:
                return response
            assert code in RETRIABLE, code
            self.refusals += 1
            self.node.clock.advance_ms(200)
        raise AssertionError(f"{type(request).__name__} is still refused although the disk has space again")

    def create(self) -> None:
        topics = [CreatableTopic(name="t", num_partitions=2, replication_factor=1)]
        self.until_done(
            CreateTopicsRequest(topics=topics, timeout_ms=1000),
            5,
            lambda response: response.topics[0].error_code,
            (ErrorCode.TOPIC_ALREADY_EXISTS,),
        )

    def produce(self, number: int, **batch: Any) -> None:
        value = b"value-%d" % number
        for _ in range(ATTEMPTS_MAX):
            answer = self.node.produce("t", [value], partition=number % 2, **batch)
            if answer.error_code == ErrorCode.NONE:
                self.values.append(value)
                return
            assert ErrorCode(answer.error_code) in RETRIABLE, answer
            self.refusals += 1
            self.node.clock.advance_ms(200)
        raise AssertionError("a produce is still refused although the disk has space again")

    def commit_offset(self, offset: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        self.until_done(request, 8, lambda response: response.topics[0].partitions[0].error_code)

    def transaction(self, *, commit: bool) -> None:
        started = self.until_done(
            InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4, lambda r: r.error_code
        )
        identity = {"producer_id": started.producer_id, "producer_epoch": started.producer_epoch}
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            **{f"v3_and_below_{name}": value for name, value in identity.items()},
        )
        self.until_done(
            added, 3, lambda r: r.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        )
        self.produce(100, transactional_id="x", transactional=True, base_sequence=0, **identity)
        end = EndTxnRequest(transactional_id="x", committed=commit, **identity)
        self.until_done(end, 3, lambda response: response.error_code)

    def work(self) -> None:
        self.create()
        for number in range(4):
            self.produce(number)
        self.commit_offset(3)
        self.transaction(commit=True)
        self.produce(4)
        self.commit_offset(4)


def check(node: BrokerInProcess, client: Client) -> None:
    for _ in range(4):
        node.clock.advance_ms(200)
    shown = [read_committed(node.broker.partitions.get("t", index).log) for index in range(2)]
    values = [value for records in shown for _, value in records.values()]
    assert set(values) == set(client.values)
    assert committed(node, "g")[0] == 4


def test_a_full_disk_at_any_operation_of_a_broker(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(patch, tmp_path / "dry")
        node = BrokerInProcess(tmp_path / "dry", SETTINGS)
        disk.fail(1 << 30)
        client = Client(node)
        client.work()
        total = disk.operations
        assert client.refusals == 0
        node.broker.stop(clean=False)
    refusals = 0
    for first in range(1, total + 1):
        folder = tmp_path / f"run-{first}"
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(patch, folder)
            node = BrokerInProcess(folder, SETTINGS)
            client = Client(node)
            disk.fail(first, 2)
            client.work()
            check(node, client)
            refusals += client.refusals
            node.broker.stop(clean=False)
        again = BrokerInProcess(folder, SETTINGS)
        check(again, client)
        again.broker.stop(clean=False)
        shutil.rmtree(folder)
    assert refusals > 10
