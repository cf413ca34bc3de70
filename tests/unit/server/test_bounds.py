"""What clients can make a broker keep is bounded, by settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from oncelog.coordinator.group.member import MEMBER_BYTES
from oncelog.coordinator.group.offsets import memory_of
from oncelog.core.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_groups import DeleteGroupsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.server.producer_room import IDLE_MS
from oncelog.server.txn_runtime import PARTITION_BYTES
from tests.unit.server.conftest import FEW_PARTITIONS
from tests.unit.server.harness import BrokerInProcess, batch_of
from tests.unit.server.held_worker import HeldWorker, hold_metadata
from tests.unit.server.test_transactions import Producer

SETTINGS = {
    **FEW_PARTITIONS,
    "oncelog.partitions.max": "10",
    "oncelog.transactional.ids.max": "3",
    "oncelog.group.waiting.members.max": "5",
    "oncelog.group.metadata.max.bytes": str(3 * MEMBER_BYTES),
    "transactional.id.expiration.ms": "60000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}


_numbers = itertools.count()


def create(node: BrokerInProcess, *counts: int, validate_only: bool = False) -> list[int]:
    topics = [CreatableTopic(name=f"t{next(_numbers)}", num_partitions=count, replication_factor=1) for count in counts]
    answer = node.call(CreateTopicsRequest(topics=topics, validate_only=validate_only), 7)
    return [topic.error_code for topic in answer.topics]


def partitions_in_all(node: BrokerInProcess) -> int:
    return sum(topic.partition_count for topic in node.broker.metadata.topics.values())


def test_partitions_in_all(node: BrokerInProcess) -> None:
    assert create(node, 4, 4, 4, 2) == [0, 0, ErrorCode.POLICY_VIOLATION, 0], "also of one request"
    first, second, _ = list(node.broker.metadata.topics)
    assert create(node, 1, validate_only=True) == [ErrorCode.POLICY_VIOLATION]
    grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=first, count=5, assignments=None)])
    assert node.call(grow, 3).results[0].error_code == ErrorCode.POLICY_VIOLATION
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
    assert node.call(asked, 12).topics[0].error_code == ErrorCode.POLICY_VIOLATION
    assert node.call(DeleteTopicsRequest(topic_names=[second]), 5).responses[0].error_code == 0
    assert node.call(grow, 3).results[0].error_code == 0
    node.restart()
    assert partitions_in_all(node) == 7
    assert create(node, 3, 1) == [0, ErrorCode.POLICY_VIOLATION]


def test_transactional_ids(node: BrokerInProcess) -> None:
    def init(name: str) -> int:
        code: int = Producer(node, name).init().value.error_code
        return code

    assert [init(f"id-{number}") for number in range(5)] == [0, 0, 0, *[ErrorCode.POLICY_VIOLATION] * 2]
    assert init("id-1") == 0, "one that is known"
    node.clock.advance_ms(70_000)
    assert init("id-9") == 0, "the others have expired"


def test_partitions_of_all_transactions(tmp_path: Path) -> None:
    room = 20 * PARTITION_BYTES
    node = BrokerInProcess(tmp_path, {**FEW_PARTITIONS, "oncelog.transactional.ids.max.bytes": str(room)})
    node.create("t", 30)
    producers = [Producer(node, name) for name in ("a", "b")]
    for producer in producers:
        producer.init()
        node.clock.advance_ms(0)

    def add(producer: Producer, *indexes: int) -> set[int]:
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.pid,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(indexes))],
        )
        (topic,) = node.call(asked, 3).results_by_topic_v3_and_below
        return {each.partition_error_code for each in topic.results_by_partition}

    first, second = producers
    assert add(first, *range(25)) == {ErrorCode.POLICY_VIOLATION}
    assert add(first, *range(12)) == {0}
    assert add(second, *range(12)) == {ErrorCode.POLICY_VIOLATION}, "of all together"
    assert add(first, *range(12)) == {0}, "those that are there already"
    first.end(True)
    node.clock.advance_ms(100)
    assert add(second, *range(12)) == {0}, "one that has ended takes no room"
    node.restart()
    first.init()
    node.clock.advance_ms(0)
    assert add(first, *range(12)) == {ErrorCode.POLICY_VIOLATION}, "also those that were there at the start count"


def writer(node: BrokerInProcess) -> Callable[..., int]:
    """Writes as a producer to a partition of `a`, and returns the error code."""
    node.create("a", 2)
    sequences: dict[tuple[int, int], int] = {}

    def write(producer_id: int, index: int = 0) -> int:
        sequence = sequences.get((producer_id, index), 0)
        batch = batch_of([b"v"], timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        data = PartitionProduceData(index=index, records=batch)
        topics = [TopicProduceData(name="a", partition_data=[data])]
        answer = node.call(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics), 9)
        code: int = answer.responses[0].partition_responses[0].error_code
        sequences[producer_id, index] = sequence + (code == 0)
        return code

    return write


def test_producers_of_one_partition(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path, {"oncelog.partition.producer.ids.max": "10"})
    write = writer(node)
    assert [write(number) for number in range(1, 13)] == [0] * 10 + [ErrorCode.POLICY_VIOLATION] * 2
    assert [write(1), write(11, 1)] == [0, 0], "one that the partition knows, and another partition"
    node.clock.advance_ms(2 * IDLE_MS)
    assert write(12) == 0, "those that were idle are forgotten"


def test_producers_of_all_partitions(tmp_path: Path) -> None:
    node = BrokerInProcess(tmp_path, {"oncelog.producer.ids.max": "10"})
    write = writer(node)
    assert [write(number) for number in range(1, 7)] == [0] * 6
    assert [write(number, 1) for number in range(1, 7)] == [0] * 4 + [ErrorCode.POLICY_VIOLATION] * 2
    node.restart()
    assert write(3) == 0, "one that the partition knows goes on"
    assert write(5, 1) == ErrorCode.POLICY_VIOLATION, "also those that were there at the start count"
    node.clock.advance_ms(IDLE_MS - 1_000)
    assert write(3) == 0
    node.clock.advance_ms(IDLE_MS)
    assert [write(number) for number in (3, 7, 8)] == [0, 0, 0], "those that were idle are forgotten"


def join(
    node: BrokerInProcess,
    group: str,
    metadata: bytes = b"",
    version: int = 5,
    instance_id: str | None = None,
    client_id: str = "test",
) -> int:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        group_instance_id=instance_id,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    answer = node.send(request, version, client_id)
    node.clock.advance_ms(10)
    code: int = answer.value.error_code if answer.done else ErrorCode.NONE
    return code


def test_members_that_wait_for_their_id(node: BrokerInProcess) -> None:
    codes = [join(node, "g") for _ in range(7)]
    assert codes == [*[ErrorCode.MEMBER_ID_REQUIRED] * 5, *[ErrorCode.GROUP_MAX_SIZE_REACHED] * 2]
    node.clock.advance_ms(11_000)
    assert join(node, "g") == ErrorCode.MEMBER_ID_REQUIRED, "the others have gone"


@pytest.mark.parametrize("is_first", [True, False])
def test_bytes_that_members_tell_of_themselves(tmp_path: Path, is_first: bool) -> None:
    node = BrokerInProcess(tmp_path / "data", SETTINGS)
    if not is_first:
        assert join(node, "g", bytes(500), version=3) == 0
        assert join(node, "g", bytes(MEMBER_BYTES - 2_000), version=3) == 0
    assert join(node, "g", bytes(2 * MEMBER_BYTES + 1), version=3) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(node, "g", bytes(500), version=3) == (0 if is_first else ErrorCode.GROUP_MAX_SIZE_REACHED)
    node.broker.stop(clean=False)


def test_partitions_of_changes_that_are_on_their_way_count(node: BrokerInProcess) -> None:
    worker = HeldWorker()
    hold_metadata(node, worker)
    requests = [
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=6, replication_factor=1)])
        for name in ("a", "b", "c")
    ]
    answers = [node.send(request, 7) for request in requests]
    worker.finish(node.clock)
    codes = [answer.value.topics[0].error_code for answer in answers]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    together = [CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in ("d", "e")]
    answer = node.send(CreateTopicsRequest(topics=together), 7)
    worker.finish(node.clock)
    assert [topic.error_code for topic in answer.value.topics] == [0, ErrorCode.POLICY_VIOLATION]
    assert partitions_in_all(node) == 9


def test_bytes_of_transactional_ids(node: BrokerInProcess) -> None:
    def init(name: str) -> int:
        code: int = Producer(node, name).init().value.error_code
        return code

    node.broker.transactions._id_bytes_max = 1_000
    assert [init("a" * 900), init("b" * 200), init("b" * 50)] == [0, ErrorCode.POLICY_VIOLATION, 0]
    node.clock.advance_ms(70_000)
    assert init("b" * 200) == 0, "the others have expired"


def commit(node: BrokerInProcess, group: str, metadata: str = "") -> int:
    return commit_to(node, group, [0], metadata)[0]


def commit_to(node: BrokerInProcess, group: str, indexes: Iterable[int], metadata: str = "") -> list[int]:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata=metadata)
        for index in indexes
    ]
    topics = [OffsetCommitRequestTopic(name="committed", partitions=partitions)]
    answer = node.call(OffsetCommitRequest(group_id=group, topics=topics), 8)
    return [partition.error_code for partition in answer.topics[0].partitions]


def test_groups_in_all(node: BrokerInProcess) -> None:
    node.create("committed")
    node.broker.groups._groups_max = 2
    assert [join(node, "a", version=3), commit(node, "b")] == [0, 0]
    assert [join(node, "c", version=3), commit(node, "d")] == [ErrorCode.POLICY_VIOLATION] * 2
    assert [join(node, "a", version=3), commit(node, "b")] == [0, 0], "those that are known"


def test_bytes_of_all_committed_offsets(node: BrokerInProcess) -> None:
    node.create("committed", 4)
    limit_bytes = node.broker.groups._offset_bytes_max = 3 * memory_of("committed", "m" * 1_000)
    refused = ErrorCode.POLICY_VIOLATION
    assert commit_to(node, "a", [0, 1], "m" * 1_000) == [0, 0]
    assert commit_to(node, "b", [0, 1], "m" * 1_000) == [0, refused], "of all groups together"
    assert commit_to(node, "a", [0, 1], "n" * 1_000) == [0, 0], "those that take the place of others"
    assert commit(node, "a", "m" * 1_001) == refused
    assert commit(node, "new group") == refused
    assert commit(node, "a") == 0, "shorter metadata"
    assert commit_to(node, "b", [2, 3]) == [0, refused], "in its place"
    node.restart()
    node.broker.groups._offset_bytes_max = limit_bytes
    assert commit(node, "a", "m" * 1_000) == refused, "what was loaded counts"
    assert node.call(DeleteGroupsRequest(groups_names=["b"]), 2).results[0].error_code == 0
    assert commit(node, "a", "m" * 1_000) == 0


def test_bytes_of_offsets_in_transactions(node: BrokerInProcess) -> None:
    node.create("committed", 2)
    node.broker.groups._offset_bytes_max = 2 * memory_of("committed", "")
    assert commit(node, "g") == 0
    producer, other = Producer(node, "id"), Producer(node, "other")
    assert [made.init().value.error_code for made in (producer, other)] == [0, 0]
    assert commit_in_transaction(node, producer, [0, 1]) == [0, 0]
    assert commit_in_transaction(node, other, [0]) == [ErrorCode.POLICY_VIOLATION], "a second pending one"
    producer.end(True)
    assert sum(live.shard.commits.held_bytes for live in node.broker.groups.shards) == 2 * memory_of("committed", "")
    assert commit_in_transaction(node, producer, [0, 1]) == [0, 0], "one that takes the place of another"


def commit_in_transaction(node: BrokerInProcess, producer: Producer, indexes: Iterable[int]) -> list[int]:
    partitions = [TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in indexes]
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id="g",
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name="committed", partitions=partitions)],
    )
    answer = node.call(request, 5)
    return [partition.error_code for partition in answer.topics[0].partitions]


def test_bytes_of_all_groups(node: BrokerInProcess) -> None:
    node.broker.groups._bytes_max = 2 * MEMBER_BYTES
    assert join(node, "a", bytes(900), version=3) == 0
    assert join(node, "b", bytes(900), version=3) == ErrorCode.POLICY_VIOLATION
    node.clock.advance_ms(700_000)
    assert join(node, "b", bytes(900), version=3) == 0, "the member of the other has not come back"


def test_joins_that_were_refused_take_no_room_from_others(node: BrokerInProcess) -> None:
    node.broker.groups._bytes_max = 20 * MEMBER_BYTES
    assert [join(node, "a", bytes(4 * MEMBER_BYTES), version=3) for _ in range(10)] == [
        ErrorCode.GROUP_MAX_SIZE_REACHED
    ] * 10
    assert join(node, "b", version=3) == 0


def test_ids_of_members_count(tmp_path: Path) -> None:
    """Also of those that have not come back with them, and the name of a client beside the id of an instance."""
    node = BrokerInProcess(tmp_path / "data", {**FEW_PARTITIONS, "oncelog.group.metadata.max.bytes": "1000000"})
    long = "c" * 30_000
    codes = [join(node, "new", client_id=long) for _ in range(40)]
    assert codes[0] == ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED
    codes = [join(node, "static", version=5, instance_id=f"i{number}", client_id=long) for number in range(40)]
    assert (codes[0], codes[-1]) == (0, ErrorCode.GROUP_MAX_SIZE_REACHED)
