"""A consumer on its event loop.

Theory of operation. Everything happens in `step`, which a poll of the application calls until it has records or its
time is over. A step brings the group membership forward, commits if that is due, finds positions for partitions that
have none, and hands out what the fetcher has at hand. When partitions come or go, `step` returns that instead: the
application's callback runs in the application's own context, and `handled` tells when it is done. The phases of the
membership:

    phase       left when
    OUT         subscribed: -> JOINING, after giving up what is held (eager)
    GIVING_UP   the callback for revoked or lost partitions was handled
    JOINING     the join has succeeded: -> TAKING, by way of GIVING_UP if the cooperative protocol took something away
    TAKING      the callback for assigned partitions was handled: -> STABLE
    STABLE      the group rebalances (-> JOINING, by way of GIVING_UP if eager) or the membership is lost (-> GIVING_UP)
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from oncelog.client.admin_topics import TopicAdmin
from oncelog.client.cluster import Cluster
from oncelog.client.consumer_config import ConsumerConfig
from oncelog.client.consumer_fetcher import ConsumerFetcher
from oncelog.client.consumer_positions import NO_POSITION, PartitionPosition, Positions
from oncelog.client.deadline import Deadline
from oncelog.client.errors import (
    CommitFailed,
    ConfigurationError,
    ErrorCode,
    IllegalState,
    KafkaError,
    is_retriable,
)
from oncelog.client.fetcher import FetchedChunk
from oncelog.client.group_member import NO_GENERATION, GroupMember
from oncelog.client.offsets import (
    GroupMetadata,
    OffsetAndMetadata,
    Offsets,
    commit_offsets,
    fetch_offsets,
    full_offset,
)
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


class Phase(Enum):
    OUT = "out"
    GIVING_UP = "giving up"
    JOINING = "joining"
    TAKING = "taking"
    STABLE = "stable"


class Change(Enum):
    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


class Rebalance(NamedTuple):
    """Partitions that come or go; the consumer waits for `handled`."""

    change: Change
    partitions: list[TopicPartition]


class ConsumerCore:
    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.positions = Positions()
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self._changed = asyncio.Event()
        self._error: KafkaError | None = None
        self._phase = Phase.OUT
        self._assigned_by_hand = False
        self._joining: asyncio.Task[list[TopicPartition]] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._joined_topics: frozenset[str] = frozenset()
        self._target: list[TopicPartition] | None = None
        self._positioning: asyncio.Task[None] | None = None
        self._resetting: set[asyncio.Task[None]] = set()
        self._committing: asyncio.Task[None] | None = None
        self._commit_due_s = time.monotonic() + config.auto_commit_interval_ms / 1000
        self._refresh_due_s = time.monotonic() + config.client.metadata_max_age_ms / 1000
        self._refreshing: asyncio.Task[None] | None = None
        self.member = GroupMember(cluster, config, self._changed.set) if config.group_id else None
        self.admin = TopicAdmin(cluster)
        self.fetcher = ConsumerFetcher(
            cluster,
            config,
            self.positions,
            changed=self._changed.set,
            out_of_range=self._out_of_range,
            failed=self._fail,
        )

    def _deadline(self) -> Deadline:
        return self.cluster.deadline()

    def _fail(self, error: KafkaError) -> None:
        self._error = self._error or error
        self._changed.set()

    # What to read

    async def subscribe(self, topics: Collection[str] = (), pattern: str | None = None) -> None:
        if self.member is None:
            raise ConfigurationError("subscribe() needs a group.id; without one use assign()")
        if self._assigned_by_hand:
            raise IllegalState("partitions were assigned by hand: call unsubscribe() first")
        if bool(topics) == bool(pattern):
            raise IllegalState("give either topics or a pattern")
        self.pattern = re.compile(pattern) if pattern else None
        self.topics = frozenset(topics) if topics else await self._matching_topics()

    async def _matching_topics(self) -> frozenset[str]:
        pattern = self.pattern
        if pattern is None:
            return self.topics
        infos = await self.admin.list_topics(internal=not self.config.exclude_internal_topics)
        return frozenset(name for name in infos if pattern.search(name))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of any group's rebalancing."""
        if self.topics or self.pattern:
            raise IllegalState("this consumer is subscribed: call unsubscribe() first")
        wanted = {TopicPartition(*partition) for partition in partitions}
        self._assigned_by_hand = bool(wanted)
        self.positions.remove(self.positions.partitions() - wanted)
        self.positions.add(wanted)

    # Polling

    async def step(self, deadline: Deadline, take: Take) -> Rebalance | None:
        """Until `take` took something or the deadline is over. A Rebalance is to be handled before the next step."""
        while True:
            if self.member is not None:
                self.member.polled()
            self._changed.clear()
            self._raise_error()
            rebalance = await self._advance()
            if rebalance is not None:
                return rebalance
            self._commit_if_due()
            self._refresh_if_due()
            self._position()
            if self._hand_out(take) or deadline.expired:
                self.fetcher.look()
                return None
            self.fetcher.look()
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
            chunk = entry.chunk
            if chunk is None or entry.paused:
                continue
            took = True
            self.positions.to_back(entry.partition)
            if not take(entry, chunk):
                break
        return took

    # The group

    async def _advance(self) -> Rebalance | None:
        member = self.member
        if member is None or not self.topics:
            return None
        if member.lost and self._phase is not Phase.JOINING:
            return self._lose()
        if self._phase is Phase.STABLE and (member.rejoin_needed or self.topics != self._joined_topics):
            if not member.cooperative and len(self.positions):
                await self._commit_before_loss()
                return self._give_up(Change.REVOKED, self.positions.partitions())
            self._phase = Phase.OUT
        if self._phase is Phase.OUT:
            self._join(member)
        if self._phase is Phase.JOINING:
            return await self._joined(member)
        return None

    def _lose(self) -> Rebalance | None:
        if self.member is not None:
            self.member.lost = False
        lost = self.positions.partitions()
        if not lost:
            self._phase = Phase.OUT
            return None
        return self._give_up(Change.LOST, lost)

    def _give_up(self, change: Change, partitions: Iterable[TopicPartition]) -> Rebalance:
        self._phase = Phase.GIVING_UP
        return Rebalance(change, sorted(partitions))

    def _join(self, member: GroupMember) -> None:
        self._joined_topics = self.topics
        self._joining = asyncio.create_task(self._run_join(member, self.topics, self.positions.partitions()))
        self._joining.add_done_callback(lambda _: self._changed.set())
        self._phase = Phase.JOINING

    async def _run_join(
        self, member: GroupMember, topics: frozenset[str], owned: frozenset[TopicPartition]
    ) -> list[TopicPartition]:
        await self._stop_heartbeats()
        assigned = await member.join(topics, owned)
        self._heartbeats = asyncio.create_task(member.keep_alive())
        return assigned

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _joined(self, member: GroupMember) -> Rebalance | None:
        if self._joining is None or not self._joining.done():
            return None
        joining, self._joining = self._joining, None
        try:
            self._target = joining.result()
        except KafkaError:
            self._phase = Phase.OUT
            if member.lost:
                return self._lose()
            raise
        gone = self.positions.partitions() - set(self._target)
        if gone:
            # Only the cooperative protocol keeps partitions through a join. What it took away is somebody else's after
            # the next rebalance, so that one is asked for as soon as this one is done.
            member.rejoin_needed = True
            await self._commit_before_loss(gone)
            return self._give_up(Change.REVOKED, gone)
        return self._take_target()

    def _take_target(self) -> Rebalance:
        self._phase = Phase.TAKING
        target = self._target or []
        return Rebalance(Change.ASSIGNED, sorted(set(target) - self.positions.partitions()))

    def handled(self, rebalance: Rebalance) -> Rebalance | None:
        """The callback for a change is done. There may be a next change at once."""
        if rebalance.change is Change.ASSIGNED:
            self.positions.add(rebalance.partitions)
            self._target = None
            self._phase = Phase.STABLE
            return None
        self.positions.remove(rebalance.partitions)
        if self._target is not None and rebalance.change is Change.REVOKED:
            return self._take_target()
        self._phase = Phase.OUT
        return None

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

    def _position(self) -> None:
        """Find positions for partitions that have none, without holding up the others."""
        if self._positioning is None and (missing := self.positions.without_position()):
            self._positioning = asyncio.create_task(self._find_positions(missing))

    async def _find_positions(self, missing: list[TopicPartition]) -> None:
        versions = {p: entry.version for p in missing if (entry := self.positions.get(p)) is not None}
        try:
            committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
            if self.member is not None:
                committed = await self.committed(missing)
            found = self._beginnings(missing)
            found.update((partition, offset.offset) for partition, offset in committed.items())
            rest = [partition for partition in missing if partition not in found]
            found.update(await self._reset_offsets(rest))
            for partition, offset in found.items():
                entry = self.positions.get(partition)
                if entry is not None and entry.version == versions.get(partition):
                    entry.seek(offset)
        except KafkaError as error:
            if is_retriable(error):
                await asyncio.sleep(self.config.client.retry_backoff_ms / 1000)
            else:
                self._fail(error)
        finally:
            self._positioning = None
            self._changed.set()

    def _beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where this consumer began. The reset policy was asked then, and by now the latest would skip what it read."""
        entries = [entry for partition in partitions if (entry := self.positions.get(partition)) is not None]
        return {entry.partition: entry.began_at for entry in entries if entry.began_at != NO_POSITION}

    async def _reset_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        if self.config.offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"no committed offset for {', '.join(map(str, partitions))} and auto.offset.reset=none: "
                "seek, or commit one",
            )
        spec = OffsetSpec.EARLIEST if self.config.offset_reset == "earliest" else OffsetSpec.LATEST
        found = await self.admin.list_offsets(dict.fromkeys(partitions, spec), isolation=self.config.isolation)
        return {partition: result.offset for partition, result in found.items()}

    def _out_of_range(self, entry: PartitionPosition) -> None:
        if self.config.offset_reset == "none":
            self._fail(
                KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{entry.partition} has no offset {entry.fetch_position} any more, or not yet, and "
                    "auto.offset.reset=none: seek to where to go on",
                )
            )
            return
        version, asked = entry.version, entry.fetch_position

        async def reset() -> None:
            try:
                found = await self._reset_offsets([entry.partition])
                if entry.version == version:
                    entry.seek(found[entry.partition])
            except KafkaError as error:
                self._fail(error)
                if entry.version == version:
                    # The next fetch finds it out of range again, and this is tried once more.
                    entry.fetch_position = asked
            self._changed.set()

        entry.fetch_position = -1
        task = asyncio.create_task(reset())
        self._resetting.add(task)
        task.add_done_callback(self._resetting.discard)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this consumer's now."""
        return self.positions.partitions()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, by name or by pattern."""
        return self.topics

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset."""
        self.positions[partition].seek(offset)

    async def take_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on at these offsets where the partitions are still assigned: what was taken from there was of no use."""
        for partition, offset in offsets.items():
            entry = self.positions.get(partition)
            if entry is not None:
                entry.seek(offset)
        self._changed.set()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """To the first record that is still there; of all assigned partitions if none are named."""
        await self._seek_to(partitions, OffsetSpec.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """To what comes next; of all assigned partitions if none are named."""
        await self._seek_to(partitions, OffsetSpec.LATEST)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """To the first record at or after a time; to the end where there is none."""
        await self._seek_to(partitions, timestamp_ms)

    async def _seek_to(self, partitions: Iterable[TopicPartition], spec: int) -> None:
        wanted = [TopicPartition(*partition) for partition in partitions] or list(self.positions.partitions())
        found = await self.admin.list_offsets(dict.fromkeys(wanted, spec), isolation=self.config.isolation)
        late = [partition for partition in wanted if found[partition].offset < 0]
        ends = {}
        if late:
            ends = await self.admin.list_offsets(
                dict.fromkeys(late, OffsetSpec.LATEST), isolation=self.config.isolation
            )
        for partition in wanted:
            self.positions[partition].seek((ends if partition in ends else found)[partition].offset)

    async def seek_to_committed(self) -> None:
        """Back to where the group is: what an aborted transaction had read is read again."""
        for entry in self.positions:
            entry.unset()
        self._changed.set()

    async def position(self, partition: TopicPartition) -> int:
        """The next offset to be handed out."""
        entry = self.positions[partition]
        deadline = self._deadline()
        while entry.position < 0:
            self._raise_error()
            self._position()
            await self._wait(deadline)
            if deadline.expired:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no position for {entry.partition} could be found")
        return entry.position

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions for now; they stay assigned."""
        for partition in partitions:
            self.positions[partition].paused = True

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause."""
        for partition in partitions:
            self.positions[partition].paused = False
        self._changed.set()

    async def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(entry.partition for entry in self.positions if entry.paused)

    async def lag(self, partition: TopicPartition) -> int:
        """Offsets between the position and the end of what this consumer may read now."""
        position = await self.position(partition)
        target = TopicPartition(*partition)
        ends = await self.admin.list_offsets({target: OffsetSpec.LATEST}, isolation=self.config.isolation)
        return max(0, ends[target].offset - position)

    # Commits

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; waits for transactions that are about to commit for it."""
        if self.member is None:
            raise ConfigurationError("committed() needs a group.id")
        wanted = [TopicPartition(*partition) for partition in partitions]
        return await fetch_offsets(self.cluster, self.member.group_id, wanted, self._deadline(), require_stable=True)

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit positions, or given offsets. Raises CommitFailed when the partitions are somebody else's now."""
        member = self.member
        if member is None:
            raise ConfigurationError("commit() needs a group.id")
        wanted = (
            self.positions_to_commit()
            if offsets is None
            else {TopicPartition(*partition): full_offset(value) for partition, value in offsets.items()}
        )
        if not wanted:
            return
        subscribed = bool(self.topics or self.pattern)
        committer = member.metadata() if subscribed else GroupMetadata(member.group_id)
        if subscribed and committer.generation_id == NO_GENERATION:
            # To a group without members this would be the commit of an outsider, which it accepts.
            raise _commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, f"group {member.group_id}: this is no member of it now")
        try:
            await commit_offsets(self.cluster, committer, wanted, self._deadline())
        except KafkaError as error:
            if error.code not in _MEMBERSHIP_GONE:
                raise
            # A join that is under way finds out by itself, and may be the very reason.
            is_news = error.code != ErrorCode.REBALANCE_IN_PROGRESS and self._phase is not Phase.JOINING
            if is_news and subscribed:
                member.report_lost(error.code, committer)
            raise _commit_failed(error.code, error.message) from error

    def positions_to_commit(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            entry.partition: OffsetAndMetadata(entry.position)
            for entry in self.positions
            if entry.position >= 0 and (partitions is None or entry.partition in partitions)
        }

    def _commit_if_due(self) -> None:
        if not self.config.auto_commit or time.monotonic() < self._commit_due_s or self._committing is not None:
            return
        self._commit_due_s = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        offsets = self.positions_to_commit()
        if offsets:
            self._committing = asyncio.create_task(self._commit_quietly(offsets))

    async def _commit_quietly(self, offsets: Offsets) -> None:
        """The next commit covers what this one could not."""
        try:
            await self.commit(offsets)
        except CommitFailed:
            pass
        except KafkaError as error:
            if not is_retriable(error):
                self._fail(error)
        finally:
            self._committing = None

    async def _commit_before_loss(self, partitions: Collection[TopicPartition] | None = None) -> None:
        if self.config.auto_commit and (offsets := self.positions_to_commit(partitions)):
            await self._commit_quietly(offsets)

    # Metadata

    def _refresh_if_due(self) -> None:
        if time.monotonic() >= self._refresh_due_s and self._refreshing is None:
            self._refresh_due_s = time.monotonic() + self.config.client.metadata_max_age_ms / 1000
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        """Notice new topics that match the pattern, and new partitions of topics."""
        try:
            pattern = self.pattern
            topics = await self._matching_topics()
            if self.pattern is pattern:
                self.topics = topics
            if self.member is not None and self._phase is Phase.STABLE:
                await self.member.check_topics()
        except KafkaError as error:
            if not is_retriable(error):
                self._fail(error)
        finally:
            self._refreshing = None
            self._changed.set()

    # The end

    async def leaving(self) -> Rebalance | None:
        """Commit what is to be committed; the change that the application is to be told before `leave`."""
        await self._commit_before_loss()
        if self.member is not None and len(self.positions) and not self._assigned_by_hand:
            return Rebalance(Change.REVOKED, sorted(self.positions.partitions()))
        return None

    async def leave(self, reason: str) -> None:
        """Give up all partitions and the membership."""
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
        self.positions.remove(self.positions.partitions())
        self.topics, self.pattern = frozenset(), None
        self._assigned_by_hand = False
        self._phase, self._target = Phase.OUT, None
        if self.member is not None:
            await self._stop_heartbeats()
            await self.member.leave(reason)

    async def close(self) -> None:
        await self.leave("the consumer was closed")
        await self.fetcher.close()
        tasks = [t for t in (self._positioning, self._committing, self._refreshing, *self._resetting) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.cluster.close()

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that are still there."""
        return await self._offsets_at(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offsets for read_committed, else the high watermarks."""
        return await self._offsets_at(partitions, OffsetSpec.LATEST)

    async def _offsets_at(self, partitions: Iterable[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys((TopicPartition(*partition) for partition in partitions), spec)
        found = await self.admin.list_offsets(wanted, isolation=self.config.isolation)
        return {partition: result.offset for partition, result in found.items()}


def _commit_failed(code: ErrorCode, message: str) -> CommitFailed:
    return CommitFailed(
        code,
        f"{message}: the group rebalanced, and these partitions may be somebody else's now; what was read since the "
        "last commit will be read again. Poll more often, or raise max.poll.interval.ms",
    )
