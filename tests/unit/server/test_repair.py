"""An append that failed half way on a full disk: whoever waits is answered, also when no other append succeeds."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from oncelog.core import failpoints
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.list_groups import ListGroupsRequest
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest
from oncelog.server.coordinator_runtime import OPEN_RETRY_MS, REPAIRED_CHECK_MS
from oncelog.server.log_upkeep import REPAIR_CHECK_INTERVAL_MS
from oncelog.storage.log import Log
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.test_flusher import SETTINGS, commit_offset, fetch_offset


@pytest.fixture(params=["true", "false"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**SETTINGS, "oncelog.acks.fsync": request.param}


@pytest.fixture
def node(node: BrokerInProcess) -> BrokerInProcess:
    node.create("t")
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    return node


def no_space() -> None:
    raise OSError(errno.ENOSPC, "injected")


def refused_commit(node: BrokerInProcess, failpoint: str) -> None:
    failpoints.arm(failpoint, no_space)
    answer = commit_offset(node)
    failpoints.disarm_all()
    node.clock.advance_ms(1)
    assert answer.value.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def refused_produce(node: BrokerInProcess, failpoint: str) -> None:
    failpoints.arm(failpoint, no_space)
    answer = node.produce("t", [b"a"])
    failpoints.disarm_all()
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_an_append_that_repairs_the_log_and_is_refused_lets_nobody_wait(node: BrokerInProcess) -> None:
    partition = node.broker.partitions.get("t", 0)
    refused_produce(node, "log.append.after_write")
    refused_produce(node, "log.append.before_write")
    node.clock.advance_ms(1)
    assert (partition.log.has_failed, partition.high_watermark, partition.log.log_end_offset) == (False, 1, 1)


def test_a_log_is_repaired_for_those_who_only_read(node: BrokerInProcess) -> None:
    commit_offset(node)
    refused_commit(node, "log.append.after_write")
    node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS + 1)
    partition = node.broker.partitions.get("__consumer_offsets", 0)
    assert (partition.log.has_failed, partition.high_watermark) == (False, 2)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


def test_a_shard_that_was_loaded_from_a_failed_log_is_loaded_again(node: BrokerInProcess) -> None:
    """Without the batch of the append that has failed, which the repair finds in the log."""
    refused_commit(node, "log.append.after_write")
    partition = node.broker.partitions.get("__consumer_offsets", 0)
    node.broker.groups.shards.forget(partition.topic_partition)
    node.broker.groups.shards.live(0)
    assert partition.log.has_failed
    node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS + 1)
    assert (partition.log.has_failed, partition.high_watermark) == (False, 1)
    assert fetch_offset(node).value == (ErrorCode.NONE, 5)


def test_a_log_that_cannot_be_repaired_yet_is_told_of_once(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_commit(node, "log.append.after_write")
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr("oncelog.storage.log_health.replace_file", lambda *_, **__: no_space())
        for _ in range(5):
            node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS)
    assert [record.levelname for record in caplog.records if "repair" in record.message] == ["ERROR"]
    node.clock.advance_ms(REPAIR_CHECK_INTERVAL_MS)
    assert not node.broker.partitions.get("__consumer_offsets", 0).log.has_failed


def listed(node: BrokerInProcess) -> list[tuple[int, int]]:
    """Error and number of groups and of transactions."""
    groups, transactions = node.call(ListGroupsRequest(), 4), node.call(ListTransactionsRequest(), 0)
    return [
        (groups.error_code, len(groups.groups)),
        (transactions.error_code, len(transactions.transaction_states)),
    ]


@pytest.fixture
def with_both(node: BrokerInProcess) -> BrokerInProcess:
    """A group and a transactional id."""
    commit_offset(node)
    node.send(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    node.clock.advance_ms(1)
    assert listed(node) == [(ErrorCode.NONE, 1)] * 2
    return node


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whoever_lists_asks_again_until_a_log_is_repaired_and_is_told_where_only_a_restart_helps(
    with_both: BrokerInProcess, code: int
) -> None:
    """Clients' admins ask all brokers and know no other coordinator: they ask again after the error of a load alone."""
    node = with_both

    def fail() -> None:
        raise OSError(code, "injected")

    failpoints.arm("log.append.after_write", fail)
    commit_offset(node)
    node.send(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    refused = ErrorCode.NOT_COORDINATOR if code == errno.EIO else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert listed(node) == [(refused, 0)] * 2
    failpoints.disarm_all()
    assert fetch_offset(node).value == (ErrorCode.NOT_COORDINATOR, -1)
    if code == errno.ENOSPC:
        for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            node.broker.partitions.get(topic, 0).repair_log()
        assert listed(node) == [(refused, 0)] * 2, "they are not loaded yet"
        node.clock.advance_ms(REPAIRED_CHECK_MS)
    else:
        node.restart(clean=False)
    assert listed(node) == [(ErrorCode.NONE, 1)] * 2


def test_what_lists_lack_while_a_log_does_not_open_at_a_start_is_no_secret(
    with_both: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, load = with_both, Log._load

    def broken(log: Log, **options: Any) -> Any:
        if log.topic_partition.topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            raise OSError(errno.EMFILE, "Too many open files")
        return load(log, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "_load", broken)
        node.restart()
        assert listed(node) == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)] * 2
    node.clock.advance_ms(OPEN_RETRY_MS)
    assert listed(node) == [(ErrorCode.NONE, 1)] * 2
