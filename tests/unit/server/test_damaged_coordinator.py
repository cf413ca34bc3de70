"""Logs of coordinators that are damaged or cannot be read: the broker starts and serves all that is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from oncelog.protocol.batch import iter_headers
from oncelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.server import shard_log
from oncelog.storage.log import Log
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
def node(tmp_path: Path) -> Iterator[BrokerInProcess]:
    """Stopped, with a batch for each of some groups and transactional ids."""
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    node.create("t")
    for number in range(COUNT):
        commit(node, f"g{number}", 0, number)
        assert init(node, f"x{number}") == ErrorCode.NONE
    node.broker.stop()
    yield node
    node.broker.stop(clean=False)


def init(node: BrokerInProcess, transactional_id: str) -> int:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
    code: int = node.call(request, 4).error_code
    return code


def is_known(node: BrokerInProcess, transactional_id: str) -> bool:
    answer = node.call(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0)
    return bool(answer.transaction_states[0].error_code == ErrorCode.NONE)


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


def fail_reads(patch: pytest.MonkeyPatch, from_offset: int) -> None:
    read = Log.read

    def broken(log: Log, offset: int, *args: Any, **named: Any) -> Any:
        if offset >= from_offset and log.topic_partition.topic.startswith("__"):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "Input/output error")
        return read(log, offset, *args, **named)

    patch.setattr(Log, "read", broken)


@pytest.mark.parametrize("from_offset", [0, 1])
def test_a_read_error_in_any_slice_of_a_load_does_not_keep_a_shard_loading(
    node: BrokerInProcess, from_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "LOAD_SLICE_RECORDS", 1)
    monkeypatch.setattr(shard_log, "_LOAD_READ_BYTES", 1)
    with monkeypatch.context() as patch:
        fail_reads(patch, from_offset)
        node.broker = node._new()
        node.clock.advance_ms(1)
    assert committed(node, "g0")[0] == (0 if from_offset else -1)
    assert is_known(node, "x0") == bool(from_offset)
    assert init(node, "new") == ErrorCode.NONE


def test_a_log_that_does_not_open_is_tried_again_by_those_who_need_it(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(log: Log, **_: Any) -> Any:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "_load", broken)
        node.broker = node._new()
    assert node.produce("t", [b"1"]).error_code == ErrorCode.NONE
    assert committed(node, "g3")[0] == 3
    assert is_known(node, "x3")
