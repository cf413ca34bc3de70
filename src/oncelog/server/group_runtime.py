"""The group coordinator of this broker: `coordinator_runtime` with a timer per shard."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from oncelog.cluster.metadata import Topic
from oncelog.cluster.partition import Partition
from oncelog.coordinator.failed_append import error_for_failed_append
from oncelog.coordinator.group.config import GroupConfig
from oncelog.coordinator.group.member import MEMBER_BYTES
from oncelog.coordinator.group.state import GroupState
from oncelog.coordinator.outcome import Outcome, Reply, ReplyHandle
from oncelog.core.clock import Timer
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import GROUP_METADATA_TOPIC
from oncelog.core.named_tuple import NamedTuple
from oncelog.core.promise import Promise
from oncelog.server.coordinator_runtime import CoordinatorRuntime, LiveShard
from oncelog.server.turns import ITEM_BYTES, Steps
from oncelog.storage.verification_guards import VerificationGuard

if TYPE_CHECKING:
    from oncelog.coordinator.group.machine import GroupShard
    from oncelog.coordinator.group.responses import OffsetsCommitted
    from oncelog.protocol.messages.delete_groups import DeletableGroupResult
    from oncelog.protocol.messages.list_groups import ListedGroup
    from oncelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
    from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
    from oncelog.server.broker import Broker

    Commit = OffsetCommitRequest | TxnOffsetCommitRequest
    CommitAnswer = OffsetCommitResponse | TxnOffsetCommitResponse

log = logging.getLogger("oncelog.groups")

R = TypeVar("R")
Operation = Callable[["GroupShard", ReplyHandle, int], Outcome]


class GroupRuntime:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups_max = broker.settings.integer("oncelog.groups.max")
        self._bytes_max = broker.settings.integer("oncelog.groups.max.bytes")
        self._held_bytes_at_most = 0
        """Grows with each request, and is counted anew when it comes to the bound."""
        self._count_again_ms = 0
        self._offset_bytes_max = broker.settings.integer("oncelog.offsets.max.bytes")
        self._offset_bytes_at_most = 0
        """Grows and is counted anew in the same way."""
        self._config = broker.settings.bind(GroupConfig)
        self.shards: CoordinatorRuntime[GroupShard, Reply] = CoordinatorRuntime(
            broker,
            GROUP_METADATA_TOPIC,
            log,
            failpoints="group",
            new_shard=lambda _: self._new_shard(),
            on_loaded=self._on_loaded,
            on_resigned=self._on_resigned,
            carry_out=lambda reply: reply.reply_to(reply.response),
        )
        self._deadlines: dict[int, _Deadline] = {}
        self._just_deleted: list[tuple[str, uuid.UUID]] = []
        self._deleted_topics: dict[int, list[tuple[str, uuid.UUID]]] = {}
        """Topics that were deleted while a shard was loading, by shard. It removes their offsets once it is loaded."""
        self._being_deleted: dict[str, Promise[None]] = {}
        """Groups whose offsets go in parts. Whoever asks for one of them meanwhile waits."""

    # Shards

    def start(self) -> None:
        self.shards.start()

    def stop(self) -> None:
        for deadline in self._deadlines.values():
            deadline.timer.cancel()
        for live in self.shards:
            if live.shard.is_loaded:
                self.shards.deliver(live.shard.unload())

    def partition_of(self, group_id: str) -> int:
        return self.shards.index_of(group_id)

    def partition_for(self, group_id: str) -> Partition:
        return self.shards.live(self.partition_of(group_id)).partition

    def is_ready(self, index: int) -> bool:
        return self.shards.live(index).shard.is_loaded

    def _new_shard(self) -> GroupShard:
        from oncelog.coordinator.group.machine import GroupShard  # which no start on an empty folder has to wait for

        return GroupShard(self._config, new_member_suffix=self._broker.new_member_suffix)

    @cached_property
    def _empty(self) -> GroupShard:
        """Answers for all groups as long as the topic does not exist."""
        return self._new_shard()

    @cached_property
    def _one_offset_bytes_max(self) -> int:
        from oncelog.coordinator.group.offsets import memory_max

        return memory_max(self._config.offset_metadata_max_bytes)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard of a group, to be read. Raises the error for the client while the shard cannot be used."""
        if not self.shards.has_topic:
            return self._empty
        try:
            live = self.shards.live(self.partition_of(group_id))
        except KafkaError as error:
            raise KafkaError(error_for_failed_append(error.code), error.message) from error
        if not live.shard.is_loaded:
            raise KafkaError(live.shard.refusal)
        if group_id in self._being_deleted:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being deleted")
        return live.shard

    def _on_loaded(self, live: LiveShard[GroupShard]) -> None:
        self._write(live, live.shard.loaded(self._broker.steady_ms()))
        deleted = self._deleted_topics.pop(live.index, None)
        if deleted is not None:
            self._write(live, live.shard.topics_deleted(deleted))

    def _on_resigned(self, live: LiveShard[GroupShard]) -> None:
        deadline = self._deadlines.pop(live.index, None)
        if deadline is not None:
            deadline.timer.cancel()

    # Operations

    def check_room(self, group_id: str, member_bytes: int = 0) -> None:
        """Raises POLICY_VIOLATION if one group more would be too many, or if there is no room for what it tells."""
        is_new = not self._knows(group_id)
        if not is_new and not member_bytes:
            return
        shards = [live.shard for live in self.shards]
        if is_new and sum(shard.group_count for shard in shards) >= self._groups_max:
            reason = f"there are {self._groups_max} groups, as many as oncelog.groups.max allows"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, reason)
        self._held_bytes_at_most += member_bytes + (len(group_id) if is_new else 0)
        if self._held_bytes_at_most > self._bytes_max and self._broker.steady_ms() >= self._count_again_ms:
            held_bytes = sum(shard.held_bytes() for shard in shards)
            counted = sum(shard.group_count for shard in shards) + held_bytes // MEMBER_BYTES
            interval_ms = min(COUNT_INTERVAL_MS, counted // COUNTED_PER_MS)
            self._count_again_ms = self._broker.steady_ms() + interval_ms
            self._held_bytes_at_most = held_bytes + member_bytes
        if self._held_bytes_at_most > self._bytes_max:
            self._held_bytes_at_most -= member_bytes
            reason = f"all groups and their members would exceed oncelog.groups.max.bytes, {self._bytes_max}"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, reason)

    def commit(
        self, request: Commit, response: OffsetsCommitted, operation: Operation, guard: VerificationGuard | None = None
    ) -> Promise[OffsetsCommitted]:
        """Runs an operation that commits the offsets of a request, as far as there is room for them."""
        from oncelog.coordinator.group.responses import offsets_refused

        self._refuse_offsets(request, response)
        return self.run(request.group_id, operation, lambda error: offsets_refused(response, error), guard)

    def _refuse_offsets(self, request: Commit, response: CommitAnswer) -> None:
        """Offsets that would exceed the bound get POLICY_VIOLATION in the response."""
        added_bytes_max = sum([len(topic.partitions) for topic in request.topics]) * self._one_offset_bytes_max
        self._offset_bytes_at_most += added_bytes_max
        if self._offset_bytes_at_most <= self._offset_bytes_max:
            return
        held_bytes = sum(live.shard.commits.held_bytes for live in self.shards)
        self._offset_bytes_at_most = held_bytes + added_bytes_max
        if self._offset_bytes_at_most <= self._offset_bytes_max:
            return
        try:
            commits = self.shard_of(request.group_id).commits
        except KafkaError:
            return  # so is the commit
        refused = commits.refuse_growth(request, response, self._offset_bytes_max - held_bytes)
        if refused:
            reason = f"{refused} offsets would exceed oncelog.offsets.max.bytes, {self._offset_bytes_max}"
            self._broker.log_refusal("OffsetCommit", ErrorCode.POLICY_VIOLATION, reason)

    def _knows(self, group_id: str) -> bool:
        try:
            return self.shard_of(group_id).knows(group_id)
        except KafkaError:
            return False

    def run(
        self,
        group_id: str,
        operation: Operation,
        refused: Callable[[ErrorCode], R],
        guard: VerificationGuard | None = None,
    ) -> Promise[R]:
        """Runs an operation on the shard of a group and promises its answer, however long that takes."""
        if group_id in self._being_deleted:
            return self._being_deleted[group_id].chain(lambda _: self.run(group_id, operation, refused, guard))
        if self.shards.has_topic:
            return self._run(group_id, operation, refused, guard)
        return self.shards.available().chain(lambda _: self._run(group_id, operation, refused, guard))

    def _run(
        self,
        group_id: str,
        operation: Operation,
        refused: Callable[[ErrorCode], R],
        guard: VerificationGuard | None,
    ) -> Promise[R]:
        try:
            live = self.shards.live(self.partition_of(group_id))
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                log.warning("group %s cannot be served: %s", group_id, error)
            return Promise.resolved(refused(error_for_failed_append(error.code)))
        if not live.shard.is_loaded:
            return Promise.resolved(refused(live.shard.refusal))
        promise: Promise[R] = Promise()
        self._write(live, operation(live.shard, promise.resolve, self._broker.steady_ms()), guard)
        return promise

    def delete(self, group_id: str) -> Promise[DeletableGroupResult]:
        """Delete a group. Its offsets go in parts, one in each turn of the loop; after an error the rest of them
        stays."""
        if group_id in self._being_deleted:
            return self._being_deleted[group_id].chain(lambda _: self.delete(group_id))
        if not self.shards.has_topic:
            return self.shards.available().chain(lambda _: self.delete(group_id))
        from oncelog.protocol.messages.delete_groups import DeletableGroupResult

        promise: Promise[DeletableGroupResult] = Promise()

        def delete_part() -> None:
            self._run(
                group_id,
                lambda shard, reply, _: shard.delete_group(group_id, reply),
                lambda error: DeletableGroupResult(group_id=group_id, error_code=error),
                None,
            ).then(go_on)

        def go_on(result: DeletableGroupResult | None) -> None:
            if result is None:
                self._being_deleted.setdefault(group_id, Promise())
                self._broker.later(0, delete_part)
                return
            waiting = self._being_deleted.pop(group_id, None)
            promise.resolve(result)
            if waiting is not None:
                waiting.resolve(None)

        delete_part()
        return promise

    def _write(self, live: LiveShard[GroupShard], outcome: Outcome, guard: VerificationGuard | None = None) -> None:
        self.shards.write(live, outcome, guard, settled=lambda: self._reschedule(live))
        if outcome.records:
            self._reschedule(live)  # they may not be committed yet, and time goes on meanwhile

    # Time

    def _reschedule(self, live: LiveShard[GroupShard]) -> None:
        due_ms = live.shard.next_deadline_ms()
        current = self._deadlines.get(live.index)
        # A timer that fires early finds nothing due and is set anew: heartbeats, which only move deadlines further
        # away, cost no timer.
        if due_ms is None or (current is not None and current.due_ms <= due_ms):
            return
        if current is not None:
            current.timer.cancel()
        delay_ms = due_ms - self._broker.steady_ms()
        timer = self._broker.scheduler.call_later_ms(delay_ms, lambda: self._tick(live))
        self._deadlines[live.index] = _Deadline(due_ms, timer)

    def _tick(self, live: LiveShard[GroupShard]) -> None:
        del self._deadlines[live.index]
        if live.shard.is_loaded:
            self._write(live, live.shard.tick(self._broker.steady_ms(), self._broker.now_ms()))

    # What other parts of the broker ask for

    def complete_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker in a partition of `__consumer_offsets` is committed.

        A shard that is being loaded meets it in the log. Before, it could end an earlier transaction of the producer.
        """
        shard = self.shards.live(index).shard
        if shard.is_loaded:
            shard.replay_marker(producer_id, commit=commit)

    def on_topic_deleted(self, topic: Topic) -> None:
        """Offsets of the topic are forgotten in the next turn of the loop, together with those of other topics deleted
        now."""
        if not self._just_deleted:
            self._broker.later(0, self._forget_deleted)
        self._just_deleted.append((topic.name, topic.topic_id))

    def _forget_deleted(self) -> None:
        gone, self._just_deleted = self._just_deleted, []
        for live in self.shards:
            if live.shard.is_loaded:
                self._write(live, live.shard.topics_deleted(gone))
            else:
                self._deleted_topics.setdefault(live.index, []).extend(gone)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> Steps[list[ListedGroup]]:
        """Groups in one of these states, if there are any, whose names are in lower case; and of these types. Raises
        KafkaError."""
        # Unknown names let nothing through, and one of them does for all.
        wanted = set(states)
        states, types = (wanted & _STATES) or list(wanted)[:1], list(dict.fromkeys(types))
        found: list[ListedGroup] = []
        for live in self.shards.listed():
            part = live.shard.list_groups(states, types)
            found += part
            yield len(part) * ITEM_BYTES
        return found


COUNT_INTERVAL_MS: Final = 1_000
COUNTED_PER_MS: Final = 10
"""Groups and members, of the time between two counts: a hundredth of it goes into the count."""
_STATES = frozenset(state.value.lower() for state in GroupState)


class _Deadline(NamedTuple):
    due_ms: int
    timer: Timer
