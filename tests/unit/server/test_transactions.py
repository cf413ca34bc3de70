"""Transactions through the whole broker: parking, markers that cannot be written, offsets, restarts."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core.config_resources import ResourceType
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.promise import Promise
from oncelog.protocol.batch import Record, build_batch
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from oncelog.server.markers import RETRY_MS
from oncelog.storage.log import Log
from oncelog.storage.producer_state import Origin
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess, batch_of

ID = "tx-1"


class Producer:
    """A transactional producer over TV2: partitions are added by the broker, every end bumps the epoch."""

    def __init__(self, node: BrokerInProcess, transactional_id: str = ID, timeout_ms: int = 60_000) -> None:
        self.node = node
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.pid, self.epoch, self.sequences = -1, -1, {}  # type: tuple[int, int, dict[tuple[str, int], int]]

    def init(self) -> Promise[Any]:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        return self._send(request)

    def _send(self, request: Any) -> Promise[Any]:
        answer = self.node.send(request, 5).map(self._take)
        self.node.clock.advance_ms(0)  # markers are written once the answer has left
        return answer

    def _take(self, response: Any) -> Any:
        if not response.error_code and response.producer_id >= 0:
            self.pid, self.epoch, self.sequences = response.producer_id, response.producer_epoch, {}
        return response

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> Any:
        sequence = self.sequences.get((topic, partition), 0)
        answer = self.node.produce(
            topic,
            list(values),
            partition=partition,
            version=12,
            transactional_id=self.transactional_id,
            transactional=True,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        if not answer.error_code:
            self.sequences[topic, partition] = sequence + len(values)
        return answer

    def end(self, commit: bool) -> Promise[Any]:
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.pid, producer_epoch=self.epoch, committed=commit
        )
        return self._send(request)


@pytest.fixture
def producer(node: BrokerInProcess) -> Producer:
    node.create("orders", 2)
    producer = Producer(node)
    assert producer.init().value.error_code == 0
    return producer


class BrokenMarkers:
    """Partitions that refuse markers for as long as they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = True
        original = Partition.append_marker

        def append_marker(partition: Partition, **marker: Any) -> Any:
            if self.broken:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
            return original(partition, **marker)

        monkeypatch.setattr(Partition, "append_marker", append_marker)


def stable(node: BrokerInProcess, topic: str = "orders", partition: int = 0) -> tuple[int, int]:
    found = node.broker.partitions.get(topic, partition)
    return found.last_stable_offset, found.high_watermark


def test_a_commit_answers_with_the_next_epoch_and_frees_readers(node: BrokerInProcess, producer: Producer) -> None:
    producer.produce("orders", b"a")
    producer.produce("orders", b"b", partition=1)
    assert stable(node) == (0, 1)
    before = producer.epoch
    answer = producer.end(commit=True).value
    assert (answer.error_code, producer.epoch) == (0, before + 1)
    assert stable(node) == (2, 2)
    assert stable(node, partition=1) == (2, 2)


def test_requests_that_meet_an_unfinished_end_wait_for_it_and_then_get_their_own_answer(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.produce("orders", b"a")
    markers = BrokenMarkers(monkeypatch)
    assert producer.end(commit=True).value.error_code == 0
    successor = Producer(node)
    waiting = successor.init()
    assert not waiting.done
    assert node.broker.transactions.parked_count == 1
    node.clock.advance_ms(1000)
    assert not waiting.done
    markers.broken = False
    node.clock.advance_ms(100)
    assert waiting.value.error_code == 0
    assert successor.epoch == producer.epoch + 1
    assert node.broker.transactions.parked_count == 0
    assert stable(node) == (2, 2)


def test_a_parked_request_is_answered_concurrent_transactions_when_its_time_is_up(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.produce("orders", b"a")
    BrokenMarkers(monkeypatch)
    producer.end(commit=True)
    waiting = Producer(node).init()
    node.clock.advance_ms(2_000)
    assert waiting.value.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_beyond_the_bound_requests_are_not_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = BrokerInProcess(tmp_path / "data", {"oncelog.parked.requests.max": "2"})
    node.create("orders")
    producer = Producer(node)
    producer.init()
    producer.produce("orders", b"a")
    BrokenMarkers(monkeypatch)
    producer.end(commit=True)
    answers = [Producer(node).init() for _ in range(3)]
    assert [answer.done for answer in answers] == [False, False, True]
    assert answers[2].value.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_checks_that_come_before_the_wait_still_come_first(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.produce("orders", b"a")
    old_epoch = producer.epoch
    BrokenMarkers(monkeypatch)
    producer.end(commit=True)
    request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=0)
    assert node.call(request, 5).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    # Adding looks at the pending state first (KAFKA-18660), so even a wrong producer id waits; verifying does not.
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="unknown",
        v3_and_below_producer_id=producer.pid,
        v3_and_below_producer_epoch=old_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )
    answer = node.call(add, 3).results_by_topic_v3_and_below[0].results_by_partition[0]
    assert answer.partition_error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_many_requests_parked_on_one_id_are_all_answered(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.produce("orders", b"a")
    markers = BrokenMarkers(monkeypatch)
    producer.end(commit=True)
    waiting = [Producer(node).init() for _ in range(1000)]
    markers.broken = False
    node.clock.advance_ms(100)
    epochs = [answer.value.producer_epoch for answer in waiting]
    assert epochs == list(range(producer.epoch + 1, producer.epoch + 1001))


def test_init_over_an_open_transaction_aborts_it_and_answers_at_once(node: BrokerInProcess, producer: Producer) -> None:
    producer.produce("orders", b"a")
    successor = Producer(node)
    answer = successor.init().value
    assert (answer.error_code, successor.epoch) == (0, producer.epoch + 2)
    assert stable(node) == (2, 2)
    fenced = producer.produce("orders", b"late")
    assert fenced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True).value.error_code == ErrorCode.PRODUCER_FENCED


def test_a_transaction_that_times_out_is_aborted_and_its_producer_can_go_on(node: BrokerInProcess) -> None:
    node.create("orders")
    producer = Producer(node, timeout_ms=5_000)
    producer.init()
    producer.produce("orders", b"a")
    node.clock.advance_ms(20_000)
    assert stable(node) == (2, 2)
    assert producer.produce("orders", b"late").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commit=True).value.error_code == ErrorCode.PRODUCER_FENCED
    before = producer.epoch
    assert producer.end(commit=False).value.error_code == 0
    assert producer.epoch > before
    assert producer.produce("orders", b"again").error_code == 0
    assert producer.end(commit=True).value.error_code == 0


def test_the_topic_of_an_open_transaction_is_deleted(node: BrokerInProcess, producer: Producer) -> None:
    node.create("other")
    producer.produce("orders", b"a")
    producer.produce("other", b"b")
    node.delete("orders")
    assert producer.end(commit=True).value.error_code == 0
    assert stable(node, "other") == (2, 2)
    state = node.call(DescribeTransactionsRequest(transactional_ids=[ID]), 0).transaction_states[0]
    assert state.transaction_state == "CompleteCommit"


@pytest.mark.parametrize("clean", [True, False])
def test_an_ongoing_transaction_survives_a_restart_and_its_producer_commits(
    node: BrokerInProcess, producer: Producer, clean: bool
) -> None:
    producer.produce("orders", b"a")
    node.restart(clean=clean)
    assert stable(node) == (0, 1)
    producer.produce("orders", b"b")
    assert producer.end(commit=True).value.error_code == 0
    assert stable(node) == (3, 3)


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_finished_after_a_restart(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    producer.produce("orders", b"a")
    producer.produce("orders", b"b", partition=1)
    markers = BrokenMarkers(monkeypatch)
    assert producer.end(commit=commit).value.error_code == 0
    assert stable(node) == (0, 1)
    markers.broken = False
    node.restart(clean=False)
    assert stable(node) == (2, 2)
    assert stable(node, partition=1) == (2, 2)
    state = node.call(DescribeTransactionsRequest(transactional_ids=[ID]), 0).transaction_states[0]
    assert state.transaction_state == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_partition_that_does_not_open_at_a_start_gets_its_marker_later_and_holds_up_nobody_else(
    node: BrokerInProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = BrokenMarkers(monkeypatch)
    others = [Producer(node, f"other-{number}") for number in range(5)]
    for number, each in enumerate([producer, *others]):
        node.create(f"t{number}")
        each.init()
        each.produce(f"t{number}", b"a")
        assert each.end(commit=True).value.error_code == 0
    markers.broken = False
    load = Log._load

    def broken(log: Log, **options: Any) -> Any:
        if log.topic_partition.topic == "t0":
            raise OSError(errno.EMFILE, "Too many open files")
        return load(log, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "_load", broken)
        node.restart()
        assert [stable(node, f"t{number}") for number in range(1, 6)] == [(2, 2)] * 5
    node.clock.advance_ms(RETRY_MS)
    assert stable(node, "t0") == (2, 2)
    assert producer.init().value.error_code == 0


def commit_offsets(producer: Producer, group: str, offset: int, version: int = 5) -> int:
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="orders",
                partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
            )
        ],
    )
    code: int = producer.node.call(request, version).topics[0].partitions[0].error_code
    return code


def commit_outside(node: BrokerInProcess, group: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="orders", partitions=[partition])]
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
    assert node.call(request, 8).topics[0].partitions[0].error_code == 0


def fetch_offset(node: BrokerInProcess, group: str, require_stable: bool = True) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=require_stable
    )
    answer = node.call(request, 9).groups[0].topics[0].partitions[0]
    return answer.error_code, answer.committed_offset


@pytest.mark.parametrize(("commit", "expected"), [(True, 7), (False, -1)])
def test_offsets_in_a_transaction_are_unstable_until_it_ends(
    node: BrokerInProcess, producer: Producer, commit: bool, expected: int
) -> None:
    assert commit_offsets(producer, "g1", 7) == 0
    assert fetch_offset(node, "g1") == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert fetch_offset(node, "g1", require_stable=False) == (0, -1)
    node.restart(clean=False)
    assert fetch_offset(node, "g1")[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(commit=commit).value.error_code == 0
    assert fetch_offset(node, "g1") == (0, expected)
    node.restart(clean=False)
    assert fetch_offset(node, "g1") == (0, expected)


@pytest.mark.parametrize("clean", [True, False])
def test_a_pending_offset_that_was_deleted_does_not_come_back_with_a_restart(
    node: BrokerInProcess, producer: Producer, clean: bool
) -> None:
    commit_outside(node, "g1", 1)
    assert commit_offsets(producer, "g1", 7) == 0
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topics = [OffsetDeleteRequestTopic(name="orders", partitions=[partition])]
    answer = node.call(OffsetDeleteRequest(group_id="g1", topics=topics), 0)
    assert answer.topics[0].partitions[0].error_code == 0
    commit_outside(node, "g1", 5)
    assert fetch_offset(node, "g1") == (0, 5)
    node.restart(clean=clean)
    assert fetch_offset(node, "g1") == (0, 5)
    assert producer.end(commit=True).value.error_code == 0
    assert fetch_offset(node, "g1") == (0, 5)


def test_an_old_client_must_have_added_the_offsets_first(node: BrokerInProcess, producer: Producer) -> None:
    producer.produce("orders", b"a")
    assert commit_offsets(producer, "g1", 7, version=3) == ErrorCode.INVALID_TXN_STATE
    assert commit_offsets(producer, "g1", 7, version=4) == ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("settings", [{**FEW_PARTITIONS, "oncelog.cluster.action.enable": "true"}])
def test_operators_see_and_abort_a_hanging_transaction(node: BrokerInProcess, producer: Producer) -> None:
    producer.produce("orders", b"a", b"b")
    listed = node.call(ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]), 2)
    assert listed.unknown_state_filters == ["Nonsense"]
    assert [(entry.transactional_id, entry.transaction_state) for entry in listed.transaction_states] == [
        (ID, "Ongoing")
    ]
    request = DescribeProducersRequest(topics=[TopicRequest(name="orders", partition_indexes=[0, 9])])
    partitions = node.call(request, 0).topics[0].partitions
    (found,) = partitions[0].active_producers
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer.pid, producer.epoch, 1)
    assert found.current_txn_start_offset == 0
    assert partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    abort = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[WritableTxnMarkerTopic(name="orders", partition_indexes=[0])],
            )
        ]
    )
    assert node.call(abort, 1).markers[0].topics[0].partitions[0].error_code == 0
    assert stable(node) == (3, 3)


@pytest.mark.parametrize("version", ["0", "1", "2"])
def test_the_finalised_transaction_version_is_advertised(tmp_path: Path, version: str) -> None:
    from oncelog.protocol.messages.api_versions import ApiVersionsRequest

    node = BrokerInProcess(tmp_path / "data", {"transaction.version": version})
    answer = node.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels.get("transaction.version", 0) == int(version)
    assert answer.finalized_features_epoch >= 0
    versions = {key.api_key: key.max_version for key in answer.api_keys}
    assert versions[22] == 5


def test_two_phase_commit_is_offered_only_where_it_is_enabled(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {"transaction.two.phase.commit.enable": "true"})
    node.create("orders")
    producer = Producer(node)
    assert producer.init().value.error_code == 0
    producer.produce("orders", b"prepared")
    resume = InitProducerIdRequest(
        transactional_id=ID, transaction_timeout_ms=1000, enable2_pc=True, keep_prepared_txn=True
    )
    answer = node.call(resume, 6)
    assert answer.error_code == 0
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (producer.pid, producer.epoch)
    node.restart(clean=False)
    end = EndTxnRequest(
        transactional_id=ID, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, committed=True
    )
    assert node.call(end, 5).error_code == 0
    assert stable(node) == (2, 2)


def test_a_marker_larger_than_a_topic_allows_is_written_all_the_same(node: BrokerInProcess, producer: Producer) -> None:
    producer.produce("orders", b"a")
    node.configure(ResourceType.TOPIC, "orders", {"max.message.bytes": "50"})
    assert producer.end(commit=True).value.error_code == 0
    assert stable(node) == (2, 2)


def test_a_record_that_makes_no_sense_does_not_keep_a_coordinator_from_starting(
    node: BrokerInProcess, producer: Producer
) -> None:
    producer.produce("orders", b"a")
    index = node.broker.transactions.partition_of(ID)
    partition = node.broker.partitions.get("__transaction_state", index)
    junk = batch_of([b"\0\1junk"], timestamp_ms=node.clock.now_ms())
    keyed = build_batch([Record(0, 0, b"\0\0\0\4abcd", b"\0\1junk")], timestamp_ms=node.clock.now_ms())
    for batch in (junk, keyed):
        partition.append_as_leader(batch, now_ms=node.clock.now_ms(), origin=Origin.COORDINATOR)
    node.restart(clean=False)
    assert producer.end(commit=True).value.error_code == 0


def test_verification_can_be_switched_off_for_old_clients(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {"transaction.partition.verification.enable": "false"})
    node.create("orders")
    producer = Producer(node)
    producer.init()
    answer = node.produce(
        "orders", [b"a"], version=9, transactional_id=ID, transactional=True,
        producer_id=producer.pid, producer_epoch=producer.epoch, base_sequence=0,
    )  # fmt: skip
    assert answer.error_code == 0


def test_the_late_transaction_metric_counts_partitions(node: BrokerInProcess, producer: Producer) -> None:
    from oncelog.core.steps import at_once
    from oncelog.server.metrics_page import read_metrics

    def late() -> float:
        metrics = at_once(read_metrics(node.broker)).collect()
        (metric,) = [metric for metric in metrics if "late_transactions" in metric.name]
        value: float = metric.samples[0].value
        return value

    producer.produce("orders", b"a")
    assert late() == 0
    node.broker.transactions.stop()
    node.broker.recurring.stop()
    node.clock.advance_ms(15 * 60_000 + 5 * 60_000 + 1)
    assert late() == 1
