"""With oncelog.acks.fsync, nothing that was acknowledged or decided is lost when the power goes, at any moment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncelog.core.promise import Promise
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.power_cut import StrictDisk
from tests.unit.server.test_cleaning import committed
from tests.unit.storage.cleaner_harness import read_committed

SETTINGS = {
    "oncelog.acks.fsync": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "1500",
}
SMALL = {"internal_segment_bytes": "600", "min_cleanable_dirty_ratio": "0.01"}
KEYS = (b"a", b"b", b"c")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictDisk]:
    disk = StrictDisk(tmp_path / "data", monkeypatch)
    yield disk
    disk.close()


class Written(NamedTuple):
    topic: str
    key: bytes
    value: bytes


class Workload:
    """Plain records, some to a compacted topic, transactions and committed offsets, with promises of answers."""

    def __init__(self, node: BrokerInProcess, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.records: list[tuple[Written, Promise[Any]]] = []
        self.transactions: list[tuple[list[Written], bool, Promise[Any]]] = []
        self.commits: list[tuple[int, Promise[Any]]] = []
        self.number = 0

    def step(self) -> None:
        self.random.choice([self.produce, self.produce, self.produce, self.transaction, self.commit_offset])()
        if self.random.random() < 0.6:
            self.settle()
        if self.random.random() < 0.3:
            self.node.clock.advance_ms(700)

    def settle(self) -> None:
        """An fsync, what follows from it, the fsync of that, and so on."""
        for _ in range(6):
            self.node.clock.advance_ms(0)

    def new_record(self, topic: str) -> Written:
        self.number += 1
        return Written(topic, self.random.choice(KEYS), b"value-%06d" % self.number)

    def send(self, record: Written, **batch: Any) -> Promise[Any]:
        data = build_batch([Record(0, 0, record.key, record.value)], timestamp_ms=self.node.clock.now_ms(), **batch)
        part = PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            transactional_id="x" if batch else None,
            topic_data=[TopicProduceData(name=record.topic, partition_data=[part])],
        )
        return self.node.send(request, 9)

    def produce(self) -> None:
        record = self.new_record(self.random.choice(["plain", "compacted"]))
        self.records.append((record, self.send(record)))

    def transaction(self) -> None:
        started = self.node.send(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
        self.settle()
        pid, epoch = started.value.producer_id, started.value.producer_epoch
        self.node.send(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=pid,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="txn", partitions=[0])],
            ),
            3,
        )
        self.settle()
        records = [self.new_record("txn") for _ in range(3)]
        for sequence, record in enumerate(records):
            self.send(record, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        self.settle()
        commit = self.random.random() < 0.7
        end = EndTxnRequest(transactional_id="x", producer_id=pid, producer_epoch=epoch, committed=commit)
        self.transactions.append((records, commit, self.node.send(end, 3)))

    def commit_offset(self) -> None:
        self.number += 1
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=self.number)
        topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
        request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
        self.commits.append((self.number, self.node.send(request, 8)))

    # What must hold after a restart

    def check(self, restarted: BrokerInProcess) -> None:
        shown = {
            topic: read_committed(restarted.broker.partitions.get(topic, 0).log)
            for topic in ("plain", "compacted", "txn")
        }
        values = {topic: [value for _, value in records.values()] for topic, records in shown.items()}
        newest = dict(shown["compacted"].values())
        for record, promise in self.records:
            if promise.done and record.topic == "plain":
                assert record.value in values["plain"]
            elif promise.done:
                assert newest[record.key] is not None
                assert newest[record.key] >= record.value
        for records, commit, promise in self.transactions:
            found = [record.value in values["txn"] for record in records]
            assert all(found) or not any(found)
            if promise.done:
                assert promise.value.error_code == 0
                assert all(found) is commit
        acknowledged = max((offset for offset, promise in self.commits if promise.done), default=-1)
        assert committed(restarted, "g")[0] >= acknowledged


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, disk: StrictDisk, seed: int) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("t", 2)
    node.create("plain", **SMALL)
    node.create("txn", **SMALL)
    node.create("compacted", cleanup_policy="compact", **SMALL)
    workload = Workload(node, seed)
    for number in range(40):
        workload.step()
        if number % 8 == 7:
            found = disk.cut_power(tmp_path / f"after-{number}")
            restarted = BrokerInProcess(found, SETTINGS)
            for _ in range(8):
                restarted.clock.advance_ms(100)
            workload.check(restarted)
            restarted.broker.stop(clean=False)
    assert node.broker.cleaner.passes > 0
    node.broker.stop(clean=False)


def test_the_disk_of_these_tests_does_lose_what_was_not_fsynced(tmp_path: Path, disk: StrictDisk) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "oncelog.acks.fsync"}
    node = BrokerInProcess(tmp_path / "data", settings)
    node.create("plain")
    assert node.produce("plain", [b"1"]).error_code == 0
    restarted = BrokerInProcess(disk.cut_power(tmp_path / "after"), settings)
    assert restarted.broker.partitions.get("plain", 0).log.log_end_offset == 0
    restarted.broker.stop(clean=False)
    node.broker.stop(clean=False)
