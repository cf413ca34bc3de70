"""Offsets: commit, plain and in a transaction, fetch, delete."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.group import ClassicGroup
from oncelog.coordinator.group.offsets import CommittedOffset, OffsetStore, memory_of
from oncelog.coordinator.group.rebalance import Rebalancer
from oncelog.coordinator.group.records import offset_record, offset_tombstone
from oncelog.coordinator.group.responses import OffsetsCommitted, offsets_refused
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import CoordinatorRecord, Outcome, ReplyHandle
from oncelog.core.config import LONG_MAX
from oncelog.core.errors import ErrorCode
from oncelog.core.ids import NULL_UUID, ProducerIdAndEpoch, TopicPartition
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.protocol.messages.offset_delete import OffsetDeleteResponse
from oncelog.protocol.messages.offset_fetch import OffsetFetchResponsePartitions
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_Entry = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
_Answer = OffsetCommitResponsePartition | TxnOffsetCommitResponsePartition

NO_RETENTION: Final = -1
NO_OFFSET_COMMITTED: Final = -1
_GROUP_ID_NOT_FOUND_SINCE: Final = 9
"""The first version of OffsetCommit with this code. Older clients get ILLEGAL_GENERATION."""
_GROUP_ID_NOT_FOUND_IN_TXN_SINCE: Final = 6
"""The first version of TxnOffsetCommit with this code (KIP-1319)."""


class OffsetCommits:
    def __init__(
        self, config: GroupConfig, groups: Mapping[str, ClassicGroup], offsets: OffsetStore, rebalancer: Rebalancer
    ) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets
        self._rebalancer = rebalancer
        self._in_flight: Counter[str] = Counter()
        """Offsets of each group that are in the log, or on their way there, and not committed yet."""

    # Commit

    def commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse, reply: ReplyHandle, now_ms: int,
        topic_ids: Mapping[str, uuid.UUID], api_version: int,
    ) -> Outcome:  # fmt: skip
        """`response` has a place for each partition of the request; those with an error already are left out.

        `topic_ids` has the ids of the topics that the broker knows, by name.
        """
        group = self._groups.get(request.group_id)
        sender = _Sender(request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)
        error = _check_commit(group, sender, is_transactional=False)
        if error is ErrorCode.GROUP_ID_NOT_FOUND and api_version < _GROUP_ID_NOT_FOUND_SINCE:
            error = ErrorCode.ILLEGAL_GENERATION
        if error:
            return Outcome().reply(reply, offsets_refused(response, error))
        if group is not None and group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalancer.keep_alive(group, group.members[request.member_id], now_ms)
        retention_ms = request.retention_time_ms
        expire_ms = None if retention_ms == NO_RETENTION else min(now_ms + retention_ms, LONG_MAX)
        return self._store(request, response, reply, now_ms, topic_ids, expire_ms)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, response: TxnOffsetCommitResponse, reply: ReplyHandle, now_ms: int,
        topic_ids: Mapping[str, uuid.UUID], api_version: int,
    ) -> Outcome:  # fmt: skip
        """The shell has made sure that the transaction is open and knows this partition of `__consumer_offsets`."""
        sender = _Sender(request.generation_id, request.member_id, request.group_instance_id)
        error = ErrorCode.NONE if request.group_id else ErrorCode.INVALID_GROUP_ID
        error = error or _check_commit(self._groups.get(request.group_id), sender, is_transactional=True)
        if error is ErrorCode.GROUP_ID_NOT_FOUND and api_version < _GROUP_ID_NOT_FOUND_IN_TXN_SINCE:
            error = ErrorCode.ILLEGAL_GENERATION
        if error:
            return Outcome().reply(reply, offsets_refused(response, error))
        out = self._store(request, response, reply, now_ms, topic_ids, None)
        out.producer = ProducerIdAndEpoch.of(request.producer_id, request.producer_epoch)
        return out

    def _store(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        response: OffsetsCommitted,
        reply: ReplyHandle,
        now_ms: int,
        topic_ids: Mapping[str, uuid.UUID],
        expire_ms: int | None,
    ) -> Outcome:
        out, group_id = Outcome(), request.group_id
        for topic, entry, answer in _places(request, response):
            metadata = entry.committed_metadata or ""
            if not answer.error_code and len(metadata) > self._config.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if answer.error_code:
                continue
            offset = CommittedOffset(
                offset=entry.committed_offset,
                leader_epoch=entry.committed_leader_epoch,
                metadata=metadata,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_ms,
                topic_id=topic_ids.get(topic, NULL_UUID),
            )
            out.records.append(offset_record(group_id, TopicPartition(topic, entry.partition_index), offset))
        if count := len(out.records):  # else nothing would ever land
            self._in_flight[group_id] += count
            out.compensations.append(lambda _error, _now_ms, _undone: self.landed(group_id, count))
        return out.reply(reply, response)

    @property
    def held_bytes(self) -> int:
        return self._offsets.held_bytes

    def refuse_growth(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        response: OffsetCommitResponse | TxnOffsetCommitResponse,
        room_bytes: int,
    ) -> int:
        """Offsets for which there is no room get POLICY_VIOLATION. Returns how many those are.

        One that takes the place of another of the same size is always let in: whoever has committed before can go on.
        """
        refused = 0
        for topic, entry, answer in _places(request, response):
            if answer.error_code:
                continue
            metadata = entry.committed_metadata or ""
            partition = TopicPartition(topic, entry.partition_index)
            before = self._offsets.get(request.group_id, partition)
            added_bytes = memory_of(topic, metadata)
            if before is not None and not self._offsets.is_unstable(request.group_id, partition):
                added_bytes -= memory_of(topic, before.metadata)
            if added_bytes > max(0, room_bytes):
                answer.error_code = ErrorCode.POLICY_VIOLATION
                refused += 1
            else:
                room_bytes -= added_bytes
        return refused

    def landed(self, group_id: str, count: int) -> None:
        """This many offsets of a group are no longer in flight: they were applied, or refused by the log."""
        self._in_flight[group_id] -= count
        if self._in_flight[group_id] <= 0:
            del self._in_flight[group_id]

    def has_in_flight(self, group_id: str) -> bool:
        return group_id in self._in_flight

    # Fetch

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """The partitions for which a group has committed offsets, as they are now."""
        return list(self._offsets.of_group(group_id)) if group_id in self._groups else []

    def fetch(
        self, group_id: str, topic: str, topic_id: uuid.UUID, indexes: Iterable[int], *, require_stable: bool
    ) -> list[OffsetFetchResponsePartitions]:
        """An unknown group is not an error: it has committed nothing."""
        return [self._fetch_one(group_id, TopicPartition(topic, index), topic_id, require_stable) for index in indexes]

    def _fetch_one(
        self, group_id: str, partition: TopicPartition, topic_id: uuid.UUID, require_stable: bool
    ) -> OffsetFetchResponsePartitions:
        answer = OffsetFetchResponsePartitions(
            partition_index=partition.partition, committed_offset=NO_OFFSET_COMMITTED
        )
        if group_id not in self._groups:
            return answer
        if require_stable and self._offsets.is_unstable(group_id, partition):
            answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            return answer
        committed = self._offsets.get(group_id, partition)
        if committed is not None and not _of_another_topic(committed, topic_id):
            answer.committed_offset = committed.offset
            answer.committed_leader_epoch = committed.leader_epoch
            answer.metadata = committed.metadata
        return answer

    # Delete

    def delete(self, group_id: str, response: OffsetDeleteResponse, reply: ReplyHandle) -> Outcome:
        """`response` has a place for each partition of the request; those with an error already are left out."""
        out = Outcome()
        group = self._groups.get(group_id)
        error = _check_delete(group_id, group)
        if error or group is None:
            return out.reply(reply, OffsetDeleteResponse(error_code=error))
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                if not answer.error_code and group.is_subscribed_to(topic.name):
                    answer.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if not answer.error_code and self._has_any(group_id, partition):
                    out.records.append(offset_tombstone(group_id, partition))
        return out.reply(reply, response)

    def tombstones_of_group(self, group_id: str, count_max: int) -> list[CoordinatorRecord]:
        """Tombstones for the offsets of a group, or for the first `count_max` of them."""
        partitions = islice(self._offsets.of_group(group_id), count_max)
        return [offset_tombstone(group_id, partition) for partition in partitions]

    def _has_any(self, group_id: str, partition: TopicPartition) -> bool:
        is_committed = self._offsets.get(group_id, partition) is not None
        return is_committed or self._offsets.is_unstable(group_id, partition)


def _places(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, response: OffsetCommitResponse | TxnOffsetCommitResponse
) -> Iterator[tuple[str, _Entry, _Answer]]:
    topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic] = request.topics
    answers: Iterable[OffsetCommitResponseTopic | TxnOffsetCommitResponseTopic] = response.topics
    for topic, answer in zip(topics, answers, strict=True):
        for entry, place in zip(topic.partitions, answer.partitions, strict=True):
            yield topic.name, entry, place  # type: ignore[misc]  # mypy joins the two unions to their base class


class _Sender(NamedTuple):
    """The sender of a commit. Without a generation it is not a member."""

    generation_id: int
    member_id: str
    group_instance_id: str | None


def _check_commit(group: ClassicGroup | None, sender: _Sender, *, is_transactional: bool) -> ErrorCode:
    """Whether the sender may commit: a member of the current generation, or any client while there are no members.

    A commit in a transaction is not held up by a rebalance, and one without any member data is let in for clients
    older than KIP-447: their transactional id fences them.
    """
    if group is None:
        return ErrorCode.NONE if sender.generation_id < 0 else ErrorCode.GROUP_ID_NOT_FOUND
    if sender.generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if sender.generation_id < 0 and not sender.member_id and sender.group_instance_id is None:
        return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(sender.member_id, sender.group_instance_id)
    if error:
        return error
    if sender.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if not is_transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_delete(group_id: str, group: ClassicGroup | None) -> ErrorCode:
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def _of_another_topic(committed: CommittedOffset, topic_id: uuid.UUID) -> bool:
    """Committed to a topic that had this name before it was deleted and made again."""
    are_known = committed.topic_id != NULL_UUID and topic_id != NULL_UUID
    return are_known and committed.topic_id != topic_id
