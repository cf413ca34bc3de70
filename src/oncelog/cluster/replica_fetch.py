"""What a leader answers to the fetch of a follower: records up to the end of its log, or where their logs part.

A fetch acknowledges everything below its offset, but only if the logs agree up to there. So the state of the follower
is updated after its last epoch was compared, and never by a fetch that diverges. Updating it may move the high
watermark, which the answer then tells.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from oncelog.cluster.partition import Partition
from oncelog.cluster.replicas import ReplicaFetch
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.protocol.messages.fetch import EpochEndOffset, PartitionData
from oncelog.protocol.primitives import Readable


class Wanted(Protocol):
    """What a follower asks for: `FetchPartition`, or what a fetch session keeps of it."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class Fetcher(NamedTuple):
    """The broker that follows."""

    broker_id: NodeId
    broker_epoch: int


def answer_replica(
    partition: Partition,
    wanted: Wanted,
    fetcher: Fetcher,
    *,
    now_ms: int,
    max_bytes: int,
    must_progress: bool = True,
    is_repetition: bool = False,
) -> PartitionData:
    """Raises KafkaError. `is_repetition` says that this fetch was looked at before and is only read again."""
    _check(partition, wanted, fetcher)
    log = partition.log
    offset = wanted.fetch_offset
    if offset < log.log_start_offset:
        raise _out_of_range(partition, offset)
    diverging = log.divergence(wanted.last_fetched_epoch, offset) if wanted.last_fetched_epoch >= 0 else None
    if diverging is not None:
        data = _data(partition, wanted)
        data.diverging_epoch = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
        return data
    if offset > log.log_end_offset:
        raise _out_of_range(partition, offset)
    if not is_repetition:
        fetch = ReplicaFetch(offset, wanted.log_start_offset, fetcher.broker_epoch)
        partition.on_replica_fetch(fetcher.broker_id, fetch, now_ms)
    return _data(partition, wanted, _read(partition, wanted, max_bytes, must_progress))


def _check(partition: Partition, wanted: Wanted, fetcher: Fetcher) -> None:
    partition.check_leader_epoch(wanted.current_leader_epoch)
    partition.check_leads()
    if partition.replicas is not None:
        partition.replicas.check_replica(fetcher.broker_id)


def _read(partition: Partition, wanted: Wanted, max_bytes: int, must_progress: bool) -> Readable:
    log = partition.log
    max_bytes = min(wanted.partition_max_bytes, max_bytes)
    if wanted.fetch_offset == log.log_end_offset or (max_bytes <= 0 and not must_progress):
        return b""
    return log.read(
        wanted.fetch_offset, max(0, max_bytes), end_offset=log.log_end_offset, min_one_batch=must_progress
    ).data


def _data(partition: Partition, wanted: Wanted, records: Readable = b"") -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=records,
    )


def _out_of_range(partition: Partition, offset: int) -> KafkaError:
    log = partition.log
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{partition.topic_partition} has offsets {log.log_start_offset} to {log.log_end_offset}, not {offset}",
    )
