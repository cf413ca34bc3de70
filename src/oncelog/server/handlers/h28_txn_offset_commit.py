"""TxnOffsetCommit (28), v0-5: offsets that become visible when the transaction commits.

The partition of `__consumer_offsets` is first verified (up to v4) or added (v5, TV2) with the transaction's
coordinator, as a Produce is.
"""

from __future__ import annotations

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.requests import (
    OffsetCommitResult,
    OffsetToCommit,
    PartitionError,
)
from oncelog.coordinator.group.requests import TxnOffsetCommitRequest as CommitRequest
from oncelog.coordinator.txn.errors import error_for_txn_offset_commit
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_SEQUENCE, TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import RequestContext
from oncelog.storage.verification import VerificationGuard

_TV2_VERSION = 5


def handle(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> Promise[TxnOffsetCommitResponse]:
    return _TxnOffsetCommit(broker, request, context).run()


class _TxnOffsetCommit:
    def __init__(self, broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._version = context.api_version
        self._answer: Promise[TxnOffsetCommitResponse] = Promise()
        self._offsets: list[OffsetToCommit] = []
        self._errors: dict[TopicPartition, ErrorCode] = {}
        for topic in request.topics:
            known = broker.metadata.topics.get(topic.name)
            may_read = context.may(Operation.READ, Resource.TOPIC, topic.name)
            for entry in topic.partitions:
                if not may_read:
                    refused = TopicPartition(topic.name, entry.partition_index)
                    self._errors[refused] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    continue
                if known is None or not 0 <= entry.partition_index < known.partition_count:
                    unknown = TopicPartition(topic.name, entry.partition_index)
                    self._errors[unknown] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                self._offsets.append(
                    OffsetToCommit(
                        topic.name,
                        entry.partition_index,
                        entry.committed_offset,
                        entry.committed_leader_epoch,
                        entry.committed_metadata,
                        known.topic_id,
                    )
                )

    def run(self) -> Promise[TxnOffsetCommitResponse]:
        request = self._request
        if not self._context.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            self._refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not self._context.may(Operation.READ, Resource.GROUP, request.group_id):
            self._refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif not self._offsets:
            self._respond({})
        elif not self._request.group_id:
            self._fail(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        else:
            self._broker.groups.shards.available().then(lambda _: self._verify())
        return self._answer

    def _verify(self) -> None:
        request, broker = self._request, self._broker
        try:
            partition = broker.groups.partition_for(request.group_id)
        except KafkaError as error:
            self._fail(error_for_failed_append(error.code), error.message)
            return
        adds = self._version >= _TV2_VERSION
        state = partition.log.producer_state
        if not adds and not state.verification_enabled:
            self._commit(None)
            return
        try:
            guard = state.start_verification(
                request.producer_id,
                request.producer_epoch,
                NO_SEQUENCE,
                supports_epoch_bump=adds,
                now_ms=broker.now_ms(),
            )
        except KafkaError as error:
            self._fail(error.code, error.message)
            return
        if guard is None:
            self._commit(None)
            return
        answers = broker.transactions.enlist(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=[partition.topic_partition],
            add=adds,
        )
        answers.then(lambda refusals: self._verified(guard, refusals))

    def _verified(self, guard: VerificationGuard, refusals: dict[TopicPartition, KafkaError]) -> None:
        for error in refusals.values():
            code = error_for_txn_offset_commit(self._version, error.code)
            self._fail(code, error.message)
            return
        self._commit(guard)

    def _commit(self, guard: VerificationGuard | None) -> None:
        request = self._request
        commit = CommitRequest(
            group_id=request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            offsets=tuple(self._offsets),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
        answer = self._broker.groups.run(
            request.group_id,
            lambda shard, reply, now_ms: shard.commit_offsets_in_transaction(commit, reply, now_ms),
            self._all_failed,
            guard,
        )
        answer.then(
            lambda result: self._respond(
                {TopicPartition(entry.topic, entry.partition): entry.error for entry in result.partitions}
            )
        )

    def _all_failed(self, code: ErrorCode) -> OffsetCommitResult:
        return OffsetCommitResult(
            partitions=tuple(PartitionError(entry.topic, entry.partition, code) for entry in self._offsets)
        )

    def _refuse_all(self, code: ErrorCode) -> None:
        self._errors = {
            TopicPartition(topic.name, entry.partition_index): code
            for topic in self._request.topics
            for entry in topic.partitions
        }
        self._respond({})

    def _fail(self, code: ErrorCode, reason: str) -> None:
        self._broker.log_refusal("TxnOffsetCommit", code, reason)
        self._respond({TopicPartition(entry.topic, entry.partition): code for entry in self._offsets})

    def _respond(self, codes: dict[TopicPartition, ErrorCode]) -> None:
        codes = {**codes, **self._errors}
        self._answer.resolve(
            TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            TxnOffsetCommitResponsePartition(
                                partition_index=entry.partition_index,
                                error_code=codes[TopicPartition(topic.name, entry.partition_index)],
                            )
                            for entry in topic.partitions
                        ],
                    )
                    for topic in self._request.topics
                ]
            )
        )
