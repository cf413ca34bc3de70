"""The state of a whole cluster at one moment, taken again and again by a console.

A poll makes a bounded number of requests: with B brokers

    1        cluster, 1 topics and leaders
    2 B      offsets of each thousand of P partitions (end, last stable), and B for their starts in every tenth poll
    B        groups, and B transactional ids
    2 B      producers, only of partitions on which a transaction is open; 1 more if no coordinator knows one of them
    2 G + T  groups and open transactions in detail, at most G and T of them (P, G, T: `PollLimits`)
    8        new records of `__transaction_state`, for rates (`commit_meter`)

If there are more groups than that, each poll describes those whose details are oldest; the others keep what an earlier
poll found, with its time. If there are more than P partitions, each poll asks for the next of them in turn, and in any
case for those that are held back, read by groups or written by transactions. Open transactions are described anew or
not at all: an old description may belong to an earlier transaction of the same id. Those that hold readers back come
first.

What ACLs hide from whoever asks is left out: groups without details, partitions without producers. It does not fail a
poll.

The order of questions makes the answers fit together. Committed offsets are asked for before the ends of partitions,
so that no group seems to be beyond an end. Ends are asked for before last stable offsets, so that records written
meanwhile do not seem to be held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from oncelog.client.admin import Admin, ClusterDescription, GroupDescription, GroupListing, ProducerDescription
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.hashing import coordinator_partition
from oncelog.core.ids import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.monitoring.brokers import BrokerState, broker_states
from oncelog.monitoring.commit_meter import CommitMeter, CommitRates
from oncelog.monitoring.groups import Committed, Group, join_group
from oncelog.monitoring.offsets import PartitionOffsets, partition_offsets
from oncelog.monitoring.open_transactions import (
    HeldBackPartition,
    OpenTransaction,
    hanging_transactions,
    held_back_in,
    join_held_back,
    join_open,
    open_ones,
    without_ended,
)
from oncelog.monitoring.topics import Topic, join_topic, led_partitions
from oncelog.monitoring.transactions import Transaction, describe_known


@dataclass(frozen=True, slots=True)
class PollLimits:
    groups: int = 25
    transactions: int = 50
    partitions: int = 5_000


DEFAULT_LIMITS: Final = PollLimits()
STARTS_EVERY_POLLS: Final = 10
OFFSETS_PER_REQUEST: Final = 1_000
"""A broker answers nobody else while it looks up the offsets of one request."""


@dataclass(frozen=True, slots=True)
class GroupState:
    listing: GroupListing
    group: Group | None
    """None until a poll has described it, and if ACLs hide it."""
    described_ms: int | None
    """When members and committed offsets were asked for; the offsets of partitions are those of the snapshot."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    taken_ms: int
    cluster: ClusterDescription
    brokers: tuple[BrokerState, ...]
    topics: dict[str, Topic]
    """Internal ones included."""
    groups: tuple[GroupState, ...]
    transactions: tuple[Transaction, ...]
    """All transactional ids, in all states."""
    held_back: tuple[HeldBackPartition, ...]
    rates: CommitRates | None = None

    @property
    def open(self) -> list[OpenTransaction]:
        """Open transactions as partitions see them: one entry for each partition that a transaction wrote to."""
        return [one for held in self.held_back for one in (*held.blocking, *held.open_after)]

    def hanging(self, older_than_ms: int) -> list[OpenTransaction]:
        return hanging_transactions(self.open, older_than_ms, self.taken_ms)

    def groups_waiting_at(self, partition: TopicPartition) -> list[str]:
        """Groups from which something is held back there."""
        return [
            state.listing.group_id
            for state in self.groups
            if state.group is not None
            for one in state.group.partitions
            if one.partition == partition and one.lag is not None and one.lag.held_back
        ]

    def offsets_held_by(self, group_id: str) -> list[OpenTransaction]:
        """Open transactions with offsets of the group, or of another group on the same partition of its coordinator."""
        topic = self.topics.get(GROUP_METADATA_TOPIC)
        if topic is None:
            return []
        place = TopicPartition(GROUP_METADATA_TOPIC, coordinator_partition(group_id, len(topic.partitions)))
        return [one for one in self.open if one.partition == place]

    def as_row(self) -> dict[str, Any]:
        return {
            "taken_ms": self.taken_ms,
            "cluster_id": self.cluster.cluster_id,
            "brokers": [one.as_row() for one in self.brokers],
            "topics": [topic.as_row() for topic in self.topics.values()],
            "groups": [
                {
                    **({} if state.group is None else state.group.as_row()),
                    "group": state.listing.group_id,
                    "state": state.listing.state,
                    "described_ms": state.described_ms,
                }
                for state in self.groups
            ],
            "transactions": [one.as_row(self.taken_ms) for one in self.transactions],
            "held_back": [one.as_row(self.taken_ms) for one in self.held_back],
            "rates": self.rates.as_row() if self.rates is not None else None,
        }


class _DescribedGroup(NamedTuple):
    time_ms: int
    description: GroupDescription | None
    """None if ACLs hide it: with Describe of the cluster, all groups are listed."""
    committed: Committed


class Poller:
    """Takes snapshots of one cluster. A poll raises KafkaError if the cluster cannot be asked; the next may succeed."""

    def __init__(
        self,
        admin: Admin,
        limits: PollLimits = DEFAULT_LIMITS,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._admin = admin
        self._limits = limits
        self._now_ms = now_ms
        self._polls = 0
        self._starts: dict[TopicPartition, int] = {}
        self._groups: dict[str, _DescribedGroup] = {}
        self._meter = CommitMeter(admin)
        self._known_offsets: dict[TopicPartition, PartitionOffsets] = {}
        self._next_place = 0
        """Of the partition whose offsets are asked for next, if there are too many for one poll."""
        self._of_transactions: set[TopicPartition] = set()
        self._described_ms: dict[str, int] = {}
        """When each open transaction was described last."""

    def poll(self) -> ClusterSnapshot:
        admin = self._admin
        cluster = admin.describe_cluster()
        infos = admin.list_topics(internal=True)
        listings = admin.list_groups()
        self._describe_groups([listing.group_id for listing in listings])
        offsets = self._offsets(led_partitions(infos.values()))
        held = held_back_in(offsets)
        readable = admin.describe_producers(held, readable_only=True) if held else {}
        producers = open_ones(readable)
        transactions = self._transactions(producers)
        descriptions = {one.transactional_id: one.description for one in transactions if one.description is not None}
        opened = join_open(producers, [one.listing for one in transactions], descriptions)
        return ClusterSnapshot(
            self._now_ms(),
            cluster,
            tuple(broker_states(cluster, infos.values(), {})),
            {name: join_topic(info, offsets) for name, info in sorted(infos.items())},
            tuple(self._group_state(listing, offsets) for listing in listings),
            tuple(transactions),
            tuple(join_held_back(offsets, without_ended(admin, opened), set(held) - readable.keys())),
            self._meter.look(offsets, self._now_ms()),
        )

    def _offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        """Starts move seldom, and only forward: those of an earlier poll are good enough for a while.

        Of more partitions than one poll asks for, the others keep what an earlier poll found.
        """
        if self._polls % STARTS_EVERY_POLLS == 0:
            self._starts = {}
        self._polls += 1
        known = self._known_offsets
        offsets = {partition: known[partition] for partition in partitions if partition in known}
        asked = self._partitions_to_ask(partitions)
        for at in range(0, len(asked), OFFSETS_PER_REQUEST):
            some = asked[at : at + OFFSETS_PER_REQUEST]
            offsets |= partition_offsets(self._admin, some, self._starts)
        self._starts = {partition: found.start for partition, found in offsets.items()}
        self._known_offsets = offsets
        return offsets

    def _partitions_to_ask(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """All, or those that matter most (held back, read by groups, of transactions) and the next of the others."""
        at_once = self._limits.partitions
        if len(partitions) <= at_once:
            return partitions
        held = set(held_back_in(self._known_offsets)) | self._of_transactions
        read = {partition for group in self._groups.values() for partition in group.committed}
        state = {partition for partition in partitions if partition.topic == TRANSACTION_STATE_TOPIC}
        first = [partition for partition in partitions if partition in held | read | state][:at_once]
        places = range(self._next_place, self._next_place + at_once)
        self._next_place = (self._next_place + at_once) % len(partitions)
        return list(dict.fromkeys([*first, *(partitions[place % len(partitions)] for place in places)]))

    def _describe_groups(self, group_ids: list[str]) -> None:
        """Describe some of the groups: first those never described, then those described longest ago."""
        self._groups = {name: self._groups[name] for name in group_ids if name in self._groups}
        oldest = sorted(group_ids, key=lambda name: self._groups[name].time_ms if name in self._groups else -1)
        for name in oldest[: self._limits.groups]:
            self._groups[name] = self._describe_group(name)

    def _describe_group(self, name: str) -> _DescribedGroup:
        try:
            description = self._admin.describe_groups([name])[name]
            committed = self._admin.group_offsets(name)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_AUTHORIZATION_FAILED:
                raise
            return _DescribedGroup(self._now_ms(), None, {})
        return _DescribedGroup(self._now_ms(), description, committed)

    def _group_state(self, listing: GroupListing, offsets: dict[TopicPartition, PartitionOffsets]) -> GroupState:
        known = self._groups.get(listing.group_id)
        if known is None or known.description is None:
            return GroupState(listing, None, None)
        return GroupState(listing, join_group(known.description, known.committed, offsets), known.time_ms)

    def _transactions(self, producers: Iterable[tuple[TopicPartition, ProducerDescription]]) -> list[Transaction]:
        listings = self._admin.list_transactions()
        # Producers come oldest first on each partition: the first of each holds readers back.
        holders = {partition: producer.producer_id for partition, producer in reversed(list(producers))}
        first = set(holders.values())
        opened = [Transaction(found, None) for found in listings if Transaction(found, None).is_open]
        self._described_ms = {one.transactional_id: self._described_ms.get(one.transactional_id, -1) for one in opened}
        opened.sort(key=lambda one: (one.listing.producer_id not in first, self._described_ms[one.transactional_id]))
        chosen = [one.transactional_id for one in opened[: self._limits.transactions]]
        described = describe_known(self._admin, chosen)
        self._described_ms |= dict.fromkeys(chosen, self._now_ms())
        self._of_transactions = {partition for one in described.values() for partition in one.partitions}
        return [Transaction(found, described.get(found.transactional_id)) for found in listings]
