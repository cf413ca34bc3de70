"""A consumer on its event loop.

Theory of operation. Everything happens in `step`, which a poll of the application calls until it has records or its
time is over. A step brings the group membership forward, commits if that is due, finds positions for partitions that
have none, and hands out what the fetcher has at hand. When partitions come or go (`consumer_rebalance`), `step` returns
that instead: the application's callback runs in the application's own context, and `handled` tells when it is done.
What takes time goes on beside the steps (`tasks`), and the next step sees its result.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from oncelog.client.admin_topics import TopicAdmin
from oncelog.client.arguments import to_offset, to_partition, topic_names
from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_fetcher import ConsumerFetcher
from oncelog.client.consumer_positions import PartitionPosition, Positions
from oncelog.client.consumer_rebalance import Phase, Rebalance, RebalanceKind, Rebalances
from oncelog.client.deadline import Deadline
from oncelog.client.errors import CommitFailed, ConfigurationError, ErrorCode, IllegalState, KafkaError, is_retriable
from oncelog.client.fetcher import FetchedChunk
from oncelog.client.group_member import NO_GENERATION, GroupMember
from oncelog.client.offset_lookup import OffsetLookup
from oncelog.client.offsets import GroupMetadata, OffsetAndMetadata, Offsets, commit_offsets, full_offset
from oncelog.client.tasks import Tasks
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.list_offsets import OffsetSpec

Take = Callable[[PartitionPosition, FetchedChunk], bool]
"""Takes what it can of a chunk, moves the position, and says whether to go on to the next partition."""

_MEMBERSHIP_GONE = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class ConsumerCore:
    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.positions = Positions()
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._assigned_by_hand = False
        self._closed = False
        self._commit_due_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._refreshed_s = time.monotonic()
        self._tasks = Tasks(cluster, ended=self._go_on, failed=self._fail)
        self.member = GroupMember(cluster, config, self._changed.set) if config.group_id else None
        self._rebalances = Rebalances(self.member, self.positions) if self.member is not None else None
        self.admin = TopicAdmin(cluster)
        self._lookup = OffsetLookup(self.admin, config, self.positions)
        self.fetcher = ConsumerFetcher(config, self.positions, self._tasks, self._lookup, self._fail)

    def _go_on(self) -> None:
        self._changed.set()
        self.fetcher.start_fetches()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState("this consumer is closed")

    # What to read

    async def subscribe(self, topics: Collection[str] = (), pattern: str | None = None) -> None:
        self._check_open()
        if self.member is None:
            raise ConfigurationError("subscribe() needs a group.id; without one use assign()")
        if self._assigned_by_hand:
            raise IllegalState("partitions were assigned by hand: call unsubscribe() first")
        if bool(topics) == bool(pattern):
            raise IllegalState("give either topics or a pattern")
        names = topic_names(topics or ())
        self.pattern = re.compile(pattern) if pattern else None
        self.topics = names if names else await self._matching_topics()

    async def _matching_topics(self) -> frozenset[str]:
        pattern = self.pattern
        if pattern is None:
            return self.topics
        infos = await self.admin.list_topics(internal=not self.config.exclude_internal_topics)
        return frozenset(name for name in infos if pattern.search(name))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of any group's rebalancing."""
        self._check_open()
        if self.topics or self.pattern:
            raise IllegalState("this consumer is subscribed: call unsubscribe() first")
        wanted = {to_partition(partition) for partition in partitions}
        self._assigned_by_hand = bool(wanted)
        self.positions.remove(self.positions.partitions() - wanted)
        self.positions.add(wanted)

    # Polling

    async def step(self, deadline: Deadline, take: Take) -> Rebalance | None:
        """Until `take` took something or the deadline is over. A Rebalance is to be handled before the next step."""
        while True:
            self._check_open()
            if self.member is not None:
                self.member.polled()
            self._changed.clear()
            self._raise_error()
            rebalance = await self._advance()
            if rebalance is not None:
                return rebalance
            self._commit_if_due()
            self._refresh_if_due()
            self._find_positions()
            if self._hand_out(take) or deadline.expired:
                self.fetcher.start_fetches()
                return None
            self.fetcher.start_fetches()
            await self._wait(deadline)

    async def _wait(self, deadline: Deadline) -> None:
        pause_s = min(deadline.remaining_ms, self.config.heartbeat_interval_ms) / 1000
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _raise_error(self) -> None:
        if self.member is not None and self.member.fatal is not None:
            raise self.member.fatal
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _hand_out(self, take: Take) -> bool:
        took = False
        for entry in self.positions:
            if entry.paused:
                continue
            entry.take_back()
            chunk = entry.chunk
            if chunk is None:
                continue
            took = True
            self.positions.to_back(entry.partition)
            if not take(entry, chunk):
                break
        if not took:
            self._raise_problem()
        return took

    def _raise_problem(self) -> None:
        """What cannot be read is told once everything else at hand is handed out, and again with each step."""
        for entry in self.positions:
            if entry.problem is not None and not entry.paused:
                self.positions.to_back(entry.partition)
                raise entry.problem

    # The group

    async def _advance(self) -> Rebalance | None:
        if self._rebalances is None or not self.topics:
            return None
        rebalance = self._rebalances.advance(self.topics)
        if rebalance is not None and rebalance.kind is RebalanceKind.REVOKED:
            await self._commit_before_loss(rebalance.partitions)
        if self._rebalances.phase is Phase.JOINING:
            self._tasks.start("join", self._join, self._rebalances)
        return rebalance

    async def _join(self, rebalances: Rebalances) -> None:
        member = rebalances.member
        await self._tasks.cancel("heartbeats")
        try:
            rebalances.joined(await member.join(rebalances.topics, self.positions.partitions()))
        except Exception as error:  # noqa: BLE001  # the next poll raises it
            rebalances.not_joined()
            if not member.lost:
                self._fail(error)
            return
        self._tasks.start("heartbeats", member.keep_alive)

    def handled(self, rebalance: Rebalance) -> Rebalance | None:
        """The callback for a change is done. There may be a next change at once."""
        return self._rebalances.handled(rebalance) if self._rebalances is not None else None

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions known before their callback runs, so that it can seek in them."""
        self.positions.add(partitions)

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is, for a producer that commits its offsets in a transaction."""
        if self.member is None:
            raise ConfigurationError("group_metadata() needs a group.id")
        if self.config.auto_commit:
            raise ConfigurationError(
                "enable.auto.commit is on: offsets that a transaction commits must not be committed beside it; "
                "set enable.auto.commit=false"
            )
        return self.member.joined_as

    # Positions

    def _find_positions(self) -> None:
        """Look up positions for partitions that have none, without holding up the others."""
        if missing := self.positions.without_position():
            self._tasks.start("positions", self._lookup.find, missing)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this consumer's now."""
        return self.positions.partitions()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, by name or by pattern."""
        return self.topics

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset."""
        self.positions[partition].seek(to_offset(offset))

    async def rewind(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go back to these offsets where the partitions are still assigned: what was taken cannot be handed out."""
        for partition, offset in offsets.items():
            entry = self.positions.get(partition)
            if entry is not None:
                entry.seek(offset)
        self._changed.set()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """To the first record that is still there; of all assigned partitions if none are named."""
        await self._lookup.seek(partitions, OffsetSpec.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """To what comes next; of all assigned partitions if none are named."""
        await self._lookup.seek(partitions, OffsetSpec.LATEST)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """To the first record at or after a time; to the end where there is none."""
        await self._lookup.seek(partitions, timestamp_ms)

    async def seek_to_committed(self) -> None:
        """Back to where the group is: what an aborted transaction had read is read again."""
        for entry in self.positions:
            entry.unset()
        self._changed.set()

    async def position(self, partition: TopicPartition) -> int:
        """The next offset to be handed out."""
        entry = self.positions[partition]
        deadline = self.cluster.deadline()
        while entry.position < 0:
            self._raise_error()
            self._find_positions()
            await self._wait(deadline)
            if deadline.expired:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no position for {entry.partition} could be found")
        return entry.next_offset

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions for now; they stay assigned."""
        for entry in [self.positions[partition] for partition in partitions]:
            entry.paused = True

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause."""
        for entry in [self.positions[partition] for partition in partitions]:
            entry.paused = False
        self._changed.set()

    async def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(entry.partition for entry in self.positions if entry.paused)

    async def lag(self, partition: TopicPartition) -> int:
        """Offsets between the position and the end of what this consumer may read now."""
        position = await self.position(partition)
        (end,) = (await self._lookup.offsets_at([partition], OffsetSpec.LATEST)).values()
        return max(0, end - position)

    # Commits

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; waits for transactions that are about to commit for it."""
        return await self._lookup.committed(partitions)

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit positions, or given offsets. Raises CommitFailed when the partitions are somebody else's now."""
        member = self.member
        if member is None:
            raise ConfigurationError("commit() needs a group.id")
        wanted = (
            self.positions_to_commit()
            if offsets is None
            else {to_partition(partition): full_offset(value) for partition, value in offsets.items()}
        )
        if not wanted:
            return
        subscribed = bool(self.topics or self.pattern)
        committer = member.metadata() if subscribed else GroupMetadata(member.group_id)
        if subscribed and committer.generation_id == NO_GENERATION:
            # To a group without members this would be the commit of an outsider, which it accepts.
            raise _commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, f"group {member.group_id}: this is no member of it now")
        try:
            await commit_offsets(self.cluster, committer, wanted, self.cluster.deadline())
        except KafkaError as error:
            if error.code not in _MEMBERSHIP_GONE:
                raise
            # A join that is under way finds out by itself, and may be the very reason.
            is_joining = self._rebalances is not None and self._rebalances.phase is Phase.JOINING
            if subscribed and error.code != ErrorCode.REBALANCE_IN_PROGRESS and not is_joining:
                member.report_lost(error.code, committer)
            failed = _commit_failed(error.code, error.message)
            failed.in_doubt = error.in_doubt
            raise failed from error

    def positions_to_commit(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            entry.partition: OffsetAndMetadata(entry.next_offset)
            for entry in self.positions
            if entry.next_offset >= 0 and (partitions is None or entry.partition in partitions)
        }

    def _commit_if_due(self) -> None:
        if not self.config.auto_commit or time.monotonic() < self._commit_due_s or "commit" in self._tasks:
            return
        self._commit_due_s = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        if offsets := self.positions_to_commit():
            self._tasks.start("commit", self._commit_quietly, offsets)

    async def _commit_quietly(self, offsets: Offsets) -> None:
        """The next commit covers what this one could not."""
        try:
            await self.commit(offsets)
        except CommitFailed:
            pass
        except KafkaError as error:
            if not is_retriable(error):
                self._fail(error)

    async def _commit_before_loss(self, partitions: Collection[TopicPartition]) -> None:
        if self.config.auto_commit and (offsets := self.positions_to_commit(partitions)):
            await self._commit_quietly(offsets)

    # Metadata

    def _refresh_if_due(self) -> None:
        age_ms = self.config.client.metadata_max_age_ms
        if self.member is not None and self.member.misses_topics:
            age_ms = min(age_ms, self.config.client.retry_backoff_max_ms)  # as Java's consumer asks again for them
        if time.monotonic() - self._refreshed_s >= age_ms / 1000:
            self._refreshed_s = time.monotonic()
            self._tasks.start("metadata", self._refresh)

    async def _refresh(self) -> None:
        """Notice new topics that match the pattern, and new partitions of topics."""
        pattern = self.pattern
        topics = await self._matching_topics()
        if self.pattern is pattern:
            self.topics = topics
        if self._rebalances is not None and self._rebalances.phase is Phase.STABLE:
            await self._rebalances.member.check_topics()

    # The end

    async def leaving(self) -> Rebalance | None:
        """Commit positions if that is on. Returns the change that the application is to be told of before `leave`."""
        held = self.positions.partitions()
        await self._commit_before_loss(held)
        if self._rebalances is not None and held and not self._assigned_by_hand:
            return Rebalance(RebalanceKind.REVOKED, sorted(held))
        return None

    async def leave(self, reason: str) -> None:
        """Give up all partitions and the membership."""
        await self._tasks.cancel("join", "heartbeats")
        self.positions.remove(self.positions.partitions())
        self.topics, self.pattern = frozenset(), None
        self._assigned_by_hand = False
        if self._rebalances is not None:
            self._rebalances.left()
            await self._rebalances.member.leave(reason)

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        try:
            await self.leave("the consumer was closed")
        finally:  # also if this is cancelled
            await self._tasks.close()
            await self.cluster.close()

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that are still there."""
        return await self._lookup.offsets_at(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offsets for read_committed, else the high watermarks."""
        return await self._lookup.offsets_at(partitions, OffsetSpec.LATEST)


def _commit_failed(code: ErrorCode, message: str) -> CommitFailed:
    return CommitFailed(
        code,
        f"{message}: the group rebalanced, and these partitions may be somebody else's now; what was read since the "
        "last commit may be read again. Poll more often, or raise max.poll.interval.ms",
    )
