"""The shapes of requests that clients send, and what consumers see in fetched bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from oncelog.client.visibility import IsolationLevel, visible_batches
from oncelog.core.ids import NULL_UUID
from oncelog.protocol.api import decode_response, response_header_version
from oncelog.protocol.batch import Record, build_batch, decode_records, iter_headers, parse_control
from oncelog.protocol.framing import parse_response_header
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

Place = tuple[str, int]
"""A topic and a partition of it."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
FETCH_MAX_BYTES: Final = 1 << 20
TOMBSTONE_MARK: Final = "~"
"""At the end of the name of a record that deletes its key."""
EARLIEST: Final = -2


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int


class Seen(NamedTuple):
    """One record, or one marker, as it lies in a log."""

    offset: int
    producer_id: int
    epoch: int
    transactional: bool
    value: str | None
    marker: Marker | None


def parse_response(key: int, version: int, frame: bytes) -> Any:
    """What the broker answered, as the network sees it: the message in a whole frame, size included."""
    header_version = response_header_version(key, version)
    _, position = parse_response_header(memoryview(frame)[4:], header_version)
    return decode_response(key, version, memoryview(frame), position + 4)


def batch(
    values: Sequence[str],
    identity: Identity | None,
    sequence: int,
    *,
    transactional: bool,
    timestamp_ms: int,
    keys: Sequence[str | None] = (),
) -> bytes:
    """Values are names, unique in a history. `keys`: one for each value; none at all is allowed as well."""
    named = zip(values, keys or [None] * len(values), strict=True)
    return build_batch(
        [_record(i, key, value) for i, (value, key) in enumerate(named)],
        timestamp_ms=timestamp_ms,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.epoch,
        base_sequence=-1 if identity is None else sequence,
        transactional=transactional,
    )


def is_tombstone(value: str) -> bool:
    return value.endswith(TOMBSTONE_MARK)


def _record(number: int, key: str | None, value: str) -> Record:
    """A tombstone has no value to be known by, so its name travels in a header."""
    name = None if key is None else key.encode()
    if is_tombstone(value):
        return Record(number, 0, name, None, (("name", value.encode()),))
    return Record(number, 0, name, value.encode())


def _value_of(record: Record) -> str | None:
    content = record.value
    if content is None and record.headers:
        content = record.headers[0][1]
    return None if content is None else content.decode(errors="replace")


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics


TopicIds = Mapping[str, UUID]
"""For versions that name topics by id: Produce 13 and Fetch 13 and above."""


def produce(
    batches: Mapping[Place, bytes], transactional_id: str | None = None, topic_ids: TopicIds = MappingProxyType({})
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                topic_id=topic_ids.get(topic, NULL_UUID),
                partition_data=[PartitionProduceData(index=index, records=batches[topic, index]) for index in indexes],
            )
            for topic, indexes in _by_topic(batches).items()
        ],
    )


def produce_answers(response: Any, topic_ids: TopicIds = MappingProxyType({})) -> dict[Place, Any]:
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    return {
        (topic.name or names[topic.topic_id], part.index): part
        for topic in response.responses
        for part in topic.partition_responses
    }


def add_partitions(transactional_id: str, identity: Identity, places: Iterable[Place]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in _by_topic(places).items()
        ],
    )


def add_partitions_codes(response: Any) -> set[int]:
    return {
        part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def txn_offset_commit(
    transactional_id: str,
    identity: Identity,
    group_id: str,
    offsets: Mapping[Place, int],
    *,
    generation_id: int = -1,
    member_id: str = "",
) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=generation_id,
        member_id=member_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[topic, index], committed_metadata=""
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(offsets).items()
        ],
    )


def txn_offset_commit_codes(response: Any) -> set[int]:
    return {part.error_code for topic in response.topics for part in topic.partitions}


def offset_fetch(group_id: str, places: Iterable[Place], *, require_stable: bool) -> OffsetFetchRequest:
    """For versions up to 7."""
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
            for topic, indexes in _by_topic(places).items()
        ],
        require_stable=require_stable,
    )


def offset_fetch_answers(response: Any) -> dict[Place, Any]:
    return {(topic.name, part.partition_index): part for topic in response.topics for part in topic.partitions}


def fetch(
    positions: Mapping[Place, int],
    isolation_level: int,
    *,
    max_wait_ms: int = 0,
    max_bytes: int = FETCH_MAX_BYTES,
    topic_ids: TopicIds = MappingProxyType({}),
) -> FetchRequest:
    """Without a session."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=topic_ids.get(topic, NULL_UUID),
                partitions=[
                    FetchPartition(partition=index, fetch_offset=positions[topic, index], partition_max_bytes=max_bytes)
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(positions).items()
        ],
    )


def fetch_answers(response: Any, topic_ids: TopicIds = MappingProxyType({})) -> dict[Place, Any]:
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    return {
        (topic.topic or names[topic.topic_id], part.partition_index): part
        for topic in response.responses
        for part in topic.partitions
    }


def delete_records(place: Place, offset: int) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=place[1], offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=place[0], partitions=[partition])], timeout_ms=1_000)


def list_offsets(
    place: Place, timestamp: int = EARLIEST, isolation_level: int = READ_UNCOMMITTED
) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=place[1], timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=place[0], partitions=[wanted])],
    )


def markers(
    place: Place, identity: Identity, commit: bool, coordinator_epoch: int, transaction_version: int
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                transaction_result=commit,
                topics=[WritableTxnMarkerTopic(name=place[0], partition_indexes=[place[1]])],
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        ]
    )


def records_in(data: bytes | memoryview) -> list[Seen]:
    """Everything in whole batches, markers and aborted data included."""
    seen: list[Seen] = []
    for position, header in iter_headers(data):
        pid, epoch, transactional = header.producer_id, header.producer_epoch, header.is_transactional
        if header.is_control and header.records_count == 0:
            continue  # compaction leaves the header of a producer's last marker
        if header.is_control:
            control = parse_control(data, position)
            marker = Marker(control.is_commit, control.coordinator_epoch)
            seen.append(Seen(header.base_offset, pid, epoch, transactional, None, marker))
            continue
        for record in decode_records(data, position):
            offset = header.base_offset + record.offset_delta
            seen.append(Seen(offset, pid, epoch, transactional, _value_of(record), None))
    return seen


def filtered(partition: PartitionData, position: int) -> tuple[list[Seen], int]:
    """What the product's read_committed consumer hands to its user, and where it goes on."""
    data = memoryview(partition.records or b"")
    seen = visible_batches(data, position, partition.aborted_transactions, IsolationLevel.READ_COMMITTED)
    batches = (records_in(data[at : at + header.size_bytes]) for at, header in seen.batches)
    return [record for records in batches for record in records if record.offset >= position], seen.next_offset
