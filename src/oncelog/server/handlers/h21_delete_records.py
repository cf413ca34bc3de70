"""DeleteRecords (21), v0-2: moves the log start offset forward; -1 means the high watermark.

Deviation: the new start is on disk before the answer. Kafka writes it down within a minute, and until then a kill
brings records back that were deleted from the middle of a segment.
"""

from __future__ import annotations

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.server.log_starts import Saved
from oncelog.server.turns import Steps
from oncelog.storage.log import Log


def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> Steps[DeleteRecordsResponse | Promise[DeleteRecordsResponse]]:
    moved: list[Log] = []
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for wanted in topic.partitions:
            result.partitions.append(_delete(broker, context, topic.name, wanted, moved))
            yield
        yield
    return broker.log_starts.save(moved).map(lambda saved: _answer(response, saved)) if moved else response


def _delete(
    broker: Broker, context: RequestContext, topic: str, wanted: DeleteRecordsPartition, moved: list[Log]
) -> DeleteRecordsPartitionResult:
    try:
        context.require(Operation.DELETE, Resource.TOPIC, topic)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition = broker.partitions.get(topic, wanted.partition_index)
        if "delete" not in partition.log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic} is compacted only: nothing may be deleted")
        offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is beyond the high watermark {partition.high_watermark}"
            )
        low_watermark = partition.log.delete_records(offset)
    except (OSError, KafkaError) as error:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        return _refusal(wanted.partition_index, code)
    moved.append(partition.log)
    context.tell_change("TOPIC", topic, f"records of partition {wanted.partition_index} deleted below {low_watermark}")
    return DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low_watermark)


def _answer(response: DeleteRecordsResponse, saved: Saved) -> DeleteRecordsResponse:
    """The records are gone in any case. An error says that a crash may bring them back, so that it is tried again."""
    for topic in response.topics:
        topic.partitions = [
            result if result.error_code or _is_saved(saved, TopicPartition(topic.name, result.partition_index))
            else _refusal(result.partition_index, ErrorCode.KAFKA_STORAGE_ERROR)
            for result in topic.partitions
        ]  # fmt: skip
    return response


def _is_saved(saved: Saved, partition: TopicPartition) -> bool:
    return not isinstance(saved, Exception) and saved.not_written is None and partition not in saved.failed


def _refusal(partition_index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=partition_index, low_watermark=-1, error_code=code)
