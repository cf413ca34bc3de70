"""Clients of a virtual cluster that go on through faults: each is a generator of what it waits for.

They look up leaders in the controller's metadata, as if theirs were always new. An answer of a broker that was killed
meanwhile does not count, since it would never have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from oncelog.core.errors import ErrorCode
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.core.promise import Promise
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.unit.server.harness import batch_of
from tests.unit.server.virtual_cluster import VirtualCluster

Steps = Generator[Promise[Any] | int, Any, Any]
"""Waits for a promise, or for some milliseconds."""
ANSWER_MS: Final = 5000
PAUSE_MS: Final = 50
_DONE: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_GIVE_UP: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.TRANSACTION_ABORTABLE,
)
"""After these a producer begins anew, and does not know what has become of its transaction."""


class Client:
    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.is_stopping = False
        self.is_idle = False

    def start(self) -> None:
        steps = self.steps()
        self.cluster.clock.call_later_ms(0, lambda: self._resume(steps, None))

    def steps(self) -> Steps:
        raise NotImplementedError

    def _resume(self, steps: Steps, answer: Any) -> None:
        try:
            wanted = steps.send(answer)
        except StopIteration:
            self.is_idle = True
            return
        clock = self.cluster.clock
        if isinstance(wanted, int):
            clock.call_later_ms(wanted, lambda: self._resume(steps, None))
            return
        is_answered = False

        def answered(value: Any) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                clock.call_later_ms(1, lambda: self._resume(steps, value))

        wanted.then(answered)
        clock.call_later_ms(ANSWER_MS, lambda: answered(None))

    def ask_leader(self, topic: str, partition: int, request: Any, version: int) -> Steps:
        """The answer of whoever leads the partition, or None if none came."""
        node = self.cluster.nodes.get(self.cluster.leader(topic, partition))
        if node is None or node.broker is None:
            yield PAUSE_MS
            return None
        asked = node.broker
        return (yield node.send(request, version).map(lambda answer: None if asked.stopped else answer))


class ProducerIds:
    """Who was given which: one id is of one transactional id for ever."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}

    def note(self, producer_id: int, owner: str) -> None:
        assert self.owners.setdefault(producer_id, owner) == owner, f"producer id {producer_id} was given out twice"


class TransactionalProducer(Client):
    """Writes a value to all partitions in each transaction; every third one is aborted."""

    def __init__(
        self, cluster: VirtualCluster, name: str, partitions: list[TopicPartition], ids: ProducerIds, *, is_tv2: bool
    ) -> None:
        super().__init__(cluster)
        self.name = name
        self._partitions = partitions
        self._ids = ids
        self._is_tv2 = is_tv2
        self._producer_id = self._epoch = -1
        self._sequence = 0
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.doubtful: list[str] = []
        """Nobody has told what became of them."""

    def steps(self) -> Steps:
        number = 0
        while not self.is_stopping:
            if self._producer_id < 0:
                yield from self._init()
            number += 1
            value, commit = f"{self.name} {number}", number % 3 != 0
            if (yield from self._transact(value, commit=commit)):
                (self.committed if commit else self.aborted).append(value)
            else:
                self.doubtful.append(value)
                self._producer_id = -1
            yield 100

    def _coordinator(self, request: Any, version: int) -> Steps:
        topic = TRANSACTION_STATE_TOPIC
        index = coordinator_partition(self.name, len(_partitions(self.cluster, topic)))
        return (yield from self.ask_leader(topic, index, request, version))

    def _init(self) -> Steps:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=15_000)
        while True:
            answer = yield from self._coordinator(request, 5)
            if answer is not None and answer.error_code == ErrorCode.NONE:
                self._ids.note(answer.producer_id, self.name)
                self._producer_id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0
                return
            yield PAUSE_MS

    def _transact(self, value: str, *, commit: bool) -> Steps:
        """Returns whether the producer knows that it ended as it should."""
        if not self._is_tv2 and not (yield from self._until_done(self._add)):
            return False
        for partition in self._partitions:
            if not (yield from self._until_done(lambda where=partition: self._write(where, value))):  # type: ignore[misc]
                return False
        self._sequence += 1
        return (yield from self._until_done(lambda: self._end(commit=commit)))

    def _until_done(self, attempt: Callable[[], Steps]) -> Steps:
        while True:
            code = yield from attempt()
            if code in _DONE:
                return True
            if code in _GIVE_UP:
                return False
            yield PAUSE_MS

    def _add(self) -> Steps:
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for topic, index in self._partitions:
            topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=list(topics.values()),
        )
        answer = yield from self._coordinator(request, 3)
        if answer is None:
            return None
        results = [each for topic in answer.results_by_topic_v3_and_below for each in topic.results_by_partition]
        return next((each.partition_error_code for each in results if each.partition_error_code), ErrorCode.NONE)

    def _write(self, where: TopicPartition, value: str) -> Steps:
        data = batch_of(
            [value.encode()],
            timestamp_ms=self.cluster.clock.now_ms(),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        written = TopicProduceData(
            name=where.topic, partition_data=[PartitionProduceData(index=where.partition, records=data)]
        )
        request = ProduceRequest(acks=-1, timeout_ms=2000, transactional_id=self.name, topic_data=[written])
        answer = yield from self.ask_leader(*where, request, 12 if self._is_tv2 else 11)
        return None if answer is None else answer.responses[0].partition_responses[0].error_code

    def _end(self, *, commit: bool) -> Steps:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self._producer_id, producer_epoch=self._epoch, committed=commit
        )
        answer = yield from self._coordinator(request, 5 if self._is_tv2 else 4)
        if answer is None:
            return None
        if answer.error_code == ErrorCode.NONE and self._is_tv2:
            self._ids.note(answer.producer_id, self.name)
            self._producer_id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0
        return answer.error_code


class Told(NamedTuple):
    offset: int
    generation: int


class GroupMember(Client):
    """Joins again and again, commits an offset in each generation, and reads it back: neither ever goes back."""

    def __init__(self, cluster: VirtualCluster, group: str) -> None:
        super().__init__(cluster)
        self._group = group
        self._member = ""
        self.told = Told(-1, -1)
        self.rounds = 0

    def steps(self) -> Steps:
        while not self.is_stopping:
            generation = yield from self._join()
            if generation is None:
                yield PAUSE_MS
                continue
            assert generation >= self.told.generation, f"generation {generation} after {self.told.generation}"
            offset = self.told.offset + 1
            if (yield from self._commit(generation, offset)):
                self.told = Told(offset, generation)
                self.rounds += 1
            yield from self._check_offset(self.told.offset)
            yield 200

    def _ask(self, request: Any, version: int) -> Steps:
        topic = GROUP_METADATA_TOPIC
        index = coordinator_partition(self._group, len(_partitions(self.cluster, topic)))
        return (yield from self.ask_leader(topic, index, request, version))

    def _join(self) -> Steps:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=self._member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
        )
        joined = yield from self._ask(request, 5)
        if joined is None or joined.error_code:
            if joined is not None and joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member = ""
            elif joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member = joined.member_id
            return None
        self._member = joined.member_id
        assignment = SyncGroupRequestAssignment(member_id=self._member, assignment=b"all")
        synced = yield from self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=self._member,
                assignments=[assignment],
            ),
            3,
        )
        return None if synced is None or synced.error_code else joined.generation_id

    def _commit(self, generation: int, offset: int) -> Steps:
        topic = OffsetCommitRequestTopic(
            name="orders", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        )
        request = OffsetCommitRequest(
            group_id=self._group, generation_id_or_member_epoch=generation, member_id=self._member, topics=[topic]
        )
        answer = yield from self._ask(request, 7)
        return answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    def _check_offset(self, told: int) -> Steps:
        """A commit without an answer may be there, so that it may be more than what was told."""
        wanted = OffsetFetchRequestGroup(
            group_id=self._group, topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
        )
        answer = yield from self._ask(OffsetFetchRequest(groups=[wanted]), 8)
        if answer is None or answer.groups[0].error_code:
            return
        found = answer.groups[0].topics[0].partitions[0].committed_offset
        assert found in (told, told + 1), f"offset {found} after {told}"
        self.told = Told(found, self.told.generation)


def _partitions(cluster: VirtualCluster, topic: str) -> Any:
    image = cluster.controller.image
    return image.topics[image.topic_ids[topic]].partitions
