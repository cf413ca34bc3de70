"""Produce (0), v3-13 (0-2 are advertised for librdkafka's sake and refused): appends batches as they come.

A transactional batch that would open a transaction on its partition is first verified (up to v11) or added (v12+,
TV2) with the coordinator of its transactional id; all such partitions of a request are asked about at once.
Deviation: by default records are not decoded, see `storage.append_checks`. Where they have to be and there are many, a
worker does it before the batch is appended.
A request with acks=0 has no answer; when it fails its connection is closed, so that the client looks for the leader.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple

from oncelog.cluster.partition import Partition
from oncelog.coordinator.txn.errors import error_for_produce
from oncelog.core.errors import ErrorCode, InvalidRecords, KafkaError
from oncelog.core.ids import INTERNAL_TOPICS, ProducerIdAndEpoch, TopicPartition
from oncelog.core.promise import Promise, gather
from oncelog.core.waiting import within
from oncelog.protocol.batch import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, read_header
from oncelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from oncelog.server.authorization import Operation, Resource
from oncelog.server.broker import Broker
from oncelog.server.context import HANG_UP, HangUp, RequestContext
from oncelog.server.turns import Steps, in_steps
from oncelog.storage.record_examination import Examination, LongExamination, examine
from oncelog.storage.verification_guards import VerificationGuard

_TOPIC_ID_VERSION = 13
_TV2_VERSION = 12
_ATTRIBUTES_AT = 22
"""Where a batch has the lower byte of its attributes."""
_PARTITIONS_PER_STEP = 50

log = logging.getLogger("oncelog.server")

Guards = dict[TopicPartition, VerificationGuard | KafkaError]


Answer = ProduceResponse | HangUp | None
Outcome = Answer | Promise[Answer] | Steps[Answer | Promise[Answer]]


def handle(broker: Broker, request: ProduceRequest, context: RequestContext) -> Outcome:
    return _Produce(broker, request, context).start()


class _Produce:
    """One request from its checks to its answer."""

    __slots__ = ("_broker", "_context", "_guards", "_long", "_request", "_version")

    def __init__(self, broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
        self._broker = broker
        self._request = request
        self._context = context
        self._version = context.api_version
        self._guards: Guards = {}
        self._long: list[Promise[None]] = []

    def start(self) -> Outcome:
        request = self._request
        if request.acks not in (-1, 0, 1):
            message = f"acks must be -1 (all), 0 or 1, not {request.acks}"
            return self._refuse(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, message))
        return self._serve()

    def _serve(self) -> Steps[Answer | Promise[Answer]]:
        try:
            unverified = yield from self._partitions_to_verify()
        except KafkaError as error:
            return (yield from self._refuse(error))
        if not unverified:
            return (yield from self._append_all())

        def append(_: None) -> Promise[Answer]:
            return self._broker.turns.begin(self._append_all(), self._context.peer, to_the_end=True)

        return self._verify(unverified).chain(append)

    def _locate(self, topic: TopicProduceData, index: int) -> Partition:
        if self._version >= _TOPIC_ID_VERSION:
            known = self._broker.metadata.topics_by_id.get(topic.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic.topic_id}")
            topic.name = known.name
        self._context.require(Operation.WRITE, Resource.TOPIC, topic.name)
        return self._broker.partitions.get(topic.name, index)

    def _partitions_to_verify(self) -> Steps[list[tuple[Partition, BatchHeader]]]:
        """Partitions on which this request would open a transaction. Raises what refuses the whole request."""
        unverified: list[tuple[Partition, BatchHeader]] = []
        identity: tuple[int, int] | None = None
        for topic in self._request.topic_data:
            for number, data in enumerate(topic.partition_data):
                if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                    yield
                records = data.records
                if records is None or len(records) < HEADER_BYTES or not records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT:
                    continue
                header = read_header(records)
                if self._request.transactional_id is None:
                    raise KafkaError(
                        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                        "a transactional batch came in a request without a transactional id",
                    )
                this = (header.producer_id, header.producer_epoch)
                if identity not in (None, this):
                    raise KafkaError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request carries batches of several producers"
                    )
                if identity is None:
                    transactional_id = self._request.transactional_id
                    self._context.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
                identity = this
                self._note_unverified(topic, data.index, header, unverified)
            if len(self._request.topic_data) > 1:
                yield
        return unverified

    def _note_unverified(
        self,
        topic: TopicProduceData,
        index: int,
        header: BatchHeader,
        unverified: list[tuple[Partition, BatchHeader]],
    ) -> None:
        try:
            partition = self._locate(topic, index)
        except KafkaError:
            return  # answered as such when its turn to be appended comes
        supports_epoch_bump = self._version >= _TV2_VERSION
        state = partition.log.producer_state
        if not supports_epoch_bump and not state.verification_enabled:
            return
        try:
            guard = state.start_verification(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                supports_epoch_bump=supports_epoch_bump,
                now_ms=self._broker.now_ms(),
            )
        except KafkaError as error:
            self._guards[partition.topic_partition] = _again(error)
            return
        if guard is not None:
            self._guards[partition.topic_partition] = guard
            unverified.append((partition, header))

    def _verify(self, unverified: list[tuple[Partition, BatchHeader]]) -> Promise[None]:
        header = unverified[0][1]
        answers = self._broker.transactions.enlist(
            self._request.transactional_id or "",
            ProducerIdAndEpoch.of(header.producer_id, header.producer_epoch),
            [partition.topic_partition for partition, _ in unverified],
            add=self._version >= _TV2_VERSION,
        )
        return answers.map(self._note_answers)

    def _note_answers(self, answers: dict[TopicPartition, KafkaError]) -> None:
        for partition, error in answers.items():
            code = error_for_produce(self._version, error.code)
            self._guards[partition] = KafkaError(code, error.message)

    def _append_all(self) -> Steps[Answer | Promise[Answer]]:
        uncommitted: list[_Uncommitted] = []
        responses: list[TopicProduceResponse] = []
        is_first = True
        for topic in self._request.topic_data:
            answered = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            responses.append(answered)
            for data in topic.partition_data:
                if not is_first:
                    yield
                is_first = False
                answered.partition_responses.append(self._append(topic, data, uncommitted))
            answered.name = topic.name  # of a topic that was named by its id, known only now
        response = ProduceResponse(responses=responses)
        if self._long:
            return gather(self._long).chain(lambda _: _promised(self._answer(response, uncommitted)))
        return self._answer(response, uncommitted)

    def _answer(self, response: ProduceResponse, uncommitted: list[_Uncommitted]) -> Answer | Promise[Answer]:
        if self._request.acks == 0:
            failed = any(answer.error_code for topic in response.responses for answer in topic.partition_responses)
            return HANG_UP if failed else None
        if self._request.acks == 1 or not uncommitted:
            return self._with_leaders(response)
        return self._when_all_committed(uncommitted, response)

    def _when_all_committed(self, uncommitted: list[_Uncommitted], response: ProduceResponse) -> Promise[Answer]:
        def respond(errors: list[KafkaError | None]) -> Answer:
            for append, error in zip(uncommitted, errors, strict=True):
                if error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT:
                    append.response.error_code = error.code  # its offset stays: it may still be committed
                elif error is not None:
                    _fail(append.response, error)
            return self._with_leaders(response)

        return gather([self._committed(append) for append in uncommitted]).map(respond)

    def _committed(self, append: _Uncommitted) -> Promise[KafkaError | None]:
        """One node commits what it has, sooner or later. Followers may take longer than the client wants to wait."""
        committed = append.partition.committed(append.last_offset)
        if committed.done or not append.partition.has_followers:
            return committed
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not all replicas in sync have it yet")
        return within(self._broker.scheduler, self._request.timeout_ms, committed, error)

    def _with_leaders(self, response: ProduceResponse) -> ProduceResponse:
        if self._broker.is_in_cluster:
            from oncelog.server.current_leaders import tell_leaders

            refused = (
                (answer, topic.name, answer.index)
                for topic in response.responses
                for answer in topic.partition_responses
                if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            tell_leaders(self._broker, self._context, refused, response)
        return response

    def _append(
        self, topic: TopicProduceData, data: PartitionProduceData, uncommitted: list[_Uncommitted]
    ) -> PartitionProduceResponse:
        response = PartitionProduceResponse(index=data.index)
        try:
            partition = self._locate(topic, data.index)
            if topic.name in INTERNAL_TOPICS:
                message = f"{topic.name} is written by the coordinators only"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
            if not data.records:
                raise KafkaError(ErrorCode.INVALID_RECORD, "the request has no records for this partition")
            batch = memoryview(data.records)
            try:
                self._append_to(partition, batch, response, uncommitted, Examination.IF_SHORT)
            except LongExamination:
                self._long.append(self._examine_and_append(partition, batch, response, uncommitted))
        except KafkaError as error:
            self._failed(topic.name, response, error)
        return response

    def _append_to(
        self,
        partition: Partition,
        batch: memoryview,
        response: PartitionProduceResponse,
        uncommitted: list[_Uncommitted],
        examination: Examination,
    ) -> None:
        guard = self._guards.get(partition.topic_partition)
        if isinstance(guard, KafkaError):
            raise _again(guard)
        info = partition.append_as_leader(
            batch,
            now_ms=self._broker.now_ms(),
            guard=guard,
            required_acks=self._request.acks,
            examination=examination,
        )
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time
        response.log_start_offset = info.log_start_offset
        if info.last_offset >= partition.high_watermark:
            uncommitted.append(_Uncommitted(partition, info.last_offset, response))

    def _examine_and_append(
        self,
        partition: Partition,
        batch: memoryview,
        response: PartitionProduceResponse,
        uncommitted: list[_Uncommitted],
    ) -> Promise[None]:
        """A worker looks at the records; then the batch is appended, unless the topic was deleted meanwhile."""
        config, now_ms = partition.log.config, self._broker.now_ms()

        def append(result: memoryview | Exception) -> None:
            if isinstance(result, Exception):  # not to be raised here: see `_again`
                self._failed(partition.topic_partition.topic, response, _known(result))
                return
            try:
                self._append_to(partition, result, response, uncommitted, Examination.DONE)
            except Exception as error:  # noqa: BLE001  it would come out where the worker hands over its results
                self._failed(partition.topic_partition.topic, response, _known(error))

        job = partial(examine, batch, config, now_ms, partition.topic_partition)
        return self._broker.long_reads.run(job).map(append)

    def _failed(self, topic: str, response: PartitionProduceResponse, error: KafkaError) -> None:
        self._broker.log_rejection(topic, response.index, self._request.transactional_id, error)
        _fail(response, error)

    def _refuse(self, error: KafkaError) -> Steps[Answer]:
        if self._request.acks == 0:
            return HANG_UP
        response = ProduceResponse()
        for topic in self._request.topic_data:
            refused = yield from in_steps(_failed(data.index, error) for data in topic.partition_data)
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=refused)
            )
            yield
        return response


class _Uncommitted(NamedTuple):
    """An append that is not safe yet, and the answer it gets if it will be."""

    partition: Partition
    last_offset: int
    response: PartitionProduceResponse


def _failed(index: int, error: KafkaError) -> PartitionProduceResponse:
    response = PartitionProduceResponse(index=index)
    _fail(response, error)
    return response


def _again(error: KafkaError) -> KafkaError:
    """The same without a traceback, whose frames hold the request. If one of them leads back to the error, both stay
    until garbage is collected, which is rare."""
    return KafkaError(error.code, error.message)


def _known(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    log.error("a batch could not be examined and appended", exc_info=error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be examined and appended")


def _promised(answer: Any) -> Promise[Answer]:
    return answer if isinstance(answer, Promise) else Promise.resolved(answer)


def _fail(response: PartitionProduceResponse, error: KafkaError) -> None:
    response.error_code = error.code
    response.error_message = error.message or None
    response.base_offset = response.log_append_time_ms = response.log_start_offset = -1
    if isinstance(error, InvalidRecords):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=error.message)
            for number in error.numbers
        ]
