"""DescribeLogDirs (35), v1-5: how many bytes each partition has on disk, and how much room the disk has.

A worker looks at the files: an answer about all partitions may look into thousands of folders.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.turns import Steps, in_steps
from oncelog.storage.segment_names import LOG_SUFFIX

log = logging.getLogger("oncelog.server")


def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> Steps[DescribeLogDirsResponse | Promise[DescribeLogDirsResponse]]:
    try:
        context.require(Operation.DESCRIBE, Resource.CLUSTER)
    except KafkaError as error:
        return DescribeLogDirsResponse(error_code=error.code)
    path, partitions = broker.log_dir.path.absolute(), (yield from in_steps(_wanted(broker, request)))
    return broker.long_reads.run(lambda: _describe(path, partitions)).map(lambda found: _answer(path, found))


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> Iterable[TopicPartition]:
    """The partitions of the request that exist; all of them for null."""
    counts = {topic.name: topic.partition_count for topic in broker.metadata.topics.values()}
    asked: dict[str, set[int]] = {}
    for topic in request.topics or ():
        asked.setdefault(topic.topic, set()).update(topic.partitions)
    for name in sorted(counts if request.topics is None else asked.keys() & counts.keys()):
        count = counts[name]
        indexes = range(count) if request.topics is None else sorted([n for n in asked[name] if 0 <= n < count])
        for index in indexes:
            partition = TopicPartition(name, index)
            if not broker.is_in_cluster or partition in broker.log_dir.logs:
                yield partition


def _describe(path: Path, partitions: Iterable[TopicPartition]) -> DescribeLogDirsResult:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in partitions:
        topic = topics.setdefault(partition.topic, DescribeLogDirsTopic(name=partition.topic))
        size = _size_bytes(path / str(partition))
        topic.partitions.append(DescribeLogDirsPartition(partition_index=partition.partition, partition_size=size))
    room = shutil.disk_usage(path)
    return DescribeLogDirsResult(
        log_dir=str(path), topics=list(topics.values()), total_bytes=room.total, usable_bytes=room.free
    )


def _size_bytes(folder: Path) -> int:
    """Bytes of the segments. A partition that nobody has used yet has no folder, and files may go at any time."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix == LOG_SUFFIX]
    except FileNotFoundError:
        return 0
    return sum(map(_file_bytes, paths))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _answer(path: Path, found: DescribeLogDirsResult | Exception) -> DescribeLogDirsResponse:
    if isinstance(found, Exception):
        log.error("the files of the partitions could not be looked at", exc_info=found)
        found = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path))
    return DescribeLogDirsResponse(results=[found])
