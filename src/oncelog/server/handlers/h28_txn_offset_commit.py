"""TxnOffsetCommit (28), v0-5: offsets that become visible when the transaction commits.

The partition of `__consumer_offsets` is first verified (up to v4) or added (v5, TV2) with the transaction's
coordinator, as a Produce is.
"""

from __future__ import annotations

from uuid import UUID

from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.responses import offsets_refused
from oncelog.coordinator.txn.errors import error_for_txn_offset_commit
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
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
from oncelog.server.offset_parts import in_parts
from oncelog.server.offset_refusals import Refusal, refusal_of, refuse_all
from oncelog.server.turns import Steps, in_steps
from oncelog.storage.verification_guards import VerificationGuard

_TV2_VERSION = 5


def handle(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> Steps[Promise[TxnOffsetCommitResponse]]:
    return _TxnOffsetCommit(broker, request, context).run()


class _TxnOffsetCommit:
    def __init__(self, broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._version = context.api_version
        self._response = TxnOffsetCommitResponse()
        self._topic_ids: dict[str, UUID] = {}
        self._guard: VerificationGuard | None = None

    def run(self) -> Steps[Promise[TxnOffsetCommitResponse]]:
        request = self._request
        refused = None
        if not self._context.permits(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            refused = refuse_all(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif not self._context.permits(Operation.READ, Resource.GROUP, request.group_id):
            refused = refuse_all(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        has_partitions = yield from self._answer_topics(refused)
        if not has_partitions:
            return Promise.resolved(self._response)
        if not request.group_id:
            return self._fail(KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty"))
        try:
            self._broker.groups.check_room(request.group_id)
        except KafkaError as error:
            return self._fail(error)
        return self._broker.groups.shards.available().chain(lambda _: self._verify())

    def _answer_topics(self, refused: Refusal | None) -> Steps[bool]:
        """Whether one is left when those are refused that the client may not commit for, or that do not exist."""
        has_partitions = False
        for topic in self._request.topics:
            refusal = refused or refusal_of(self._broker, self._context, topic.name)
            indexes = (entry.partition_index for entry in topic.partitions)
            answers = (TxnOffsetCommitResponsePartition(partition_index=i, error_code=refusal(i)) for i in indexes)
            partitions = yield from in_steps(answers)
            self._response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
            has_partitions = has_partitions or not all(answer.error_code for answer in partitions)
            known = self._broker.metadata.topics.get(topic.name)
            if known is not None:
                self._topic_ids[topic.name] = known.topic_id
            if len(self._request.topics) > 1:
                yield
        return has_partitions

    def _verify(self) -> Promise[TxnOffsetCommitResponse]:
        request, broker = self._request, self._broker
        try:
            partition = broker.groups.partition_for(request.group_id)
        except KafkaError as error:
            return self._fail(KafkaError(error_for_failed_append(error.code), error.message))
        adds = self._version >= _TV2_VERSION
        state = partition.log.producer_state
        if not adds and not state.verification_enabled:
            return self._commit(None)
        try:
            guard = state.start_verification(
                request.producer_id,
                request.producer_epoch,
                NO_SEQUENCE,
                supports_epoch_bump=adds,
                now_ms=broker.now_ms(),
            )
        except KafkaError as error:
            return self._fail(error)
        if guard is None:
            return self._commit(None)
        producer = ProducerIdAndEpoch.of(request.producer_id, request.producer_epoch)
        answers = broker.transactions.enlist(request.transactional_id, producer, [partition.topic_partition], add=adds)
        return answers.chain(lambda refusals: self._verified(guard, refusals))

    def _verified(
        self, guard: VerificationGuard, refusals: dict[TopicPartition, KafkaError]
    ) -> Promise[TxnOffsetCommitResponse]:
        for error in refusals.values():
            return self._fail(KafkaError(error_for_txn_offset_commit(self._version, error.code), error.message))
        return self._commit(guard)

    def _commit(self, guard: VerificationGuard | None) -> Promise[TxnOffsetCommitResponse]:
        self._guard = guard
        # A promise of HANG_UP is the dispatcher's to deal with.
        return self._broker.turns.begin(in_parts(self._request, self._response, self._commit_part), self._context.peer)

    def _commit_part(
        self, request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse
    ) -> Promise[TxnOffsetCommitResponse]:
        # Each part has the guard: the first that is written opens the transaction, and some may be refused.
        return self._broker.groups.commit(
            request,
            response,
            lambda shard, reply, now_ms: shard.commits.commit_in_transaction(
                request, response, reply, now_ms, self._topic_ids, self._version
            ),
            self._guard,
        )

    def _fail(self, error: KafkaError) -> Promise[TxnOffsetCommitResponse]:
        self._broker.log_refusal("TxnOffsetCommit", error.code, error.message)
        return self._refuse(error.code)

    def _refuse(self, code: ErrorCode) -> Promise[TxnOffsetCommitResponse]:
        return Promise.resolved(offsets_refused(self._response, code))
