"""DeleteRecords (21), v0-2: moves the log start offset forward; -1 means the high watermark.

It is answered when all followers that are there have moved theirs, or when its time is over.
Deviation: the new start is on disk before the answer. Kafka writes it down within a minute, and until then a kill
brings records back that were deleted from the middle of a segment.
"""

from __future__ import annotations

from oncelog.cluster.partition import Partition
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, TopicPartition
from oncelog.core.promise import Promise, gather
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

Deletions = list[tuple[Partition, DeleteRecordsPartitionResult]]


def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> Steps[DeleteRecordsResponse | Promise[DeleteRecordsResponse]]:
    moved: Deletions = []
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for wanted in topic.partitions:
            result.partitions.append(_delete(broker, context, topic.name, wanted, moved))
            yield
        yield
    if not moved:
        return response
    followed = gather([_followed(broker, *deletion, request.timeout_ms) for deletion in moved])
    saved = broker.log_starts.save([partition.log for partition, _ in moved])
    return saved.chain(lambda result: followed.map(lambda _: _answer(response, result)))


def _followed(
    broker: Broker, partition: Partition, result: DeleteRecordsPartitionResult, timeout_ms: int
) -> Promise[None]:
    """Resolved when the followers have deleted the records, or the time is over. The result then has the error, if
    any."""
    if partition.is_leader and not partition.has_followers:
        return Promise.resolved(None)
    deleted = partition.deleted_by_followers(result.low_watermark)
    timer = broker.scheduler.call_later_ms(max(0, timeout_ms), lambda: _give_up(deleted))

    def note(error: KafkaError | None) -> None:
        timer.cancel()
        if error is not None:
            result.error_code, result.low_watermark = error.code, -1

    return deleted.map(note)


def _give_up(deleted: Promise[KafkaError | None]) -> None:
    if not deleted.done:
        deleted.resolve(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "followers have not deleted the records yet"))


def _delete(
    broker: Broker, context: RequestContext, topic: str, wanted: DeleteRecordsPartition, moved: Deletions
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
        low_watermark = partition.delete_records(offset)
    except (OSError, KafkaError) as error:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        return _refusal(wanted.partition_index, code)
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=low_watermark)
    moved.append((partition, result))
    context.tell_change("TOPIC", topic, f"records of partition {wanted.partition_index} deleted below {low_watermark}")
    return result


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
