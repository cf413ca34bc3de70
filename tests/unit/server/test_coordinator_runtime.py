"""Records that are in flight when a shard is given up, and records that an append left behind half way."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog.cluster import partitions
from oncelog.cluster.partition import Partition
from oncelog.coordinator.outcome import Outcome, Reply
from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, LeaderEpoch, NodeId, TopicPartition
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.server import shard_log
from oncelog.server.coordinator_runtime import REPAIRED_CHECK_MS, REPLIES_AT_ONCE
from oncelog.server.log_upkeep import REPAIR_CHECK_INTERVAL_MS
from oncelog.server.markers import RETRY_MS as MARKER_RETRY_MS
from oncelog.storage.flush_work import FileNotOpened
from oncelog.storage.log import Log
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import HeldWorker, hold_worker
from tests.unit.server.test_flusher import SETTINGS, commit_offset, error_of, fetch_offset, send, settle
from tests.unit.server.test_lost_tails import ID, Client, Past
from tests.unit.server.test_transactions import BrokenMarkers, Producer
from tests.unit.server.test_transactions import commit_offsets as commit_in_transaction
from tests.unit.server.test_transactions import fetch_offset as fetch_stable_offset

FLUSHED_AT_ONCE = {**SETTINGS, "oncelog.acks.fsync": "false", "log.flush.interval.messages": "1"}


@pytest.fixture
def settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture
def node(node: BrokerInProcess) -> BrokerInProcess:
    node.create("t")
    return node


def lose(node: BrokerInProcess, where: TopicPartition) -> None:
    """Another broker is elected."""
    change(node, where, NodeId(2))


def regain(node: BrokerInProcess, where: TopicPartition) -> None:
    change(node, where, node.broker.node_id)


def change(node: BrokerInProcess, where: TopicPartition, leader: NodeId) -> None:
    partition = node.broker.partitions.find(*where)
    assert partition is not None
    epoch = LeaderEpoch(partition.leader_epoch + 1)
    node.broker.metadata_changes.take_role(where, replace(partition.state, leader=leader, leader_epoch=epoch))


def fail(_: object) -> None:
    raise RuntimeError("injected")


def join() -> JoinGroupRequest:
    """By the protocol of clients that are not asked to come again with the id that they are given."""
    return JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip


def describe() -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=["x"])


def no_space() -> None:
    raise OSError(errno.ENOSPC, "injected")


def no_descriptor() -> None:
    raise FileNotOpened(errno.EMFILE, "injected")


def test_a_commit_in_flight_when_the_broker_resigns_is_answered_and_found_by_the_next_load(
    node: BrokerInProcess,
) -> None:
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    worker = hold_worker(node)
    waiting = commit_offset(node)
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    lose(node, where)
    assert waiting.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)
    settle(node, worker)
    regain(node, where)
    assert fetch_offset(node).value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1), "it is not committed yet"
    settle(node, worker)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


def test_a_load_that_waits_for_an_fsync_that_fails_refuses_until_a_restart(node: BrokerInProcess) -> None:
    """As the groups that were loaded before. They were said to be loading, for ever."""

    def broken() -> None:
        raise OSError(errno.EIO, "injected")

    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    worker = hold_worker(node)
    commit_offset(node)
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    lose(node, where)
    regain(node, where)
    assert fetch_offset(node).value == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    failpoints.arm("log.flush.before_fsync", broken)
    settle(node, worker)
    failpoints.disarm_all()
    node.clock.advance_ms(shard_log.LOAD_RETRY_MS)
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)


def test_a_producer_that_waits_for_a_broker_that_resigns_is_sent_to_the_leader(node: BrokerInProcess) -> None:
    worker = hold_worker(node)
    waiting = send(node, b"1")
    lose(node, TopicPartition("t", 0))
    assert error_of(waiting) == error_of(send(node, b"2")) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    settle(node, worker)
    regain(node, TopicPartition("t", 0))
    later = send(node, b"3")
    settle(node, worker)
    assert error_of(later) == ErrorCode.NONE
    assert [epoch for epoch, _ in node.broker.partitions.get("t", 0).log.leader_epochs.entries] == [0, 2]


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_transaction_is_carried_on_when_its_coordinator_is_back(node: BrokerInProcess) -> None:
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    where = TopicPartition(TRANSACTION_STATE_TOPIC, node.broker.transactions.partition_of("x"))
    lose(node, where)
    assert producer.end(True).value.error_code == ErrorCode.NOT_COORDINATOR
    assert node.send(describe(), 0).value.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    regain(node, where)
    assert producer.end(True).value.error_code == ErrorCode.NONE
    node.clock.advance_ms(1)
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 2


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_an_offset_that_an_append_left_behind_is_shown_once_the_log_is_repaired(node: BrokerInProcess) -> None:
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    failpoints.arm("log.append.after_write", no_space)
    refused = commit_offset(node)
    failpoints.disarm_all()
    assert refused.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)
    node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS + 1)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_decision_that_an_append_left_behind_is_carried_out_once_the_log_is_repaired(node: BrokerInProcess) -> None:
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    failpoints.arm("log.append.after_write", no_space)
    end = EndTxnRequest(transactional_id="x", producer_id=producer.pid, producer_epoch=producer.epoch, committed=True)
    refused = node.send(end, 5)
    failpoints.disarm_all()
    assert refused.value.error_code == ErrorCode.NOT_COORDINATOR
    node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS + 1)
    again = node.send(end, 5)
    node.clock.advance_ms(1)
    assert again.value.error_code == ErrorCode.NONE
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 2


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
@pytest.mark.parametrize("asks", [True, False])
def test_nothing_is_written_behind_a_decision_that_an_append_left_behind(node: BrokerInProcess, asks: bool) -> None:
    """It is carried out, also if nobody asks for it."""
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    where = TopicPartition(TRANSACTION_STATE_TOPIC, node.broker.transactions.partition_of("x"))
    log = node.broker.partitions.get(*where).log
    failpoints.arm("log.append.after_write", no_space)
    assert producer.end(True).value.error_code == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    end_offset = log.log_end_offset
    if asks:
        assert producer.end(False).value.error_code == ErrorCode.NOT_COORDINATOR
    assert log.log_end_offset == end_offset
    node.clock.advance_ms(2 * REPAIR_CHECK_INTERVAL_MS + 1)
    assert log.log_end_offset == end_offset + 2, "PrepareCommit, CompleteCommit"
    (described,) = node.send(describe(), 0).value.transaction_states
    assert described.transaction_state == "CompleteCommit"


@pytest.mark.parametrize("settings", [FLUSHED_AT_ONCE])
def test_a_decision_that_could_not_be_flushed_is_carried_out_when_it_is(node: BrokerInProcess) -> None:
    """It is in the log, where the next start would find it: what came next was decided as if it had not been made."""
    producer = Producer(node, "x", timeout_ms=5_000)
    producer.init()
    producer.produce("t", b"a")
    log = node.broker.partitions.get(TRANSACTION_STATE_TOPIC, node.broker.transactions.partition_of("x")).log
    before = log.log_end_offset
    failpoints.arm("log.flush.before_fsync", no_descriptor)
    assert producer.end(True).value.error_code == ErrorCode.NOT_COORDINATOR
    assert producer.end(False).value.error_code == ErrorCode.NOT_COORDINATOR
    node.clock.advance_ms(30_000)
    assert log.recovery_point == before
    assert node.send(describe(), 0).value.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    node.clock.advance_ms(2 * REPAIR_CHECK_INTERVAL_MS + 1)
    assert log.recovery_point == log.log_end_offset == before + 2, "PrepareCommit, CompleteCommit"
    (described,) = node.send(describe(), 0).value.transaction_states
    assert described.transaction_state == "CompleteCommit"


@pytest.mark.parametrize("settings", [FLUSHED_AT_ONCE])
def test_an_offset_that_could_not_be_flushed_is_part_of_its_transaction(node: BrokerInProcess) -> None:
    node.create("orders")
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    producer = Producer(node, "x")
    producer.init()
    assert commit_in_transaction(producer, "g", 7) == ErrorCode.NONE
    failpoints.arm("log.flush.before_fsync", no_descriptor)
    assert commit_in_transaction(producer, "g", 8) == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    assert producer.end(True).value.error_code == ErrorCode.NONE
    node.clock.advance_ms(2 * REPAIR_CHECK_INTERVAL_MS + 1)
    living = fetch_stable_offset(node, "g")
    node.restart(clean=False)
    assert living == fetch_stable_offset(node, "g") == (ErrorCode.NONE, 8)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_shard_behind_its_log_does_not_answer(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the commit, which the log has, for one that was not logged: the transaction timed out and was fenced."""
    producer = Producer(node, "x", timeout_ms=5_000)
    producer.init()
    producer.produce("t", b"a")
    failpoints.arm("log.append.after_write", no_space)
    assert producer.end(True).value.error_code == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    with monkeypatch.context() as patch:
        patch.setattr("oncelog.storage.log_health.replace_file", lambda *_, **__: no_space())
        node.clock.advance_ms(30_000)
        assert producer.end(True).value.error_code == ErrorCode.NOT_COORDINATOR
        assert node.send(describe(), 0).value.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
    node.clock.advance_ms(2 * REPAIR_CHECK_INTERVAL_MS)
    assert producer.end(True).value.error_code == ErrorCode.NONE
    (described,) = node.send(describe(), 0).value.transaction_states
    assert described.transaction_state == "CompleteCommit"


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_what_was_decided_together_is_not_written_behind_an_append_that_failed(node: BrokerInProcess) -> None:
    """Two transactions time out in the same scan."""
    producers = [Producer(node, name, timeout_ms=5_000) for name in "xy"]
    for producer in producers:
        producer.init()
        producer.produce("t", b"a")
    writes: list[int] = []
    failpoints.arm("log.append.before_write", lambda: writes.append(node.clock.now_ms()))
    failpoints.arm("log.append.after_write", failpoints.on_nth_hit(1, no_space))
    node.clock.advance_ms(60_000)
    failpoints.disarm_all()
    assert writes[1] > writes[0]
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 4, "two records, two markers"


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_groups_behind_their_log_do_not_answer(node: BrokerInProcess) -> None:
    """An append of somebody else failed half way: a marker's."""
    node.create("orders")
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    producer = Producer(node, "x")
    producer.init()
    assert commit_in_transaction(producer, "g", 7) == ErrorCode.NONE
    groups = node.broker.partitions.get(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    failpoints.arm("txn.marker.before_write", lambda: failpoints.arm("log.append.after_write", no_space))
    assert producer.end(True).value.error_code == ErrorCode.NONE
    failpoints.disarm_all()
    assert groups.log.has_failed
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)
    node.clock.advance_ms(2 * REPAIR_CHECK_INTERVAL_MS)
    assert fetch_stable_offset(node, "g") == (ErrorCode.NONE, 7)


def test_what_waits_in_a_log_that_has_failed_is_answered_when_the_broker_resigns(node: BrokerInProcess) -> None:
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    hold_worker(node)
    waiting = [commit_offset(node) for _ in range(2)]
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    failpoints.arm("log.append.after_write", no_space)
    with pytest.raises(KafkaError, match="half way"):
        node.broker.partitions.get(*where).append_marker(
            commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, transaction_version=0, now_ms=0
        )
    failpoints.disarm_all()
    lose(node, where)
    codes = [answer.value.topics[0].partitions[0].error_code for answer in waiting]
    assert codes == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_marker_of_a_shard_that_was_given_up_does_not_end_the_next_transaction(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in no queue when the shard was given up, and the next load sends one of its own. Clients of the older
    protocol have one epoch for all their transactions."""
    client, others = Client(node, tv2=False, topic="t"), [Producer(node, name) for name in "yz"]
    client.init()
    client.produce(b"a")
    for other in others:
        other.init()
    others[0].produce("t", b"b")
    markers = BrokenMarkers(monkeypatch)
    others[0].end(True)
    node.clock.advance_ms(MARKER_RETRY_MS // 2)  # the next round of retries comes between a reload and this one's next
    end = EndTxnRequest(transactional_id=ID, producer_id=client.pid, producer_epoch=client.epoch, committed=True)
    assert node.send(end, 3).value.error_code == ErrorCode.NONE
    failpoints.arm("log.append.after_write", no_space)
    assert others[1].init().value.error_code == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    node.clock.advance_ms(REPAIRED_CHECK_MS - 1)
    markers.broken = False
    node.clock.advance_ms(1)
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 4
    assert client.produce(b"c")
    node.clock.advance_ms(MARKER_RETRY_MS)
    assert partition.last_stable_offset == 4


def test_a_marker_that_a_start_has_found_missing_is_written_although_its_coordinator_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut has taken the end of the coordinator's log, which then fails while the partition is full."""
    past = Past(tmp_path / "past", tv2=True)
    markers = BrokenMarkers(monkeypatch)
    ends = {name: past.ends[name][-2 if name == TRANSACTION_STATE_TOPIC else -1] for name in past.ends}
    node = past.after_cut(tmp_path / "data", ends)
    other = Producer(node, "y")
    assert other.init().value.error_code == ErrorCode.NONE
    failpoints.arm("log.append.after_write", no_space)
    assert other.init().value.error_code == ErrorCode.NOT_COORDINATOR
    failpoints.disarm_all()
    markers.broken = False
    node.clock.advance_ms(2 * REPAIRED_CHECK_MS)
    partition = node.broker.partitions.get("orders", 0)
    assert partition.last_stable_offset == partition.high_watermark
    node.broker.stop(clean=False)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_load_ends_when_the_broker_resigns_meanwhile(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    for _ in range(5):
        commit_offset(node)
    groups = node.broker.groups
    where = TopicPartition(GROUP_METADATA_TOPIC, groups.partition_of("g"))
    lose(node, where)
    assert where.partition not in groups._deadlines
    regain(node, where)
    given_up = groups.shards.live(where.partition).shard
    lose(node, where)
    node.clock.advance_ms(1)
    assert not given_up.is_loaded
    assert where.partition not in groups._deadlines, "the timer of the next load would never be set"
    regain(node, where)
    node.clock.advance_ms(1)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


def load_slowly(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are being loaded, each record in a turn of its own."""
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    lose(node, where)
    regain(node, where)
    assert not node.broker.groups.is_ready(where.partition)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_offsets_of_a_topic_that_is_deleted_while_groups_are_loaded_go(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    for _ in range(20):
        commit_offset(node)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)
    load_slowly(node, monkeypatch)
    node.broker.groups.on_topic_deleted(node.broker.metadata.topics["t"])
    node.clock.advance_ms(1)
    assert fetch_offset(node).value == (ErrorCode.NONE, -1)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_marker_waits_until_groups_are_loaded(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load does not read what is appended after it has begun: what is pending would be so for ever."""
    node.create("orders")
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    for _ in range(20):
        commit_offset(node)
    producer = Producer(node, "x")
    producer.init()
    assert commit_in_transaction(producer, "g", 7) == ErrorCode.NONE
    load_slowly(node, monkeypatch)
    assert producer.end(True).value.error_code == ErrorCode.NONE
    node.clock.advance_ms(2 * MARKER_RETRY_MS)
    assert fetch_stable_offset(node, "g") == (ErrorCode.NONE, 7)


def test_a_marker_that_is_committed_while_groups_are_loaded_ends_no_earlier_transaction(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load has read what that one has pending, and not yet that it was aborted."""
    node.create("orders")
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    producer = Producer(node, "x")
    producer.init()
    assert commit_in_transaction(producer, "g", 7) == ErrorCode.NONE
    assert producer.end(False).value.error_code == ErrorCode.NONE
    assert commit_in_transaction(producer, "h", 8) == ErrorCode.NONE
    workers: list[HeldWorker] = []
    failpoints.arm("txn.marker.before_write", lambda: workers.append(hold_worker(node)))
    assert producer.end(True).value.error_code == ErrorCode.NONE
    failpoints.disarm_all()
    node.clock.advance_ms(0)
    (worker,) = workers
    worker.work()
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    regain(node, where)  # the same leader in another epoch: whoever waits goes on waiting
    worker.deliver()
    assert not node.broker.groups.is_ready(where.partition)
    settle(node, worker)
    assert fetch_stable_offset(node, "g") == (ErrorCode.NONE, -1)
    assert fetch_stable_offset(node, "h") == (ErrorCode.NONE, 8)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
@pytest.mark.parametrize("version", [12, 13])
def test_a_producer_is_told_who_leads(node: BrokerInProcess, version: int) -> None:
    lose(node, TopicPartition("t", 0))
    node.broker.is_in_cluster = True
    refused = node.produce("t", [b"a"], version=version)
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.current_leader.leader_id == node.broker.node_id


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_role_that_was_taken_by_halves_is_taken_to_its_end_in_the_same_epoch(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-9307: the second time the epoch is not a new one, and the coordinator was loading for ever."""
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    lose(node, TopicPartition("t", 0))
    assert producer.end(True).value.error_code == ErrorCode.NONE, "its marker waits for a leader"
    transactions = node.broker.transactions
    where = TopicPartition(TRANSACTION_STATE_TOPIC, transactions.partition_of("x"))
    lose(node, where)

    def refuse(_: int) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "injected")

    with monkeypatch.context() as failing:
        failing.setattr(transactions.shards, "_load", refuse)
        with pytest.raises(KafkaError, match="injected"):
            regain(node, where)
    regain(node, TopicPartition("t", 0))
    partition = node.broker.partitions.get(*where)
    node.broker.metadata_changes.take_role(where, partition.state)
    node.clock.advance_ms(1000)
    written = node.broker.partitions.get("t", 0)
    assert written.last_stable_offset == written.high_watermark == 2


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_what_changes_in_the_same_epoch_does_not_load_a_coordinator_again(node: BrokerInProcess) -> None:
    producer = Producer(node, "x")
    producer.init()
    shards = node.broker.transactions.shards
    index = node.broker.transactions.partition_of("x")
    live = shards.live(index)
    state = live.partition.state
    node.broker.metadata_changes.take_role(
        TopicPartition(TRANSACTION_STATE_TOPIC, index), replace(state, partition_epoch=state.partition_epoch + 1)
    )
    assert shards.live(index) is live


@pytest.mark.parametrize(
    "settings", [{**SETTINGS, "oncelog.acks.fsync": "false", "group.initial.rebalance.delay.ms": "3000"}]
)
def test_an_answer_that_fails_when_a_coordinator_is_unloaded_keeps_nobody_waiting(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA-18484: the shard that was left half unloaded could not be loaded again."""
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    commit_offset(node)
    first, second = node.send(join(), 3), node.send(join(), 3)
    assert not first.done and not second.done
    first.then(fail)
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    lose(node, where)
    assert second.value.error_code == ErrorCode.NOT_COORDINATOR
    assert where.partition not in node.broker.groups._deadlines
    assert "an answer could not be given" in caplog.text
    regain(node, where)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)
    again = node.send(join(), 3)
    node.clock.advance_ms(10_000)
    assert again.value.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "settings", [{**SETTINGS, "oncelog.acks.fsync": "false", "group.initial.rebalance.delay.ms": "3000"}]
)
def test_a_request_that_comes_with_the_answer_of_a_former_epoch_is_answered_by_the_next(node: BrokerInProcess) -> None:
    """A client has its next request behind the one that is answered: it was served by a shard that nobody kept."""
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    commit_offset(node)
    first, next_requests = node.send(join(), 3), list[Any]()
    first.then(lambda _: next_requests.append(node.send(join(), 3)))
    regain(node, TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g")))
    assert first.value.error_code == ErrorCode.NOT_COORDINATOR
    node.clock.advance_ms(10_000)
    assert [answer.value.error_code for answer in next_requests] == [ErrorCode.NONE]


def test_very_many_answers_at_the_end_of_a_round_give_others_their_turn(node: BrokerInProcess) -> None:
    shards, answered, count = node.broker.groups.shards, list[int](), 2 * REPLIES_AT_ONCE + 1
    shards.deliver(Outcome([Reply(answered.append, number) for number in range(count)]))
    assert len(answered) == REPLIES_AT_ONCE
    node.clock.advance_ms(0)
    assert answered == list(range(count))


def test_a_transaction_is_carried_out_although_its_answer_fails(node: BrokerInProcess) -> None:
    """The other side of KAFKA-18484: what is logged and applied is not given up for one who does not hear of it."""
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    worker = hold_worker(node)
    producer.end(True).then(fail)
    settle(node, worker)
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 2


def test_a_coordinator_that_moves_is_no_reason_to_warn(node: BrokerInProcess, caplog: pytest.LogCaptureFixture) -> None:
    """KAFKA-20635: an error for each write in flight, and for whoever asks again, although all of that is as usual."""
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    worker = hold_worker(node)
    waiting = [commit_offset(node) for _ in range(3)]
    where = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_of("g"))
    with caplog.at_level(logging.WARNING):
        lose(node, where)
        waiting.append(commit_offset(node))
        codes = {answer.value.topics[0].partitions[0].error_code for answer in waiting}
        assert codes == {ErrorCode.NOT_COORDINATOR}
        assert [record.getMessage() for record in caplog.records] == []
    settle(node, worker)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_a_coordinator_whose_log_cannot_be_opened_at_a_start_is_loaded_when_it_can_be(
    node: BrokerInProcess, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for its transactions, and what was decided is carried on all the same."""
    producer = Producer(node, "x")
    producer.init()
    producer.produce("t", b"a")
    lose(node, TopicPartition("t", 0))
    assert producer.end(True).value.error_code == ErrorCode.NONE, "its marker waits for a leader"
    node.broker.stop(clean=False)
    opened = partitions.Partition

    def refuse(log: Log, *arguments: Any, **options: Any) -> Partition:
        if log.topic_partition.topic == TRANSACTION_STATE_TOPIC:
            raise OSError(errno.EIO, "injected")
        return opened(log, *arguments, **options)

    with monkeypatch.context() as failing:
        failing.setattr(partitions, "Partition", refuse)
        again = BrokerInProcess(tmp_path / "data", settings)
        again.clock.advance_ms(100)
    again.clock.advance_ms(20_000)
    partition = again.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 2
    again.broker.stop(clean=False)
