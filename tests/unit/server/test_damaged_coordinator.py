"""Logs of coordinators that are damaged or cannot be read: the broker starts and serves all that is left of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.coordinator.group.machine import GroupShard
from oncelog.coordinator.txn.machine import TxnShard
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.core.invariant import InvariantError
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.leave_group import LeaveGroupRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.server import shard_log
from oncelog.storage.intact_batches import intact_batches
from oncelog.storage.log import Log
from oncelog.storage.segment import Segment
from oncelog.storage.segment_batches import FileBatch
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_cleaning import commit, committed

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
}
COUNT = 100
"""Enough for an entry in the index behind the damage: what follows the last one is read, and cut, at each start."""
_LENGTH_FIELD = 8


@pytest.fixture
def node(node: BrokerInProcess) -> BrokerInProcess:
    """Stopped, with a batch for each of some groups and transactional ids."""
    node.create("t")
    for number in range(COUNT):
        commit(node, f"g{number}", 0, number)
        assert init(node, f"x{number}") == ErrorCode.NONE
    node.broker.stop()
    return node


def init(node: BrokerInProcess, transactional_id: str) -> int:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    code: int = node.call(request, 4).error_code
    return code


def is_known(node: BrokerInProcess, transactional_id: str) -> bool:
    answer = node.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0)
    return bool(answer.transaction_states[0].error_code == ErrorCode.NONE)


def leave(node: BrokerInProcess, group: str) -> int:
    code: int = node.call(LeaveGroupRequest(group_id=group, member_id="m"), 2).error_code
    return code


def commit_in_transaction(node: BrokerInProcess, group: str) -> int:
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0)])
    request = TxnOffsetCommitRequest(transactional_id="x3", group_id=group, topics=[topic])
    code: int = node.call(request, 5).topics[0].partitions[0].error_code
    return code


def damage(node: BrokerInProcess, topic: str, number: int) -> None:
    path = node.folder / f"{topic}-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    position, _ = list(iter_headers(bytes(data)))[number]
    data[position + _LENGTH_FIELD] = 0x7F
    path.write_bytes(data)


def test_a_damaged_batch_costs_one_group_and_one_transactional_id(node: BrokerInProcess) -> None:
    damage(node, GROUP_METADATA_TOPIC, 10)
    damage(node, TRANSACTION_STATE_TOPIC, 10)
    node.broker = node._new()
    assert [number for number in range(COUNT) if committed(node, f"g{number}")[0] != number] == [10]
    assert [number for number in range(COUNT) if not is_known(node, f"x{number}")] == [10]
    commit(node, "g10", 0, 7)
    assert committed(node, "g10")[0] == 7
    assert init(node, "x10") == ErrorCode.NONE
    # What was written behind the damage is there after the next start too.
    node.restart()
    assert committed(node, "g10")[0] == 7
    assert is_known(node, "x10")


def fail_reads(patch: pytest.MonkeyPatch, from_position: int) -> None:
    """Those that load a coordinator, not those that open its log."""

    def broken(segment: Segment, end_offset: int) -> Iterator[FileBatch]:
        for batch in intact_batches(segment, end_offset):
            if batch.position >= from_position:
                raise OSError(errno.EIO, "Input/output error")
            yield batch

    patch.setattr(shard_log, "intact_batches", broken)


@pytest.mark.parametrize("from_position", [0, 1])
def test_nobody_is_told_that_there_is_nothing_while_a_log_cannot_be_read(
    node: BrokerInProcess, from_position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    with monkeypatch.context() as patch:
        fail_reads(patch, from_position)
        node.broker = node._new()
        node.clock.advance_ms(60_000)
        with pytest.raises(KafkaError) as caught:
            node.broker.groups.shard_of("g3")
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert init(node, "x3") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.clock.advance_ms(shard_log.LOAD_RETRY_MS_MAX)
    assert [number for number in range(COUNT) if committed(node, f"g{number}")[0] != number] == []
    assert all(is_known(node, f"x{number}") for number in range(COUNT))


def test_a_log_that_does_not_open_is_tried_again_by_those_who_need_it(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Log._load

    def broken(log: Log, **options: Any) -> Any:
        if log.topic_partition.topic == CLUSTER_METADATA_TOPIC:
            return load(log, **options)
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "_load", broken)
        node.broker = node._new()
        assert init(node, "x3") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not is_known(node, "x3")
        assert leave(node, "g3") == commit_in_transaction(node, "g3") == ErrorCode.NOT_COORDINATOR
    assert node.produce("t", [b"1"]).error_code == ErrorCode.NONE
    assert committed(node, "g3")[0] == 3
    assert is_known(node, "x3")


def fail_replays(patch: pytest.MonkeyPatch, shard: type[GroupShard] | type[TxnShard], at_offset: int) -> None:
    replay: Any = shard.replay

    def broken(self: Any, record: Any, *, offset: int, **times: int) -> Any:
        if offset == at_offset:
            raise InvariantError("a state that cannot be")
        return replay(self, record, offset=offset, **times)

    patch.setattr(shard, "replay", broken)


@pytest.mark.parametrize("slice_records", [1, shard_log.LOAD_SLICE_RECORDS])
def test_a_coordinator_that_cannot_replay_a_record_refuses_until_it_is_loaded_again(
    node: BrokerInProcess, slice_records: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of its state would make offsets go back and transactions begin anew."""
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", slice_records)
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with monkeypatch.context() as patch:
        fail_replays(patch, GroupShard, 50)
        fail_replays(patch, TxnShard, 60)
        node.broker = node._new()
        node.clock.advance_ms(60_000)
    for group in ("g3", "g70", "new"):
        with pytest.raises(KafkaError) as caught:
            node.broker.groups.shard_of(group)
        assert caught.value.code is refused
        assert leave(node, group) == refused
    assert node.call(ListGroupsRequest(), 4).error_code == refused
    assert [init(node, name) for name in ("x3", "x70", "new")] == [refused] * 3
    assert node.call(ListTransactionsRequest(), 0).error_code == refused
    for topic, offset in ((GROUP_METADATA_TOPIC, 50), (TRANSACTION_STATE_TOPIC, 60)):
        (line,) = [record for record in caplog.records if f"{topic}-0 could not be loaded" in record.getMessage()]
        assert f"offset {offset}" in line.getMessage()
        assert "oncelog log verify" in line.getMessage()
        assert line.exc_info
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", COUNT + 1)
    node.restart()
    assert [number for number in range(COUNT) if committed(node, f"g{number}")[0] != number] == []
    assert all(is_known(node, f"x{number}") for number in range(COUNT))
