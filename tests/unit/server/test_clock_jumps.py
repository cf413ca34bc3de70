"""The clock of the machine is set ahead or back while a broker runs, or was wrong when it started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.core.clock import JUMP_BELIEVED_AFTER_MS
from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.core.steps import at_once
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_transactions import Producer, stable

DAY_MS = 86_400_000
CHECK_MS = 1_000
SETTINGS = {
    **FEW_PARTITIONS,
    "log.retention.check.interval.ms": str(CHECK_MS),
    "offsets.retention.check.interval.ms": str(CHECK_MS),
    "offsets.retention.minutes": "2",
    "transactional.id.expiration.ms": "120000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": str(CHECK_MS),
    "log.cleaner.backoff.ms": str(CHECK_MS),
    "producer.id.expiration.check.interval.ms": str(CHECK_MS),
}


def jump(node: BrokerInProcess, *, for_ms: int) -> None:
    node.clock.wrong_by_ms = 8 * DAY_MS
    node.clock.advance_ms(for_ms)
    node.clock.wrong_by_ms = 0


def start_offset(node: BrokerInProcess) -> int:
    return node.broker.partitions.get("t", 0).log.log_start_offset


def test_a_clock_that_jumps_8_days_for_3_seconds_deletes_nothing(node: BrokerInProcess) -> None:
    node.create("t")
    assert node.produce("t", [b"a"]).error_code == 0
    jump(node, for_ms=3 * CHECK_MS)
    node.clock.advance_ms(3 * CHECK_MS)
    assert start_offset(node) == 0


def test_a_clock_that_stays_ahead_is_believed_in_the_end(node: BrokerInProcess) -> None:
    node.create("t")
    assert node.produce("t", [b"a"]).error_code == 0
    node.clock.wrong_by_ms = 8 * DAY_MS
    node.clock.advance_ms(JUMP_BELIEVED_AFTER_MS)
    assert start_offset(node) == 0
    node.clock.advance_ms(2 * CHECK_MS)
    assert start_offset(node) == 1


def test_a_retry_is_known_after_a_jump(node: BrokerInProcess) -> None:
    node.create("t")
    first = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert node.produce("t", [b"a"], **first).error_code == 0
    jump(node, for_ms=3 * CHECK_MS)
    again = node.produce("t", [b"a"], **first)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert node.broker.partitions.get("t", 0).log.log_end_offset == 1, "it was taken for a new one"


@pytest.mark.parametrize("wrong_by_ms", [8 * DAY_MS, -8 * DAY_MS])
def test_a_transaction_does_not_time_out_because_the_clock_is_set(node: BrokerInProcess, wrong_by_ms: int) -> None:
    node.create("orders")
    producer = Producer(node, timeout_ms=60_000)
    assert producer.init().value.error_code == 0
    assert producer.produce("orders", b"a").error_code == 0
    node.clock.wrong_by_ms = wrong_by_ms
    node.clock.advance_ms(30_000)
    assert stable(node) == (0, 1)
    node.clock.advance_ms(60_000)
    assert stable(node) == (2, 2), "its time was up"


@pytest.mark.parametrize("wrong_by_ms", [8 * DAY_MS, -8 * DAY_MS])
def test_a_session_does_not_end_because_the_clock_is_set(node: BrokerInProcess, wrong_by_ms: int) -> None:
    member_id, generation = join(node)
    beat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    node.clock.wrong_by_ms = wrong_by_ms
    node.clock.advance_ms(5_000)
    assert node.call(beat, 3).error_code == ErrorCode.NONE
    node.clock.advance_ms(11_000)
    assert node.call(beat, 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def join(node: BrokerInProcess) -> tuple[str, int]:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined: Promise[JoinGroupRequest] = node.send(request, 3)
    node.clock.advance_ms(100)
    member_id, generation = joined.value.member_id, joined.value.generation_id
    assignment = SyncGroupRequestAssignment(member_id=member_id, assignment=b"x")
    synced = node.call(
        SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id, assignments=[assignment]), 3
    )
    assert synced.error_code == ErrorCode.NONE
    return member_id, generation


def commit(node: BrokerInProcess) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    assert node.call(request, 8).topics[0].partitions[0].error_code == 0


def committed(node: BrokerInProcess) -> list[int]:
    answer = node.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8)
    return [partition.committed_offset for topic in answer.groups[0].topics for partition in topic.partitions]


def known_ids(node: BrokerInProcess) -> int:
    return sum(at_once(node.broker.transactions.count_by_state()).values())


@pytest.mark.parametrize("what", ["offsets", "ids"])
@pytest.mark.parametrize("when", ["while it runs", "at its start", "behind at a start before"])
def test_neither_offsets_nor_ids_expire_early_because_of_the_clock(tmp_path: Path, what: str, when: str) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("t")
    made: Callable[[], None] = (lambda: commit(node)) if what == "offsets" else (lambda: Producer(node).init())
    count = (lambda: len(committed(node))) if what == "offsets" else (lambda: known_ids(node))
    if when == "behind at a start before":
        node.clock.wrong_by_ms = -10 * DAY_MS
        node.restart()
        node.clock.wrong_by_ms = 0
        made()
        node.restart()
    else:
        made()
        node.clock.wrong_by_ms = 8 * DAY_MS
        if when == "at its start":
            node.restart()
            node.clock.advance_ms(CHECK_MS // 2)
            node.clock.wrong_by_ms = 0
    node.clock.advance_ms(5 * CHECK_MS)
    assert count() == 1
    node.clock.wrong_by_ms = 0
    node.clock.advance_ms(130_000)
    assert count() == 0, "they do expire"
    node.broker.stop(clean=False)


def test_a_log_is_flushed_in_time_although_the_clock_is_set_back(node: BrokerInProcess) -> None:
    node.create("t", flush_ms="2000")
    node.produce("t", [b"a"])
    node.clock.wrong_by_ms = -DAY_MS
    node.clock.advance_ms(3_000)
    assert node.broker.partitions.get("t", 0).log.recovery_point == 1
