"""Batches of few bytes that hold many records, and batches whose records are not what the header says."""

from __future__ import annotations

import gc
import logging
import struct
from typing import Any

import google_crc32c
import pytest

from oncelog.cluster.partition import Partition
from oncelog.core.codec import Codec
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.promise import Promise
from oncelog.core.worker import InlineWorker
from oncelog.protocol.batch import HEADER_BYTES, Record, build_batch, decode_records, pack_batch, read_header
from oncelog.protocol.compression import compress
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.storage.batch_times import SHORT_HEADERS_MAX, BatchTimesCache, read_times
from oncelog.storage.batch_times import SHORT_RECORDS_MAX as TIMES_SHORT_RECORDS_MAX
from oncelog.storage.record_examination import NAMED_RECORDS_MAX, SHORT_RECORDS_MAX, UNPACKED_BYTES_MAX
from tests.unit.server.harness import BrokerInProcess
from tests.unit.server.held_worker import HeldWorker
from tests.unit.server.test_produce_fetch import fetch_request, only_partition
from tests.unit.server.test_transactions import Producer

MANY = 3 * SHORT_RECORDS_MAX
YEAR_MS = 365 * 86_400_000


def many(timestamp_ms: int, *, count: int = MANY, key: bytes | None = b"k", codec: int = Codec.ZSTD) -> bytes:
    return build_batch([Record(n, 0, key, None) for n in range(count)], timestamp_ms=timestamp_ms, codec=codec)


def request_of(topic: str, data: bytes, acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=data)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )


def send(node: BrokerInProcess, topic: str, data: bytes) -> Promise[Any]:
    return node.send(request_of(topic, data), 9).map(lambda answer: answer.responses[0].partition_responses[0])


def produced(node: BrokerInProcess, topic: str, data: bytes) -> Any:
    promise = send(node, topic, data)
    assert promise.done
    return promise.value


def changed(batch: bytes, **fields: Any) -> bytes:
    """The batch with other numbers in its header, or another section, and a checksum that fits them."""
    header = read_header(batch)._replace(**{name: value for name, value in fields.items() if name != "section"})
    section = fields.get("section", batch[HEADER_BYTES:])
    plain = pack_batch(
        section,
        header.records_count,
        attributes=0,
        last_offset_delta=header.last_offset_delta,
        timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
        base_offset=0,
        leader_epoch=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    out = bytearray(plain)
    struct.pack_into(">h", out, 21, header.attributes)
    struct.pack_into(">I", out, 17, google_crc32c.value(bytes(out[21:])))
    return bytes(out)


def hold_long_reads(node: BrokerInProcess) -> HeldWorker:
    worker = HeldWorker()
    node.broker.long_reads._worker = worker
    return worker


def test_an_answer_names_a_few_records_at_fault_and_how_many_there_are(node: BrokerInProcess) -> None:
    node.create("t")
    node.create("compacted", cleanup_policy="compact")
    late = produced(node, "t", many(node.clock.now_ms() + YEAR_MS))
    assert late.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in late.record_errors] == list(range(NAMED_RECORDS_MAX))
    assert f"{MANY - NAMED_RECORDS_MAX} more" in late.error_message
    keyless = produced(node, "compacted", many(node.clock.now_ms(), key=None))
    assert keyless.error_code == ErrorCode.INVALID_RECORD
    assert len(keyless.record_errors) == NAMED_RECORDS_MAX
    assert str(MANY) in keyless.error_message


@pytest.mark.parametrize(
    ("settings_of_topic", "ahead_ms", "wanted"),
    [
        ({"cleanup_policy": "compact"}, 0, ErrorCode.NONE),
        ({"compression_type": "lz4"}, 0, ErrorCode.NONE),
        ({}, YEAR_MS, ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=["compacted", "compressed anew", "timestamps"],
)
def test_many_records_are_looked_at_by_a_worker(
    node: BrokerInProcess, settings_of_topic: dict[str, str], ahead_ms: int, wanted: ErrorCode
) -> None:
    node.create("t", **settings_of_topic)
    worker = hold_long_reads(node)
    waiting = send(node, "t", many(node.clock.now_ms() + ahead_ms))
    assert not waiting.done
    assert produced(node, "t", many(node.clock.now_ms(), count=3)).base_offset == 0, "others are served meanwhile"
    worker.finish(node.clock)
    assert waiting.value.error_code == wanted
    if not wanted:
        assert waiting.value.base_offset == 3
        records = only_partition(node.call(fetch_request(node, {("t", 0): 3}), 11)).records
        assert len(decode_records(records)) == MANY


def test_few_bytes_that_unfold_into_many_are_left_to_a_worker(node: BrokerInProcess) -> None:
    node.create("t", compression_type="lz4")
    worker = hold_long_reads(node)
    zeros = build_batch([Record(0, 0, None, bytes(8 << 20))], timestamp_ms=node.clock.now_ms(), codec=Codec.ZSTD)
    waiting = send(node, "t", zeros)
    assert not waiting.done
    worker.finish(node.clock)
    assert waiting.value.error_code == ErrorCode.NONE


def test_long_looks_are_taken_one_after_the_other(node: BrokerInProcess) -> None:
    node.create("t", cleanup_policy="compact")
    worker = hold_long_reads(node)
    waiting = [send(node, "t", many(node.clock.now_ms())) for _ in range(4)]
    assert len(worker.jobs) == 1
    worker.finish(node.clock)
    assert [promise.value.base_offset for promise in waiting] == [0, MANY, 2 * MANY, 3 * MANY]


def test_a_topic_that_is_deleted_meanwhile_answers_so(node: BrokerInProcess) -> None:
    node.create("t", cleanup_policy="compact")
    worker = hold_long_reads(node)
    waiting = send(node, "t", many(node.clock.now_ms()))
    node.delete("t")
    node.clock.advance_ms(0)
    worker.finish(node.clock)
    assert waiting.value.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_batch_without_acknowledgement_is_looked_at_too(node: BrokerInProcess) -> None:
    node.create("t", cleanup_policy="compact")
    worker = hold_long_reads(node)
    unanswered = node.send(request_of("t", many(node.clock.now_ms()), acks=0), 9)
    worker.finish(node.clock)
    assert unanswered.value is None
    assert node.broker.partitions.get("t", 0).log.log_end_offset == MANY


def test_an_append_that_fails_unexpectedly_after_a_long_look_is_answered(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t", cleanup_policy="compact")
    worker = hold_long_reads(node)
    waiting = send(node, "t", many(node.clock.now_ms()))

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(node.broker.partitions.get("t", 0).log, "append", fail)
    worker.finish(node.clock)
    assert waiting.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_records_of_a_batch_are_bounded(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms()
    set_dynamically(node, "oncelog.batch.records.max", "100")
    assert produced(node, "t", many(now_ms, count=100)).error_code == ErrorCode.NONE
    refused = produced(node, "t", many(now_ms, count=101))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "oncelog.batch.records.max=100" in refused.error_message


def set_dynamically(node: BrokerInProcess, name: str, value: str) -> None:
    resource = AlterConfigsResource(
        resource_type=4,
        resource_name="",
        configs=[AlterableConfig(name=name, config_operation=0, value=value)],
    )
    answer = node.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer.responses[0].error_message


def lying(now_ms: int) -> dict[str, bytes]:
    """Batches whose checksum is right, by the least setting that refuses them."""
    good = build_batch([Record(n, 0, b"k", b"v") for n in range(3)], timestamp_ms=now_ms)
    section = bytearray(good[HEADER_BYTES:])
    longer, wrong_key, wrong_delta = bytearray(section), bytearray(section), bytearray(section)
    longer[0] += 2
    wrong_key[4] += 20
    wrong_delta[3] += 2
    return {
        "batch": changed(good, records_count=2**31 - 1, last_offset_delta=2**31 - 2),
        "batch, zstd": changed(good, attributes=int(Codec.ZSTD)),
        "lengths": changed(good, section=bytes(longer)),
        "lengths, one more": changed(good, section=bytes(section) + b"\0"),
        "records, key": changed(good, section=bytes(wrong_key)),
        "records, offset": changed(good, section=bytes(wrong_delta)),
    }


@pytest.mark.parametrize("validation", ["batch", "lengths", "records"])
def test_what_is_refused_at_the_door_follows_the_setting(node: BrokerInProcess, validation: str) -> None:
    node.create("t")
    set_dynamically(node, "oncelog.record.validation", validation)
    levels = ["batch", "lengths", "records"]
    seen = levels[: levels.index(validation) + 1]
    for name, batch in lying(node.clock.now_ms()).items():
        is_refused = produced(node, "t", batch).error_code != ErrorCode.NONE
        assert is_refused == (name.partition(",")[0] in seen), f"{name} with {validation}"


def test_the_largest_timestamp_is_computed_where_records_are_looked_at(node: BrokerInProcess) -> None:
    node.create("t")
    set_dynamically(node, "oncelog.record.validation", "records")
    now_ms = node.clock.now_ms()
    lie = changed(build_batch([Record(0, 0, b"k", b"v")], timestamp_ms=now_ms), max_timestamp=now_ms + 1000)
    assert produced(node, "t", lie).error_code == ErrorCode.NONE
    stored = only_partition(node.call(fetch_request(node, {("t", 0): 0}), 11)).records
    assert read_header(stored).max_timestamp == now_ms


def beyond_all_times(now_ms: int, codec: int = Codec.NONE) -> bytes:
    """The second of its records has a time that no field can hold."""
    records = [Record(0, 0, b"k", b"v"), Record(1, 2**63 - 1, b"k", b"v")]
    batch = build_batch(records, timestamp_ms=0, codec=codec)
    return changed(batch, base_timestamp=now_ms, max_timestamp=now_ms)


def test_a_time_beyond_all_times_is_refused_where_records_are_looked_at(node: BrokerInProcess) -> None:
    node.create("t", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    refused = produced(node, "t", beyond_all_times(node.clock.now_ms()))
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP


# ListOffsets by time


def test_a_time_beyond_all_times_does_not_keep_others_from_being_found(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms()
    assert produced(node, "t", beyond_all_times(now_ms)).error_code == ErrorCode.NONE
    assert ask_for(node, now_ms).value == (now_ms, 0)
    assert ask_for(node, OffsetSpec.MAX_TIMESTAMP).value == (now_ms, 0)


def ask_for(node: BrokerInProcess, timestamp: int) -> Promise[tuple[int, int]]:
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])

    def told(answer: Any) -> tuple[int, int]:
        found = answer.topics[0].partitions[0]
        assert found.error_code == ErrorCode.NONE
        return found.timestamp, found.offset

    return node.send(ListOffsetsRequest(topics=[topic]), 7).map(told)


def growing(timestamp_ms: int, count: int = MANY) -> bytes:
    """One record each millisecond."""
    records = [Record(number, number, b"k", None) for number in range(count)]
    return build_batch(records, timestamp_ms=timestamp_ms, codec=Codec.ZSTD)


def test_a_time_within_many_records_is_found_by_a_worker_and_known_from_then_on(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms() - MANY
    produced(node, "t", growing(now_ms))
    worker = hold_long_reads(node)
    for timestamp, wanted in ((now_ms + 9_000, (now_ms + 9_000, 9_000)), (OffsetSpec.MAX_TIMESTAMP, None)):
        waiting = ask_for(node, timestamp)
        assert not waiting.done or wanted is None
        worker.finish(node.clock)
        assert waiting.value == (wanted or (now_ms + MANY - 1, MANY - 1))
    for number in (0, 1, 7_000, MANY - 1):
        assert ask_for(node, now_ms + number).value == (now_ms + number, number), "without a worker"
    assert ask_for(node, now_ms + MANY).value == (-1, -1)


def test_a_look_up_that_fails_after_a_worker_has_read_is_answered(
    node: BrokerInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("t")
    now_ms = node.clock.now_ms() - MANY
    produced(node, "t", growing(now_ms))
    worker = hold_long_reads(node)
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=now_ms + 9_000)])
    waiting = node.send(ListOffsetsRequest(topics=[topic]), 7)

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(Partition, "readable_end", fail)
    worker.finish(node.clock)
    assert waiting.value.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_headers_that_promise_times_which_no_record_has_are_passed_over_in_pieces(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms()
    count = TIMES_SHORT_RECORDS_MAX - 1_000
    liar = changed(
        build_batch([Record(n, 0, b"k", None) for n in range(count)], timestamp_ms=now_ms - 500), max_timestamp=now_ms
    )
    for _ in range(4):
        assert produced(node, "t", liar).error_code == ErrorCode.NONE
    worker = hold_long_reads(node)
    nowhere = ask_for(node, now_ms)
    assert len(worker.jobs) == 1, "the second of them would take it too far"
    worker.finish(node.clock)
    assert nowhere.value == (-1, -1)
    node.produce("t", [b"x"])
    found = ask_for(node, now_ms)
    worker.finish(node.clock)
    assert found.value == (now_ms, 4 * count)


def test_a_long_way_over_headers_is_gone_in_several_turns(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms() - 10_000
    log = node.broker.partitions.get("t", 0).log
    batches = SHORT_HEADERS_MAX + 500
    for _ in range(batches):
        produced(node, "t", build_batch([Record(0, 0, None, b"x")], timestamp_ms=now_ms))
    produced(node, "t", build_batch([Record(0, 0, None, b"x")], timestamp_ms=now_ms + 5))
    assert log.log_end_offset == batches + 1
    waiting = ask_for(node, now_ms + 1)
    assert not waiting.done
    node.clock.advance_ms(0)
    assert waiting.value == (now_ms + 5, batches)


def test_a_look_up_ends_with_its_topic(node: BrokerInProcess) -> None:
    node.create("t")
    now_ms = node.clock.now_ms() - MANY
    liar = changed(growing(now_ms), max_timestamp=now_ms + 2 * MANY)
    assert produced(node, "t", liar).error_code == ErrorCode.NONE
    worker = hold_long_reads(node)
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=now_ms + MANY)])
    waiting = node.send(ListOffsetsRequest(topics=[topic]), 7)
    node.delete("t")
    node.clock.advance_ms(0)
    worker.finish(node.clock)
    assert waiting.value.topics[0].partitions[0].error_code != ErrorCode.NONE


def test_a_batch_that_cannot_be_read_is_found_by_its_header(node: BrokerInProcess) -> None:
    """So that a reader begins with it, and not behind it."""
    node.create("t")
    now_ms = node.clock.now_ms()
    node.produce("t", [b"before"])
    set_dynamically(node, "oncelog.record.validation", "batch")
    assert produced(node, "t", changed(lying(now_ms)["lengths"], max_timestamp=now_ms + 5)).base_offset == 1
    assert ask_for(node, now_ms + 1).value == (now_ms + 5, 1)


def test_what_is_kept_of_times_is_bounded() -> None:
    cache = BatchTimesCache(bytes_max=10_000)
    times = read_times(growing(0, count=50), 0)
    for number in range(100):
        cache.put((TopicPartition("t", 0), number, 0, 0), times)
        assert cache.size_bytes <= 10_000
    assert cache.get((TopicPartition("t", 0), 99, 0, 0)) is times
    assert cache.get((TopicPartition("t", 0), 0, 0, 0)) is None


# Transactions


def long_transactional(producer: Producer, now_ms: int, sequence: int) -> ProduceRequest:
    records = [Record(number, 0, b"k", None) for number in range(MANY)]
    data = build_batch(
        records,
        timestamp_ms=now_ms,
        transactional=True,
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=data)])
    return ProduceRequest(acks=-1, timeout_ms=1000, transactional_id=producer.transactional_id, topic_data=[topic])


@pytest.mark.parametrize("is_first", [True, False], ids=["first of its transaction", "a later one"])
@pytest.mark.parametrize("end", ["commit", "abort", "fence"])
def test_a_transaction_that_ends_while_a_worker_looks_takes_nothing_more(
    node: BrokerInProcess, end: str, is_first: bool
) -> None:
    node.create("t", cleanup_policy="compact,delete")
    producer = Producer(node)
    producer.init()
    sequence = 0
    if not is_first:
        data = build_batch([Record(0, 0, b"k", b"v")], timestamp_ms=node.clock.now_ms(), transactional=True,
                           producer_id=producer.pid, producer_epoch=producer.epoch, base_sequence=0)  # fmt: skip
        topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=data)])
        first = ProduceRequest(acks=-1, timeout_ms=1000, transactional_id=producer.transactional_id, topic_data=[topic])
        assert node.call(first, 12).responses[0].partition_responses[0].error_code == ErrorCode.NONE
        sequence = 1
    worker = hold_long_reads(node)
    waiting = node.send(long_transactional(producer, node.clock.now_ms(), sequence), 12)
    assert not waiting.done
    ended = Producer(node).init() if end == "fence" else producer.end(end == "commit")
    node.clock.advance_ms(10)
    assert ended.value.error_code == ErrorCode.NONE
    worker.finish(node.clock)
    assert waiting.value.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    partition = node.broker.partitions.get("t", 0)
    assert partition.last_stable_offset == partition.high_watermark


REFUSALS = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def refusals_in_memory() -> int:
    """Clients of other tests may still run in this process, and meet errors of their own."""
    return sum(isinstance(each, KafkaError) and each.code in REFUSALS for each in gc.get_objects())


def test_refused_batches_are_freed_without_a_search_for_garbage(
    node: BrokerInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Their errors know the frames that hold the request, and what it unfolds into."""
    caplog.set_level(logging.WARNING, "oncelog.server")  # pytest keeps the errors of all lines that are logged
    node.create("t", compression_type="gzip")
    node.broker.long_reads = InlineWorker()  # type: ignore[assignment]
    too_large = changed(many(node.clock.now_ms()), section=compress(Codec.ZSTD, bytes(UNPACKED_BYTES_MAX + 1)))
    gc.collect()
    gc.disable()
    try:
        before = refusals_in_memory()
        assert produced(node, "t", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert produced(node, "t", many(node.clock.now_ms() + YEAR_MS)).error_code == ErrorCode.INVALID_TIMESTAMP
        stale = node.produce(
            "t", [b"v"], transactional_id="x", producer_id=77, producer_epoch=0, base_sequence=5, transactional=True
        )
        assert stale.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert refusals_in_memory() == before
    finally:
        gc.enable()
