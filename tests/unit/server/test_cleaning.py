"""Compaction in the background of a broker on a virtual clock."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from oncelog.cluster.partition import Partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TopicPartition
from oncelog.protocol.batch import build_batch, decode_records
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from oncelog.server import cleaning
from oncelog.storage import checkpoints
from oncelog.storage.log import Origin
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import HeldWorker, hold_worker
from tests.unit.storage.cleaner_harness import keyed, survivors
from tests.unit.storage.log_harness import append_txn, end_txn, headers, read_all
from tests.virtual_clock import VirtualScheduler

BACKOFF_MS = 15_000
SMALL = {"cleanup_policy": "compact", "internal_segment_bytes": "300", "min_cleanable_dirty_ratio": "0.01"}
SETTINGS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


def work_until_segment_is_cleaned(worker: HeldWorker, folder: Path) -> None:
    """To the moment at which the result of the cleaner is on its way to the owner."""
    while not list(folder.glob("*.cleaned")):
        if worker.results:
            worker.deliver()
        worker.work()


def partition_of(node: BrokerInProcess, topic: str = "t") -> Partition:
    return node.broker.partitions.get(topic, 0)


def write(node: BrokerInProcess, *pairs: tuple[str, str | None], topic: str = "t") -> None:
    now_ms = node.clock.now_ms()
    data = keyed(*pairs, timestamp=now_ms)
    partition_of(node, topic).append_as_leader(data, now_ms=now_ms, origin=Origin.COORDINATOR)


def write_dirty(node: BrokerInProcess, topic: str = "t") -> None:
    for number in range(20):
        write(node, (f"k{number % 3}", str(number)), topic=topic)


def values(node: BrokerInProcess, topic: str = "t") -> dict[str, str | None]:
    return {key: value for _, key, value in survivors(partition_of(node, topic).log)}


def first_dirty(node: BrokerInProcess) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(node.folder / checkpoints.CLEANER_OFFSETS)


def test_a_dirty_log_is_cleaned_after_the_backoff(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS - 1)
    assert len(survivors(partition_of(node).log)) == 20
    node.clock.advance_ms(1)
    log = partition_of(node).log
    assert len(survivors(log)) <= 3 + 4
    assert values(node) == {"k0": "18", "k1": "19", "k2": "17"}
    assert first_dirty(node) == {TopicPartition("t", 0): log.segments[-1].base_offset}


def test_what_is_clean_is_not_cleaned_again_after_a_restart(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1
    node.restart()
    node.clock.advance_ms(10 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 0
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1


def test_a_log_below_the_dirty_ratio_waits_for_the_maximum_lag(node: BrokerInProcess) -> None:
    node.create("t", **{**SMALL, "min_cleanable_dirty_ratio": "1.0"}, max_compaction_lag_ms="60000")
    write_dirty(node)
    node.clock.advance_ms(60_000 - 2 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 0
    node.clock.advance_ms(4 * BACKOFF_MS)
    assert node.broker.cleaner.passes == 1


def test_a_topic_with_delete_only_is_left_alone(node: BrokerInProcess) -> None:
    node.create("t", **{**SMALL, "cleanup_policy": "delete"})
    write_dirty(node)
    node.clock.advance_ms(10 * BACKOFF_MS)
    assert len(survivors(partition_of(node).log)) == 20


def test_compact_and_delete_together(tmp_path: Path) -> None:
    # Without a record left, the age of a segment is that of its file.
    node = BrokerInProcess(tmp_path / "data", SETTINGS, clock=VirtualScheduler(time.time_ns() // 1_000_000))
    node.create("t", **{**SMALL, "cleanup_policy": "compact,delete"}, retention_ms="1000000")
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1
    node.clock.advance_ms(2_000_000)
    write(node, ("new", "1"))
    node.clock.advance_ms(2 * BACKOFF_MS)
    assert values(node) == {"new": "1"}
    assert partition_of(node).log.log_start_offset == 20
    node.broker.stop(clean=False)


def test_the_cleaner_can_be_switched_off(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {**SETTINGS, "log.cleaner.enable": "false"})
    node.create("t", **SMALL)
    write_dirty(node)
    node.clock.advance_ms(10 * BACKOFF_MS)
    assert len(survivors(partition_of(node).log)) == 20
    node.broker.stop(clean=False)


def test_the_dirtiest_log_comes_first_and_all_have_their_turn(node: BrokerInProcess) -> None:
    for name in ("a", "b", "c"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 3
    assert {partition.topic for partition in first_dirty(node)} == {"a", "b", "c"}


def test_a_small_map_takes_several_passes_in_a_row(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path / "data", {**SETTINGS, "log.cleaner.dedupe.buffer.size": "1024"})
    node.create("t", **SMALL)
    for turn in range(2):
        for number in range(30):
            write(node, (f"k{number}", str(turn)))
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes > 2
    assert values(node) == {f"k{number}": "1" for number in range(30)}
    assert len(survivors(partition_of(node).log)) < 40
    node.broker.stop(clean=False)


def test_a_topic_made_again_does_not_inherit_the_checkpoint(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS)
    node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    assert first_dirty(node) == {}
    node.create("t", **SMALL)
    write_dirty(node)
    node.clock.advance_ms(BACKOFF_MS)
    assert first_dirty(node).keys() == {TopicPartition("t", 0)}


def test_a_damaged_log_is_reported_once_and_others_are_cleaned(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        node.create(name, **SMALL)
        write_dirty(node, name)
    path = partition_of(node, "bad").log.segments[0].log_file.path
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR, "oncelog.cleaner"):
        node.clock.advance_ms(10 * BACKOFF_MS)
    assert len([record for record in caplog.records if "bad-0 cannot be cleaned" in record.message]) == 1
    assert len(survivors(partition_of(node, "good").log)) < 10


def test_a_damaged_transaction_index_is_rebuilt_first(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    log = partition_of(node).log
    append_txn(log, 5)
    end_txn(log, 5, commit=False)
    partition_of(node).advance_high_watermark(log.log_end_offset)
    index = log.folder / f"{log.segments[-1].base_offset:020d}.txnindex"
    write_dirty(node)
    index.write_bytes(index.read_bytes()[:-3])
    node.clock.advance_ms(3 * BACKOFF_MS)
    assert "k" not in values(node)
    assert node.broker.cleaner.passes == 1


def test_segments_deleted_during_a_cleaning_make_it_try_again(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    worker = hold_worker(node)
    node.clock.advance_ms(BACKOFF_MS)
    log = partition_of(node).log
    work_until_segment_is_cleaned(worker, log.folder)
    log.delete_records(log.segments[2].base_offset)
    worker.finish(node.clock)
    assert not list(log.folder.glob("*.cleaned"))
    assert node.broker.cleaner.passes == 0
    assert values(node)["k1"] == "19"
    node.clock.advance_ms(2 * BACKOFF_MS)
    worker.finish(node.clock)
    assert node.broker.cleaner.passes == 1
    assert len(survivors(log)) < 10


def test_a_topic_deleted_during_its_cleaning_stays_deleted(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    worker = hold_worker(node)
    node.clock.advance_ms(BACKOFF_MS)
    folder = partition_of(node).log.folder
    work_until_segment_is_cleaned(worker, folder)
    deleted = node.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    worker.finish(node.clock)
    assert deleted.value.responses[0].error_code == 0
    node.clock.advance_ms(2 * BACKOFF_MS)
    worker.finish(node.clock)
    assert not folder.exists()
    assert first_dirty(node) == {}
    assert not node.broker.cleaner.uncleanable


def test_a_stop_in_the_middle_is_harmless(node: BrokerInProcess) -> None:
    node.create("t", **SMALL)
    write_dirty(node)
    before = values(node)
    worker = hold_worker(node)
    node.clock.advance_ms(BACKOFF_MS)
    worker.work()
    broker = node.broker
    node.restart()
    worker.finish(node.clock)
    assert broker.cleaner.passes == 0
    assert values(node) == before
    node.clock.advance_ms(BACKOFF_MS)
    assert node.broker.cleaner.passes == 1


def commit(node: BrokerInProcess, group: str, partition: int, offset: int) -> None:
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
            )
        ],
    )
    response = node.call(request, 8)
    assert response.topics[0].partitions[0].error_code == 0


def committed(node: BrokerInProcess, group: str) -> list[int]:
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
    return [partition.committed_offset for partition in node.call(request, 5).topics[0].partitions]


def test_many_commits_leave_little_to_load(node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled down by a hundred: ten thousand commits of a hundred groups, and a bound of a hundredth of the bytes."""
    monkeypatch.setattr(cleaning, "INTERNAL_ACTIVE_BYTES", cleaning.INTERNAL_ACTIVE_BYTES // 100)
    node.create("t", 2)
    for number in range(10_000):
        commit(node, f"g{number % 100}", number // 100 % 2, number)
        if number % 500 == 0:
            node.clock.advance_ms(cleaning.INTERNAL_LOOK_INTERVAL_MS)
    node.clock.advance_ms(cleaning.INTERNAL_LOOK_INTERVAL_MS)
    logs = [log for key, log in node.broker.log_dir.logs.items() if key.topic == GROUP_METADATA_TOPIC]
    assert sum(log.log_end_offset for log in logs) == 10_000
    records = sum(header.records_count for log in logs for header in headers(log))
    assert records < 1_200
    node.restart()
    node.clock.advance_ms(1)
    for group in (0, 42, 99):
        assert committed(node, f"g{group}") == [9_800 + group, 9_900 + group]


def test_offsets_of_a_transaction_survive_the_cleaning_of_their_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the log's own batches, as replayed at a start, with markers that the cleaner has emptied among them."""
    monkeypatch.setattr(cleaning, "INTERNAL_ACTIVE_BYTES", 0)
    node = BrokerInProcess(tmp_path / "data", {**SETTINGS, "log.cleaner.delete.retention.ms": "1"})
    node.create("t", 2)
    commit(node, "g", 0, 1)
    shard = node.broker.groups.partition_for("g")
    in_transaction = build_batch(
        decode_records(read_all(shard.log)),
        timestamp_ms=node.clock.now_ms(),
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    guard = shard.log.producer_state.start_verification(5, 0, 0, supports_epoch_bump=False, now_ms=0)
    shard.append_as_leader(in_transaction, now_ms=node.clock.now_ms(), origin=Origin.COORDINATOR, guard=guard)
    end_txn(shard.log, 5, commit=True, epoch=1)
    shard.advance_high_watermark(shard.log.log_end_offset)
    commit(node, "g", 0, 2)
    for turn in range(6):
        for _ in range(8):
            commit(node, "g", 1, turn)
        node.clock.advance_ms(BACKOFF_MS)
    assert any(header.is_control and not header.records_count for header in headers(shard.log))
    node.restart()
    node.clock.advance_ms(1)
    assert committed(node, "g") == [2, 5]
    node.broker.stop(clean=False)


def test_internal_logs_are_rolled_and_cleaned_in_turn_beginning_with_the_largest(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaning, "INTERNAL_ACTIVE_BYTES", 100)
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    count = node.broker.metadata.topics[GROUP_METADATA_TOPIC].partition_count
    shards = [node.broker.partitions.get(GROUP_METADATA_TOPIC, index) for index in range(count)]
    for turns, shard in zip((2, 9, 5, 3), shards, strict=True):
        for number in range(turns):
            data = keyed(("k", str(number)), timestamp=node.clock.now_ms())
            shard.append_as_leader(data, now_ms=node.clock.now_ms(), origin=Origin.COORDINATOR)
    worker = hold_worker(node)
    node.clock.advance_ms(cleaning.INTERNAL_LOOK_INTERVAL_MS)
    assert [len(shard.log.segments) for shard in shards] == [1, 2, 1, 1]
    with caplog.at_level(logging.INFO, "oncelog.cleaner"):
        worker.finish(node.clock)
    cleaned = [record.message.partition(":")[0] for record in caplog.records if "cleaned" in record.message]
    assert cleaned == [f"{GROUP_METADATA_TOPIC}-{index}" for index in (1, 2, 3, 0)]


def test_a_burst_of_commits_after_a_long_rest_is_noticed_soon(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "INTERNAL_ACTIVE_BYTES", 100)
    node.until(node.broker.internal_topic(GROUP_METADATA_TOPIC))
    node.clock.advance_ms(20 * BACKOFF_MS)
    write_dirty(node, GROUP_METADATA_TOPIC)
    node.clock.advance_ms(cleaning.INTERNAL_LOOK_INTERVAL_MAX_MS)
    assert node.broker.cleaner.passes == 1
