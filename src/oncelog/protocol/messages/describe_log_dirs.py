"""DescribeLogDirs (35): sizes of partitions and of the disks they are on (v4)."""

from __future__ import annotations

from oncelog.protocol.api_keys import ApiKey
from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribeLogDirsRequest(Message, api=ApiKey.DESCRIBE_LOG_DIRS):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=True)


class DescribeLogDirsPartition(Message):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Message):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


class DescribeLogDirsResponse(Message, api=ApiKey.DESCRIBE_LOG_DIRS):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
