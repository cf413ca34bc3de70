from __future__ import annotations

import errno
from typing import Any

import pytest

from oncelog.core.errors import ErrorCode
from oncelog.core.promise import Promise
from oncelog.protocol.batch import decode_records, iter_headers
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.server import turns
from oncelog.storage.segment import Segment
from tests.unit.server.harness import BrokerInProcess, batch_of


def fetch_request(
    node: BrokerInProcess,
    offsets: dict[tuple[str, int], int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    forgotten: list[tuple[str, int]] | None = None,
    **partition: Any,
) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, FetchTopic(topic=name, topic_id=node.topic_id(name)))
        topic.partitions.append(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **partition)
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=list(topics.values()),
        forgotten_topics_data=[
            ForgottenTopic(topic=name, topic_id=node.topic_id(name), partitions=[index])
            for name, index in forgotten or []
        ],
    )


def values_of(records: Any) -> list[bytes | None]:
    return [record.value for position, _ in iter_headers(records) for record in decode_records(records, position)]


def only_partition(response: Any) -> Any:
    return response.responses[0].partitions[0]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_what_was_produced_is_fetched_byte_for_byte(node: BrokerInProcess, version: int) -> None:
    node.create("orders")
    assert node.produce("orders", [b"a", b"b"]).base_offset == 0
    assert node.produce("orders", [b"c"]).base_offset == 2
    partition = only_partition(node.call(fetch_request(node, {("orders", 0): 0}), version))
    assert values_of(partition.records) == [b"a", b"b", b"c"]
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)
    assert partition.aborted_transactions is None


def test_a_fetch_in_the_middle_of_a_batch_gets_the_whole_batch(node: BrokerInProcess) -> None:
    node.create("orders")
    node.produce("orders", [b"a", b"b", b"c"])
    assert values_of(only_partition(node.call(fetch_request(node, {("orders", 0): 2}), 12)).records) == [
        b"a",
        b"b",
        b"c",
    ]


def test_acks_0_has_no_answer_but_the_records_are_there(node: BrokerInProcess) -> None:
    node.create("orders")
    assert node.produce("orders", [b"a"], acks=0) is None
    assert node.produce("orders", [b"b"], acks=1).base_offset == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"topic": "nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "nowhere", "version": 13}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"transactional": True, "producer_id": 5, "producer_epoch": 0, "base_sequence": 0},
         ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"control": True, "producer_id": 5, "producer_epoch": 0}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
    ],
)  # fmt: skip
def test_a_refused_produce_names_its_error_and_appends_nothing(
    node: BrokerInProcess, change: dict[str, Any], code: ErrorCode
) -> None:
    node.create("orders")
    answer = node.produce(**{"topic": "orders", "values": [b"a"], **change})
    assert ErrorCode(answer.error_code) is code
    assert answer.base_offset == -1
    assert node.produce("orders", [b"x"]).base_offset == 0


def test_a_wrong_crc_is_a_corrupt_message(node: BrokerInProcess) -> None:
    node.create("orders")
    data = bytearray(batch_of([b"a"], timestamp_ms=node.clock.now_ms()))
    data[-1] ^= 1
    request = ProduceRequest(
        acks=-1,
        topic_data=[
            TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=bytes(data))])
        ],
    )
    answer = node.call(request, 9).responses[0].partition_responses[0]
    assert ErrorCode(answer.error_code) is ErrorCode.CORRUPT_MESSAGE


def test_a_repeated_batch_is_answered_with_its_first_offset(node: BrokerInProcess) -> None:
    node.create("orders")
    identity = {"producer_id": 5, "producer_epoch": 0}
    for sequence in range(6):
        node.produce("orders", [b"x"], base_sequence=sequence, **identity)
    assert node.produce("orders", [b"x"], base_sequence=3, **identity).base_offset == 3
    too_old = node.produce("orders", [b"x"], base_sequence=0, **identity)
    gap = node.produce("orders", [b"x"], base_sequence=9, **identity)
    assert {too_old.error_code, gap.error_code} == {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert node.produce("orders", [b"x"], base_sequence=6, **identity).base_offset == 6


def test_log_append_time_is_stamped_and_returned(node: BrokerInProcess) -> None:
    node.create("orders", message_timestamp_type="LogAppendTime")
    answer = node.produce("orders", [b"a"])
    assert answer.log_append_time_ms == node.clock.now_ms()
    records = only_partition(node.call(fetch_request(node, {("orders", 0): 0}), 12)).records
    (_, header), *_ = iter_headers(records)
    assert header.timestamp_type_append
    assert header.max_timestamp == node.clock.now_ms()


def test_a_long_poll_ends_with_data(node: BrokerInProcess) -> None:
    node.create("orders")
    waiting = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=500), 12)
    assert not waiting.done
    node.clock.advance_ms(100)
    node.produce("orders", [b"a"])
    node.clock.advance_ms(0)
    assert values_of(only_partition(waiting.value).records) == [b"a"]


def test_a_long_poll_waits_for_min_bytes_or_the_time(node: BrokerInProcess) -> None:
    node.create("orders")
    waiting = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=500, min_bytes=10_000), 12)
    node.produce("orders", [b"a"])
    node.clock.advance_ms(499)
    assert not waiting.done
    node.clock.advance_ms(1)
    assert values_of(only_partition(waiting.value).records) == [b"a"]


def test_a_long_poll_on_a_deleted_topic_ends_with_its_error(node: BrokerInProcess) -> None:
    node.create("orders")
    waiting: Promise[Any] = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=500), 12)
    node.delete("orders")
    node.clock.advance_ms(0)
    assert only_partition(waiting.value).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-1, 4, 2**40])
def test_an_offset_outside_the_log_is_out_of_range(node: BrokerInProcess, offset: int) -> None:
    node.create("orders")
    node.produce("orders", [b"a", b"b", b"c"])
    partition = only_partition(node.call(fetch_request(node, {("orders", 0): offset}), 12))
    assert ErrorCode(partition.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_first_batch_is_returned_whatever_the_limits_say(node: BrokerInProcess) -> None:
    node.create("orders", 2)
    for partition in (0, 1):
        node.produce("orders", [b"x" * 1000], partition=partition)
    response = node.call(
        fetch_request(node, {("orders", 0): 0, ("orders", 1): 0}, max_bytes=10, partition_max_bytes=10), 12
    )
    sizes = [len(partition.records) for partition in response.responses[0].partitions]
    assert sizes[0] > 1000
    assert sizes[1] == 0


def test_leader_epochs_are_checked(node: BrokerInProcess) -> None:
    node.create("orders")
    node.produce("orders", [b"a"])
    node.restart(clean=False)
    node.produce("orders", [b"b"])
    now = node.broker.partitions.get("orders", 0).leader_epoch
    assert now > 0
    codes = [
        only_partition(node.call(fetch_request(node, {("orders", 0): 0}, current_leader_epoch=epoch), 12)).error_code
        for epoch in (-1, 0, now, now + 1)
    ]
    assert codes == [0, ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="orders",
                partitions=[OffsetForLeaderPartition(partition=0, current_leader_epoch=now, leader_epoch=epoch)],
            )
            for epoch in (0, now, now + 4)
        ]
    )
    answers = [topic.partitions[0] for topic in node.call(request, 4).topics]
    assert [(answer.leader_epoch, answer.end_offset) for answer in answers] == [(0, 1), (now, 2), (-1, -1)]


def test_a_reader_that_was_cut_off_is_told_where(node: BrokerInProcess) -> None:
    node.create("orders")
    node.produce("orders", [b"a"])
    node.restart(clean=False)
    node.produce("orders", [b"b"])
    partition = only_partition(node.call(fetch_request(node, {("orders", 0): 2}, last_fetched_epoch=0), 12))
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (0, 1)


def list_offsets(node: BrokerInProcess, timestamp: int, version: int = 7, isolation: int = 0) -> tuple[int, int, int]:
    request = ListOffsetsRequest(
        isolation_level=isolation,
        topics=[
            ListOffsetsTopic(name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
        ],
    )
    answer = node.call(request, version).topics[0].partitions[0]
    return answer.error_code, answer.timestamp, answer.offset


def test_list_offsets_by_time_and_with_special_timestamps(node: BrokerInProcess) -> None:
    node.create("orders")
    start_ms = node.clock.now_ms()
    for _ in range(3):
        node.produce("orders", [b"a", b"b"])
        node.clock.advance_ms(10)
    assert list_offsets(node, -1) == (0, -1, 6)
    assert list_offsets(node, -2) == (0, -1, 0)
    assert list_offsets(node, start_ms + 5) == (0, start_ms + 10, 2)
    assert list_offsets(node, start_ms + 100) == (0, -1, -1)
    assert list_offsets(node, -3) == (0, start_ms + 20, 4)
    assert list_offsets(node, -3, version=6)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert list_offsets(node, -4, version=8) == (0, -1, 0)
    assert list_offsets(node, -5, version=9) == (0, -1, -1)


def test_an_incremental_fetch_session_tells_only_news(node: BrokerInProcess) -> None:
    node.create("orders", 3)
    everything = {("orders", index): 0 for index in range(3)}
    first = node.call(fetch_request(node, everything, session=(0, 0)), 12)
    session_id = first.session_id
    assert session_id > 0
    assert len(first.responses[0].partitions) == 3
    assert node.call(fetch_request(node, {}, session=(session_id, 1)), 12).responses == []
    node.produce("orders", [b"a"], partition=1)
    told = node.call(fetch_request(node, {}, session=(session_id, 2)), 12)
    assert [partition.partition_index for partition in told.responses[0].partitions] == [1]
    moved = node.call(fetch_request(node, {("orders", 1): 1}, session=(session_id, 3)), 12)
    assert moved.responses == []
    node.produce("orders", [b"b"], partition=2)
    forgot = node.call(fetch_request(node, {}, session=(session_id, 4), forgotten=[("orders", 2)]), 12)
    assert forgot.responses == []


def test_fetch_sessions_by_topic_id_forget_and_remember(node: BrokerInProcess) -> None:
    node.create("orders", 2)
    first = node.call(fetch_request(node, {("orders", 0): 0, ("orders", 1): 0}, session=(0, 0)), 13)
    node.produce("orders", [b"a"], partition=0)
    node.produce("orders", [b"b"], partition=1)
    told = node.call(fetch_request(node, {}, session=(first.session_id, 1), forgotten=[("orders", 0)]), 13)
    assert [partition.partition_index for partition in told.responses[0].partitions] == [1]


def test_wrong_session_ids_and_epochs_are_refused(node: BrokerInProcess) -> None:
    node.create("orders")
    assert node.call(fetch_request(node, {}, session=(99, 1)), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session_id = node.call(fetch_request(node, {("orders", 0): 0}, session=(0, 0)), 12).session_id
    assert (
        node.call(fetch_request(node, {}, session=(session_id, 5)), 12).error_code
        == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    )
    node.call(fetch_request(node, {}, session=(session_id, -1)), 12)
    assert (
        node.call(fetch_request(node, {}, session=(session_id, 1)), 12).error_code
        == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


def test_a_patient_reader_costs_no_reads_until_there_is_enough(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("orders", internal_segment_bytes="2000")
    waiting = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=60_000, min_bytes=10_000), 12)
    reads: list[int] = []
    log = node.broker.partitions.get("orders", 0).log
    read = type(log).read

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        reads.append(1)
        return read(self, *arguments, **options)

    monkeypatch.setattr(type(log), "read", counted)
    produced = 0
    while not waiting.done:
        node.produce("orders", [b"x" * 300])
        produced += 1
        node.clock.advance_ms(0)
    assert 10_000 / 400 < produced < 10_000 / 300
    assert len(reads) == 1


def test_the_long_poll_of_a_client_that_is_gone_ends(node: BrokerInProcess) -> None:
    node.create("orders")
    waiting = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=2**31 - 1, min_bytes=1 << 20), 12)
    assert not waiting.done
    node.peer.connected = False
    node.peer.on_gone()
    assert waiting.done


def test_the_largest_timestamp_is_not_told_before_its_transaction_ends(node: BrokerInProcess) -> None:
    node.create("orders")
    partition = node.broker.partitions.get("orders", 0)
    node.produce("orders", [b"a"])
    assert list_offsets(node, -3, isolation=1)[2] == 0
    partition.high_watermark = 0
    assert list_offsets(node, -3, isolation=1) == (0, -1, -1)


def test_a_fetch_that_fails_while_it_waits_closes_its_connection(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("orders")
    promise = node.send(fetch_request(node, {("orders", 0): 0}, max_wait_ms=1000), 12)
    log = node.broker.partitions.get("orders", 0).log

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("injected")

    monkeypatch.setattr(log, "available_bytes", fail)
    node.produce("orders", [b"a"])
    monkeypatch.undo()
    node.clock.advance_ms(2000)
    assert promise.done
    assert promise.value == []
    assert not node.broker.partitions.get("orders", 0)._watchers


def test_a_partition_that_cannot_be_read_while_a_fetch_waits_fails_alone(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has what came in the others. The connection was closed instead."""
    node.create("orders", 2)
    for partition in (0, 1, 1):
        node.produce("orders", [b"a"], partition=partition)
    wanted = {("orders", 0): 0, ("orders", 1): 1}
    waiting = node.send(fetch_request(node, wanted, max_wait_ms=1000, min_bytes=10_000), 12)
    node.broker.partitions.get("orders", 1).log.files.reader.forget_positions()

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(Segment, "find", fail)
    node.produce("orders", [b"b"])
    node.clock.advance_ms(1)
    there, failed = waiting.value.responses[0].partitions
    assert values_of(there.records) == [b"a", b"b"]
    assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("acks", [0, 1])
def test_a_produce_is_appended_to_its_end_also_when_its_client_has_gone(
    node: BrokerInProcess, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks for no answer may close its connection as soon as it has sent all."""
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    node.create("orders", 4)
    data = batch_of([b"a"], timestamp_ms=node.clock.now_ms())
    partitions = [PartitionProduceData(index=index, records=data) for index in range(4)]
    topic = TopicProduceData(name="orders", partition_data=partitions)
    node.send(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic]), 9)
    node.peer.connected = False
    node.clock.advance_ms(10)
    assert [node.broker.partitions.get("orders", index).log.log_end_offset for index in range(4)] == [1] * 4


def test_a_produce_to_many_topics_lets_others_have_their_turn(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    data = batch_of([b"a"], timestamp_ms=node.clock.now_ms())
    names = [f"t{number}" for number in range(5)]
    for name in names:
        node.create(name)
    topics = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=data)]) for name in names
    ]
    waiting = node.send(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 9)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert [topic.partition_responses[0].error_code for topic in waiting.value.responses] == [0] * 5
    alone = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics[:1])
    assert node.send(alone, 9).done, "what is short takes no turn"


def test_offsets_of_many_partitions_are_looked_up_in_pieces(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLICE_MS", 0)
    node.create("orders", 4)
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(4)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=partitions)])
    waiting = node.send(request, 7)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert [answer.offset for answer in waiting.value.topics[0].partitions] == [0] * 4
