"""Records that are in flight when a shard is given up, and records that an append left behind half way."""

from __future__ import annotations

import errno

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.server.broker import REPAIR_CHECK_INTERVAL_MS
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import hold_worker
from tests.unit.server.test_flusher import SETTINGS, commit_offset, fetch_offset, settle
from tests.unit.server.test_transactions import Producer


@pytest.fixture
def settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture
def node(node: BrokerInProcess) -> BrokerInProcess:
    node.create("t")
    return node


def no_space() -> None:
    raise OSError(errno.ENOSPC, "injected")


def test_a_commit_in_flight_when_the_broker_resigns_is_answered_and_found_by_the_next_load(
    node: BrokerInProcess,
) -> None:
    worker = hold_worker(node)
    waiting = commit_offset(node)
    shards = node.broker.groups._shards
    shards.resign(node.broker.groups.partition_of("g"))
    assert not waiting.done
    settle(node, worker)
    assert waiting.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


@pytest.mark.parametrize("settings", [{**SETTINGS, "oncelog.acks.fsync": "false"}])
def test_an_offset_that_an_append_left_behind_is_shown_once_the_log_is_repaired(node: BrokerInProcess) -> None:
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
