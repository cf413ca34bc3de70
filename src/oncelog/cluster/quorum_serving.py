"""The controllers' log for those who follow it: Fetch, FetchSnapshot and DescribeQuorum of `__cluster_metadata`.

The other side of `quorum_log`. Only what is committed is given out, so that nobody who follows has to cut anything. A
controller that is not active says who is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final
from uuid import UUID

from oncelog.cluster.metadata_log import MetadataLog
from oncelog.cluster.quorum_log import TOPIC, TOPIC_ID, Leader
from oncelog.core.errors import ErrorCode
from oncelog.core.named_tuple import NamedTuple
from oncelog.protocol.messages import describe_quorum as quorum
from oncelog.protocol.messages import fetch_snapshot as snapshots
from oncelog.protocol.messages.cluster_metadata import VotersVoter
from oncelog.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from oncelog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from oncelog.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse

_WITH_REPLICA_STATE: Final = 15
_BY_TOPIC_ID: Final = 13
_OBSERVERS_MAX: Final = 10_000
_DESCRIBED_BYTES: Final = 300
"""Memory of a partition in the description of the quorum."""


class Replica(NamedTuple):
    replica_id: int
    directory_id: UUID


class _Progress(NamedTuple):
    end_offset: int
    fetched_ms: int
    caught_up_ms: int


class Answer(NamedTuple):
    response: FetchResponse
    can_wait: bool
    """There is nothing new: the answer may wait until there is, or until the time of the request is over."""


class QuorumServing:
    def __init__(self, log: MetadataLog, cluster_id: str) -> None:
        self._log = log
        self._cluster_id = cluster_id
        self._observers: dict[Replica, _Progress] = {}

    # Fetch

    def fetch(self, request: FetchRequest, version: int, now_ms: int) -> Answer:
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return Answer(FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID), False)
        topics = request.topics
        is_ours = version >= _BY_TOPIC_ID and len(topics) == 1 and topics[0].topic_id == TOPIC_ID
        if not is_ours or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition != 0:
            return Answer(FetchResponse(error_code=ErrorCode.INVALID_REQUEST), False)
        asked = topics[0].partitions[0]
        data = self._partition(asked, request.max_bytes)
        is_well = data.error_code == ErrorCode.NONE and data.diverging_epoch.epoch < 0
        if is_well:
            replica_id = request.replica_state.replica_id if version >= _WITH_REPLICA_STATE else request.replica_id
            self._note(Replica(replica_id, asked.replica_directory_id), asked.fetch_offset, now_ms)
        knows_end = asked.high_watermark >= self._log.committed.end_offset
        response = FetchResponse(
            responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])],
            node_endpoints=[NodeEndpoint(node_id=node, host=host, port=port) for node, host, port in self._leader()],
        )
        return Answer(response, is_well and data.snapshot_id.end_offset < 0 and not data.records and knows_end)

    def _partition(self, asked: FetchPartition, max_bytes: int) -> PartitionData:
        log, committed = self._log, self._log.committed
        leader_id = -1 if log.leader is None else log.leader.node_id
        data = PartitionData(
            high_watermark=committed.end_offset,
            last_stable_offset=committed.end_offset,
            log_start_offset=committed.start_offset,
            current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=log.epoch),
            records=b"",
        )
        data.error_code = self._refusal(asked) or ErrorCode.NONE
        if data.error_code != ErrorCode.NONE:
            data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
            return data
        offset, snapshot = asked.fetch_offset, committed.snapshot
        if snapshot is not None and (offset == 0 or offset < committed.start_offset):
            data.snapshot_id = SnapshotId(end_offset=snapshot.name.end_offset, epoch=snapshot.name.epoch)
            return data
        diverging = committed.divergence(asked.last_fetched_epoch, offset)
        if diverging is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
        else:
            data.records = committed.read(offset, max_bytes)
        return data

    def _refusal(self, asked: FetchPartition) -> ErrorCode | None:
        log = self._log
        if asked.fetch_offset < 0 or not 0 <= asked.last_fetched_epoch <= max(asked.current_leader_epoch, 0):
            return ErrorCode.INVALID_REQUEST
        if not log.is_active:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return _epoch_refusal(asked.current_leader_epoch, log.epoch)

    def _leader(self) -> list[tuple[int, str, int]]:
        leader = self._log.leader
        return [] if leader is None else [(leader.node_id, *leader.address)]

    def _note(self, replica: Replica, end_offset: int, now_ms: int) -> None:
        if replica.replica_id < 0:
            return
        before = self._observers.get(replica)
        if before is None and len(self._observers) >= _OBSERVERS_MAX:
            return
        is_caught_up = end_offset >= self._log.committed.end_offset
        caught_up_ms = now_ms if is_caught_up else (-1 if before is None else before.caught_up_ms)
        self._observers[replica] = _Progress(end_offset, now_ms, caught_up_ms)

    # FetchSnapshot

    def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        topics = request.topics
        if len(topics) != 1 or topics[0].name != TOPIC or len(topics[0].partitions) != 1:
            return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
        piece = self._piece(topics[0].partitions[0], request.max_bytes)
        leader = self._log.leader
        piece.current_leader = snapshots.LeaderIdAndEpoch(
            leader_id=-1 if leader is None else leader.node_id, leader_epoch=self._log.epoch
        )
        return FetchSnapshotResponse(
            topics=[snapshots.TopicSnapshot(name=TOPIC, partitions=[piece])],
            node_endpoints=[
                snapshots.NodeEndpoint(node_id=node, host=host, port=port) for node, host, port in self._leader()
            ],
        )

    def _piece(self, asked: snapshots.PartitionSnapshotRequest, max_bytes: int) -> snapshots.PartitionSnapshot:
        piece = snapshots.PartitionSnapshot(index=asked.partition, snapshot_id=asked.snapshot_id)
        snapshot, wanted = self._log.committed.snapshot, asked.snapshot_id
        if not self._log.is_active:
            piece.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return piece
        piece.error_code = _epoch_refusal(asked.current_leader_epoch, self._log.epoch) or ErrorCode.NONE
        if piece.error_code != ErrorCode.NONE:
            return piece
        if snapshot is None or tuple(snapshot.name) != (wanted.end_offset, wanted.epoch):
            piece.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= asked.position < len(snapshot.data):
            piece.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        else:
            piece.size, piece.position = len(snapshot.data), asked.position
            piece.unaligned_records = snapshot.data[asked.position : asked.position + max(0, max_bytes)]
        return piece

    # DescribeQuorum

    def describe(self, request: DescribeQuorumRequest, now_ms: int) -> Generator[int, None, DescribeQuorumResponse]:
        """Yields what it has added to the answer, about: many partitions may be asked for that there are not."""
        named = [(topic.topic_name, topic.partitions) for topic in request.topics]
        if len(named) != 1 or named[0][0] != TOPIC or [each.partition_index for each in named[0][1]] != [0]:
            return (yield from _unknown(request))
        leader = self._log.leader
        if leader is None or not self._log.is_active:
            return DescribeQuorumResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message=None)
        known = self._log.committed.quorum.voters
        # One node keeps no record of its voters, as Apache Kafka does not where they are settings: it is the only one.
        voters = [VotersVoter(voter_id=leader.node_id)] if known is None else known.voters
        nodes = [
            quorum.Node(
                node_id=voter.voter_id,
                listeners=[quorum.Listener(name=each.name, host=each.host, port=each.port) for each in voter.endpoints],
            )
            for voter in voters
            if voter.endpoints
        ]
        topic = quorum.TopicData(topic_name=TOPIC, partitions=[self._replicas(leader, voters, now_ms)])
        return DescribeQuorumResponse(error_message=None, topics=[topic], nodes=nodes)

    def _replicas(self, leader: Leader, voters: Sequence[VotersVoter], now_ms: int) -> quorum.PartitionData:
        end_offset = self._log.committed.end_offset
        ids = {voter.voter_id for voter in voters}
        return quorum.PartitionData(
            error_message=None,
            leader_id=leader.node_id,
            leader_epoch=leader.epoch,
            high_watermark=end_offset,
            current_voters=[
                quorum.ReplicaState(
                    replica_id=voter.voter_id,
                    replica_directory_id=voter.voter_directory_id,
                    # Of other controllers, whose log is the same one, nobody has to know how far they have read.
                    log_end_offset=end_offset if voter.voter_id == leader.node_id else -1,
                    last_fetch_timestamp=now_ms if voter.voter_id == leader.node_id else -1,
                    last_caught_up_timestamp=now_ms if voter.voter_id == leader.node_id else -1,
                )
                for voter in voters
            ],
            observers=[
                quorum.ReplicaState(
                    replica_id=replica.replica_id,
                    replica_directory_id=replica.directory_id,
                    log_end_offset=progress.end_offset,
                    last_fetch_timestamp=progress.fetched_ms,
                    last_caught_up_timestamp=progress.caught_up_ms,
                )
                for replica, progress in self._observers.items()
                if replica.replica_id not in ids
            ],
        )


def _unknown(request: DescribeQuorumRequest) -> Generator[int, None, DescribeQuorumResponse]:
    """The answer for partitions that have no quorum."""
    response = DescribeQuorumResponse(error_message=None)
    for topic in request.topics:
        unknown = quorum.TopicData(topic_name=topic.topic_name)
        response.topics.append(unknown)
        for each in topic.partitions:
            unknown.partitions.append(
                quorum.PartitionData(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=None,
                )
            )
            yield _DESCRIBED_BYTES
        yield _DESCRIBED_BYTES
    return response


def _epoch_refusal(given: int, current: int) -> ErrorCode | None:
    if given < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH if given > current else None
