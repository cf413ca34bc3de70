"""oncelog.acks.fsync: what is acknowledged, decided or shown to readers is on disk, and fsyncs are shared."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import INTERNAL_TOPICS
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.server.flusher import RETRY_MAX_MS, RETRY_MS
from oncelog.storage.flush_work import FileNotOpened
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.held_worker import HeldWorker, hold_worker

SETTINGS = {
    "oncelog.acks.fsync": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
}


@pytest.fixture
def node(node: BrokerInProcess) -> BrokerInProcess:
    node.create("t", 3)
    for topic in INTERNAL_TOPICS:
        node.until(node.broker.internal_topic(topic))
    return node


@pytest.fixture
def worker(node: BrokerInProcess) -> HeldWorker:
    return hold_worker(node)


def send(node: BrokerInProcess, value: bytes, *, partition: int = 0, acks: int = -1, **batch: Any) -> Promise[Any]:
    data = batch_of([value], timestamp_ms=node.clock.now_ms(), **batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=data)])],
    )
    return node.send(request, 9)


def error_of(promise: Promise[Any]) -> int:
    code: int = promise.value.responses[0].partition_responses[0].error_code
    return code


def fetched_bytes(node: BrokerInProcess) -> int:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    )
    answer = node.call(request, 11).responses[0].partitions[0]
    return len(answer.records or b"")


def test_a_produce_is_answered_when_it_is_on_disk(node: BrokerInProcess, worker: HeldWorker) -> None:
    promise = send(node, b"1")
    node.clock.advance_ms(0)
    assert not promise.done
    worker.work()
    assert not promise.done
    worker.deliver()
    assert error_of(promise) == 0
    partition = node.broker.partitions.get("t", 0)
    assert partition.high_watermark == partition.log.durable_offset == 1


def test_readers_see_nothing_that_a_power_cut_could_take(node: BrokerInProcess, worker: HeldWorker) -> None:
    send(node, b"1", acks=1)
    node.clock.advance_ms(0)
    assert fetched_bytes(node) == 0
    worker.finish(node.clock)
    assert fetched_bytes(node) > 0


def test_acks_1_does_not_wait(node: BrokerInProcess, worker: HeldWorker) -> None:
    assert send(node, b"1", acks=1).done


def test_many_producers_share_one_fsync(node: BrokerInProcess, worker: HeldWorker) -> None:
    first = [send(node, b"1") for _ in range(10)]
    node.clock.advance_ms(0)
    assert len(worker.jobs) == 1
    worker.work()
    later = [send(node, b"2") for _ in range(10)]
    node.clock.advance_ms(0)
    assert len(worker.jobs) == 0
    worker.deliver()
    assert all(promise.done for promise in first)
    assert not any(promise.done for promise in later)
    worker.finish(node.clock)
    node.clock.advance_ms(0)
    worker.finish(node.clock)
    assert all(promise.done for promise in later)
    assert node.broker.flusher.rounds == 2


def test_all_partitions_are_flushed_in_one_round(node: BrokerInProcess, worker: HeldWorker) -> None:
    promises = [send(node, b"1", partition=index) for index in range(3)]
    node.clock.advance_ms(0)
    worker.finish(node.clock)
    assert [error_of(promise) for promise in promises] == [0, 0, 0]
    assert node.broker.flusher.rounds == 1


def test_a_duplicate_waits_for_the_fsync_of_the_original(node: BrokerInProcess, worker: HeldWorker) -> None:
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    original, repeated = send(node, b"1", **sequence), send(node, b"1", **sequence)
    node.clock.advance_ms(0)
    assert not original.done
    assert not repeated.done
    worker.finish(node.clock)
    assert [answer.value.responses[0].partition_responses[0].base_offset for answer in (original, repeated)] == [0, 0]


def test_a_failed_fsync_is_answered_and_nothing_is_acknowledged(node: BrokerInProcess) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    failpoints.arm("log.flush.before_fsync", fail)
    promise = send(node, b"1")
    node.clock.advance_ms(0)
    assert error_of(promise) == ErrorCode.KAFKA_STORAGE_ERROR
    failpoints.disarm_all()
    refused = send(node, b"2")
    assert error_of(refused) == ErrorCode.KAFKA_STORAGE_ERROR
    other = send(node, b"3", partition=1)
    node.clock.advance_ms(0)
    assert error_of(other) == 0
    assert fetched_bytes(node) == 0


def test_one_partition_that_fails_does_not_harm_the_others_of_its_round(
    node: BrokerInProcess, worker: HeldWorker
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    promises = [send(node, b"1", partition=index) for index in range(3)]
    node.clock.advance_ms(0)
    failpoints.arm("log.flush.before_fsync", failpoints.on_nth_hit(2, fail))
    worker.finish(node.clock)
    assert sorted(error_of(promise) for promise in promises) == [0, 0, ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_callback_that_fails_keeps_nobody_else_waiting(
    node: BrokerInProcess, worker: HeldWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    node.broker.partitions.get("t", 0).committed(0).then(fail)
    node.broker.partitions.get("t", 0).watch(1, fail)
    promises = [send(node, b"1", partition=index) for index in (0, 0, 1, 2)]
    node.clock.advance_ms(0)
    worker.finish(node.clock)
    assert [error_of(promise) for promise in promises] == [0, 0, 0, 0]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_topic_deleted_while_its_producers_wait_answers_them(node: BrokerInProcess, worker: HeldWorker) -> None:
    promise = send(node, b"1")
    node.clock.advance_ms(0)
    node.delete("t")
    assert error_of(promise) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    worker.finish(node.clock)


def settle(node: BrokerInProcess, worker: HeldWorker) -> None:
    for _ in range(10):
        node.clock.advance_ms(0)
        worker.finish(node.clock)


def begin(node: BrokerInProcess, worker: HeldWorker) -> tuple[int, int]:
    promise = node.send(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    settle(node, worker)
    pid, epoch = promise.value.producer_id, promise.value.producer_epoch
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    node.send(request, 3)
    settle(node, worker)
    return pid, epoch


def test_a_commit_is_decided_when_its_record_is_on_disk(node: BrokerInProcess, worker: HeldWorker) -> None:
    pid, epoch = begin(node, worker)
    request = EndTxnRequest(transactional_id="x", producer_id=pid, producer_epoch=epoch, committed=True)
    promise = node.send(request, 3)
    node.clock.advance_ms(0)
    assert not promise.done
    assert node.broker.partitions.get("t", 0).log.log_end_offset == 0
    worker.work()
    worker.deliver()
    assert promise.value.error_code == 0
    assert node.broker.partitions.get("t", 0).log.log_end_offset == 0
    node.clock.advance_ms(0)
    assert node.broker.partitions.get("t", 0).log.log_end_offset == 1
    settle(node, worker)
    assert at_once(node.broker.transactions.count_by_state()) == {"CompleteCommit": 1}


def test_a_commit_whose_record_cannot_be_fsynced_is_not_confirmed(node: BrokerInProcess, worker: HeldWorker) -> None:
    pid, epoch = begin(node, worker)
    request = EndTxnRequest(transactional_id="x", producer_id=pid, producer_epoch=epoch, committed=True)
    promise = node.send(request, 3)
    node.clock.advance_ms(0)

    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    failpoints.arm("log.flush.before_fsync", fail)
    worker.work()
    worker.deliver()
    assert promise.value.error_code == ErrorCode.NOT_COORDINATOR
    assert node.broker.partitions.get("t", 0).log.log_end_offset == 0


def commit_offset(node: BrokerInProcess) -> Promise[Any]:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    return node.send(request, 8)


def test_committed_offsets_are_on_disk(node: BrokerInProcess, worker: HeldWorker) -> None:
    promise = commit_offset(node)
    node.clock.advance_ms(0)
    assert not promise.done
    settle(node, worker)
    assert promise.value.topics[0].partitions[0].error_code == 0


def test_offsets_that_cannot_be_fsynced_are_refused_at_once(node: BrokerInProcess, worker: HeldWorker) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    promise = commit_offset(node)
    failpoints.arm("log.flush.before_fsync", fail)
    settle(node, worker)
    assert promise.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    again = commit_offset(node)
    assert again.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def fetch_offset(node: BrokerInProcess) -> Promise[tuple[int, int]]:
    """The error and the offset that are answered."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = node.send(OffsetFetchRequest(group_id="g", topics=topics), 6)
    return answer.map(
        lambda said: (said.error_code, said.topics[0].partitions[0].committed_offset if said.topics else -1)
    )


def test_committed_offsets_are_shown_when_they_are_on_disk(node: BrokerInProcess, worker: HeldWorker) -> None:
    before = fetch_offset(node)
    assert before.value == (0, -1)
    commit_offset(node)
    node.clock.advance_ms(0)
    worker.work()
    assert fetch_offset(node).value == (0, -1)
    worker.deliver()
    assert fetch_offset(node).value == (0, 5)


def test_offsets_of_a_transaction_are_shown_when_its_marker_is_on_disk(
    node: BrokerInProcess, worker: HeldWorker
) -> None:
    pid, epoch = begin(node, worker)
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    commit = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=pid,
        producer_epoch=epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    node.send(commit, 5)
    settle(node, worker)
    log = node.broker.partitions.get("__consumer_offsets", 0).log
    assert (log.log_end_offset, fetch_offset(node).value) == (1, (0, -1))
    node.send(EndTxnRequest(transactional_id="x", producer_id=pid, producer_epoch=epoch, committed=True), 3)
    while log.log_end_offset == 1:
        node.clock.advance_ms(0)
        worker.finish_one()
    assert fetch_offset(node).value == (0, -1)
    settle(node, worker)
    assert fetch_offset(node).value == (0, 7)


def test_offsets_that_cannot_be_fsynced_are_not_shown_before_a_restart(
    node: BrokerInProcess, worker: HeldWorker
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "injected")

    commit_offset(node)
    assert fetch_offset(node).value == (0, -1)
    failpoints.arm("log.flush.before_fsync", fail)
    settle(node, worker)
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)
    failpoints.disarm_all()
    node.restart(clean=False)
    log = node.broker.partitions.get("__consumer_offsets", 0).log
    assert (log.durable_offset, fetch_offset(node).value) == (1, (0, 5))


def test_what_a_crash_left_is_fsynced_before_it_counts(node: BrokerInProcess) -> None:
    node.broker.stop(clean=False)
    without = {key: value for key, value in SETTINGS.items() if key != "oncelog.acks.fsync"}
    plain = BrokerInProcess(node.folder, without, clock=node.clock)
    plain.produce("t", [b"1"])
    assert plain.broker.partitions.get("t", 0).log.durable_offset == 0
    plain.broker.stop(clean=False)
    node.broker = node._new()
    partition = node.broker.partitions.get("t", 0)
    assert partition.high_watermark == partition.log.durable_offset == 1


def test_without_the_setting_nothing_waits(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "plain", {"log.cleaner.enable": "false"})
    node.create("t", 1)
    worker = hold_worker(node)
    assert error_of(send(node, b"1")) == 0
    assert not worker.jobs
    node.broker.stop(clean=False)


def test_the_retry_of_an_append_that_failed_half_way_is_answered_once_it_is_on_disk(node: BrokerInProcess) -> None:
    def no_space() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    failpoints.arm("log.append.after_indexes", failpoints.on_nth_hit(1, no_space))
    identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert error_of(send(node, b"x", **identity)) == ErrorCode.KAFKA_STORAGE_ERROR
    retry = send(node, b"x", **identity)
    node.clock.advance_ms(1)
    assert retry.done and error_of(retry) == ErrorCode.NONE
    assert node.broker.partitions.get("t", 0).log.durable_offset == 1


def test_a_file_that_cannot_be_opened_for_its_fsync_delays_the_acknowledgement(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors(*_: object) -> bool:
        raise FileNotOpened(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("oncelog.storage.flush_work._sync", no_descriptors)
        answer = send(node, b"x")
        node.clock.advance_ms(1)
        assert not answer.done
    node.clock.advance_ms(RETRY_MS)
    assert answer.done and error_of(answer) == ErrorCode.NONE
    assert not node.broker.partitions.get("t", 0).log.has_failed


def test_what_cannot_be_flushed_for_want_of_descriptors_is_told_of_once_and_tried_less_and_less(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_descriptors(*_: object) -> bool:
        raise FileNotOpened(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("oncelog.storage.flush_work._sync", no_descriptors)
        answers = []
        for _ in range(20):
            answers.append(send(node, b"x"))
            node.clock.advance_ms(1)
        rounds = node.broker.flusher.rounds
        node.clock.advance_ms(30_000)
        assert node.broker.flusher.rounds - rounds < 15
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    node.clock.advance_ms(RETRY_MAX_MS)
    assert [error_of(answer) for answer in answers] == [ErrorCode.NONE] * 20
    with monkeypatch.context() as patched:
        patched.setattr("oncelog.storage.flush_work._sync", no_descriptors)
        late = send(node, b"x")
        node.clock.advance_ms(1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    node.clock.advance_ms(RETRY_MS)
    assert late.done


def test_a_broker_that_has_stopped_flushes_nothing_more(node: BrokerInProcess) -> None:
    send(node, b"x")
    node.broker.stop(clean=False)
    node.clock.advance_ms(1)
    assert node.broker.flusher.rounds == 0
