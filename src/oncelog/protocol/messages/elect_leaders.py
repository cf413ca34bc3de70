"""ElectLeaders (43): preferred (0) or unclean (1) election for partitions, null meaning all."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class TopicPartitions(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ElectLeadersRequest(Message, api=ApiKey.ELECT_LEADERS):
    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True)
    timeout_ms: int = int32(default=60000)


class PartitionResult(Message):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class ReplicaElectionResult(Message):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message, api=ApiKey.ELECT_LEADERS):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
