"""What the leader of a partition knows of its followers: how far they are, who is in sync, and what is committed.

Theory of operation
-------------------
A `Replicas` object belongs to one leadership, that is to one leader epoch. What followers told another leader, or this
one in an earlier epoch, does not count: at the start the ends of their logs are unknown.

A fetch from offset n says that the follower has everything below n. The high watermark is the smallest end of the
members of the ISR, the leader included. It stands still while the ISR is smaller than `min.insync.replicas`.

Only the controller changes the ISR. The leader proposes a change, and until it knows the outcome, both the old and the
proposed ISR may be in force. The high watermark therefore waits for the members of both: the maximal ISR. It also waits
for a follower that has caught up and could join at any moment.

    no proposal --expansion, shrink--> proposal --answered or metadata--> no proposal

- A follower joins when it is at or above the high watermark and the start of the leader epoch, and the controller would
  accept it: it is neither fenced nor shutting down, and it fetches under the broker epoch that is registered.
- A member leaves when it has not been at the end of the leader's log for `replica.lag.time.max.ms`. The owner looks
  for such members every half of that time.
- `REACTIONS` lists what follows from the controller's answer. The answer and the metadata log race; the higher
  partition epoch wins, and new metadata ends the proposal.

There is no clock: times come in, from a clock that is never set. The high watermark uses the last time that came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Final, Protocol

from oncelog.cluster.partition_state import PartitionState
from oncelog.core.broker_config import BROKER_CONFIG
from oncelog.core.config import setting
from oncelog.core.dataclass import dataclass
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import NodeId
from oncelog.core.invariant import invariant
from oncelog.core.named_tuple import NamedTuple

UNKNOWN: Final = -1
"""An offset or a broker epoch that nobody has told yet."""


class Registration(Protocol):
    """What the metadata says of a broker; see `controller.registrations.BrokerRegistration`."""

    @property
    def epoch(self) -> int: ...
    @property
    def is_fenced(self) -> bool: ...
    @property
    def in_controlled_shutdown(self) -> bool: ...
    @property
    def rack(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    registration_of: Callable[[NodeId], Registration | None]
    lag_max_ms: int = setting(BROKER_CONFIG["replica.lag.time.max.ms"])


class ReplicaFetch(NamedTuple):
    """What a follower's fetch says of its log."""

    offset: int
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN


class Follower(NamedTuple):
    """What one follower has told in this leader epoch. Replaced as a whole, so that its fields always fit together."""

    end_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    caught_up_ms: int | None = None
    """When it last had everything; None: never in this epoch."""
    fetched_ms: int = 0
    leader_end_offset: int = UNKNOWN
    """Where the leader's log ended at that fetch."""
    has_left: bool = False
    """It is out of the ISR since that fetch."""

    def after(self, fetch: ReplicaFetch, leader_end_offset: int, now_ms: int) -> Follower:
        caught_up_ms = self.caught_up_ms
        if fetch.offset >= leader_end_offset:
            caught_up_ms = now_ms
        elif self.leader_end_offset != UNKNOWN and fetch.offset >= self.leader_end_offset:
            # It has all that was there when it fetched before: under constant load it never has more.
            caught_up_ms = self.fetched_ms
        return Follower(
            fetch.offset, fetch.log_start_offset, fetch.broker_epoch, caught_up_ms, now_ms, leader_end_offset
        )

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        if self.end_offset == leader_end_offset:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_max_ms


class IsrMember(NamedTuple):
    broker_id: NodeId
    broker_epoch: int


class IsrProposal(NamedTuple):
    leader_epoch: int
    partition_epoch: int
    members: tuple[IsrMember, ...]

    @property
    def in_sync(self) -> tuple[NodeId, ...]:
        return tuple(member.broker_id for member in self.members)


class ProposalReaction(Enum):
    COMMIT = auto()
    """The proposal is in force."""
    REVERT = auto()
    """Nothing was changed: the old ISR is in force."""
    WAIT = auto()
    """It may have been applied, or the metadata is ahead: the next metadata tells."""
    RETRY = auto()


REACTIONS: Final[dict[int, ProposalReaction]] = {
    ErrorCode.NONE: ProposalReaction.COMMIT,
    ErrorCode.INELIGIBLE_REPLICA: ProposalReaction.REVERT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: ProposalReaction.REVERT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProposalReaction.WAIT,
    ErrorCode.UNKNOWN_TOPIC_ID: ProposalReaction.WAIT,
    ErrorCode.FENCED_LEADER_EPOCH: ProposalReaction.WAIT,
    ErrorCode.INVALID_REQUEST: ProposalReaction.WAIT,
    ErrorCode.INVALID_UPDATE_VERSION: ProposalReaction.WAIT,
    ErrorCode.NEW_LEADER_ELECTED: ProposalReaction.WAIT,
}
"""Any other error is retried: it says nothing about the proposal."""


class Replicas:
    __slots__ = ("_node_id", "_rules", "epoch_start_offset", "followers", "now_ms", "proposal", "state")

    def __init__(
        self, node_id: NodeId, state: PartitionState, rules: ReplicaRules, *, epoch_start_offset: int, now_ms: int
    ) -> None:
        invariant(state.leader == node_id, "broker %s keeps followers of a leader %s", node_id, state.leader)
        self._node_id = node_id
        self._rules = rules
        self.state = state
        """With the last ISR that is known to be in force."""
        self.proposal: IsrProposal | None = None
        self.epoch_start_offset = epoch_start_offset
        self.now_ms = now_ms
        self.followers: dict[NodeId, Follower] = {}
        self._meet_followers()

    def _meet_followers(self) -> None:
        """A member of the ISR was in sync under the leader before, and has a whole time span to fetch."""
        self.followers = {
            replica: self.followers.get(replica)
            or Follower(caught_up_ms=self.now_ms if replica in self.state.in_sync else None)
            for replica in self.state.replicas
            if replica != self._node_id
        }

    # What comes in

    def tick(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def check_replica(self, replica: NodeId) -> None:
        """A broker that is no replica may know newer metadata, in which it is one."""
        if replica not in self.followers:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} is not known as a replica here")

    def on_fetch(self, replica: NodeId, fetch: ReplicaFetch, leader_end_offset: int, now_ms: int) -> None:
        """A follower fetches in this leader epoch, and its log does not diverge from the leader's."""
        self.check_replica(replica)
        registration = self._rules.registration_of(replica)
        if registration is not None and UNKNOWN < fetch.broker_epoch < registration.epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica} fetches under epoch {fetch.broker_epoch}, but has registered with "
                f"{registration.epoch} since",
            )
        self.tick(now_ms)
        self.followers[replica] = self.followers[replica].after(fetch, leader_end_offset, self.now_ms)

    def on_state(self, state: PartitionState, now_ms: int) -> None:
        """New metadata of the same leader epoch. It ends the open proposal, unless it is older than what is known."""
        invariant(state.leader_epoch == self.state.leader_epoch, "a leadership has one epoch")
        self.tick(now_ms)
        if state.partition_epoch <= self.state.partition_epoch:
            return
        # A proposal that is not in it yet will be refused: it was made for an older partition epoch.
        before, self.state, self.proposal = self.state, state, None
        self._note_those_who_left(before)
        self._meet_followers()

    def _note_those_who_left(self, before: PartitionState) -> None:
        """They may come back when they fetch again, and not for what they had when they fell behind: while too few are
        in sync the high watermark stands still, and a follower that is away would have all that is committed."""
        for replica in set(before.in_sync) - set(self.state.in_sync):
            follower = self.followers.get(replica)
            if follower is not None:
                self.followers[replica] = follower._replace(has_left=True)

    # What is committed

    @property
    def maximal_isr(self) -> frozenset[NodeId]:
        return frozenset(self.state.in_sync).union(self.proposal.in_sync if self.proposal is not None else ())

    def is_under_min(self, min_insync_replicas: int) -> bool:
        return len(self.state.in_sync) < min(min_insync_replicas, len(self.state.replicas))

    def is_at_min(self, min_insync_replicas: int) -> bool:
        return len(self.state.in_sync) == min(min_insync_replicas, len(self.state.replicas))

    def high_watermark(self, own_end_offset: int, leader_end_offset: int, min_insync_replicas: int) -> int:
        """Below it everything is committed; -1 if nothing can be said.

        `own_end_offset` is how much of the leader's own log counts, which may be less than there is.
        """
        if self.is_under_min(min_insync_replicas):
            return UNKNOWN
        if not self.followers:
            return own_end_offset
        maximal_isr = self.maximal_isr
        ends = [
            follower.end_offset
            for replica, follower in self.followers.items()
            if replica in maximal_isr or self._could_join_now(replica, follower, leader_end_offset)
        ]
        return min([own_end_offset, *ends])

    def have_deleted(self, offset: int) -> bool:
        """Whether no follower has a record below `offset` any more, as far as they are there."""
        return all(
            follower.log_start_offset >= offset
            for replica, follower in self.followers.items()
            if (registration := self._rules.registration_of(replica)) is not None and not registration.is_fenced
        )

    def _could_join_now(self, replica: NodeId, follower: Follower, leader_end_offset: int) -> bool:
        is_caught_up = follower.is_caught_up(leader_end_offset, self.now_ms, self._rules.lag_max_ms)
        return is_caught_up and self._is_eligible(replica, follower)

    def _is_eligible(self, replica: NodeId, follower: Follower) -> bool:
        """Whether the controller would take it into the ISR."""
        registration = self._rules.registration_of(replica)
        if registration is None or registration.is_fenced or registration.in_controlled_shutdown:
            return False
        return follower.end_offset != UNKNOWN and follower.broker_epoch in (UNKNOWN, registration.epoch)

    # Who else may be read from

    def readers_in(self, rack: str, offset: int) -> list[NodeId]:
        """Followers of that rack that have committed records from `offset` on, the most current first (KIP-392).

        None if the leader itself is there.
        """
        own = self._rules.registration_of(self._node_id)
        if own is not None and own.rack == rack:
            return []
        found = [
            (follower.end_offset, follower.caught_up_ms or 0, replica)
            for replica, follower in self.followers.items()
            if replica in self.state.in_sync and follower.log_start_offset <= offset <= follower.end_offset
            if (registration := self._rules.registration_of(replica)) is not None
            and registration.rack == rack and not registration.is_fenced
        ]  # fmt: skip
        return [replica for _, _, replica in sorted(found, reverse=True)]

    # Who is in sync

    def propose_expansion(
        self, high_watermark: int, own_broker_epoch: int, log_start_offset: int = 0
    ) -> IsrProposal | None:
        """After a fetch or a change of metadata.

        A follower that still has what was deleted here joins when it has deleted it as well, one fetch later. Nobody
        can tell any more whether its records there are those that were committed. Kafka takes it in at once.
        """
        joining = [
            replica
            for replica, follower in self.followers.items()
            if replica not in self.state.in_sync
            and not follower.has_left
            and follower.end_offset >= max(high_watermark, self.epoch_start_offset)
            and (follower.log_start_offset == UNKNOWN or follower.log_start_offset >= log_start_offset)
            and self._is_eligible(replica, follower)
        ]
        return self._propose([*self.state.in_sync, *joining], own_broker_epoch) if joining else None

    def propose_shrink(self, leader_end_offset: int, own_broker_epoch: int, now_ms: int) -> IsrProposal | None:
        """To be called every half of `replica.lag.time.max.ms`."""
        self.tick(now_ms)
        lag_max_ms = self._rules.lag_max_ms
        staying = [
            replica
            for replica in self.state.in_sync
            if replica == self._node_id
            or self.followers[replica].is_caught_up(leader_end_offset, self.now_ms, lag_max_ms)
        ]
        is_shrink = len(staying) < len(self.state.in_sync)
        return self._propose(staying, own_broker_epoch) if is_shrink else None

    def _propose(self, in_sync: list[NodeId], own_broker_epoch: int) -> IsrProposal | None:
        if self.proposal is not None:
            return None
        members = tuple(IsrMember(replica, self._broker_epoch(replica, own_broker_epoch)) for replica in in_sync)
        self.proposal = IsrProposal(self.state.leader_epoch, self.state.partition_epoch, members)
        return self.proposal

    def _broker_epoch(self, replica: NodeId, own_broker_epoch: int) -> int:
        return own_broker_epoch if replica == self._node_id else self.followers[replica].broker_epoch

    def on_answer(
        self, proposal: IsrProposal, code: int, *, in_sync: tuple[NodeId, ...], leader_epoch: int, partition_epoch: int
    ) -> ProposalReaction:
        """The controller's answer to a proposal, which is of no interest if metadata came before it."""
        if proposal is not self.proposal:
            return ProposalReaction.WAIT
        reaction = REACTIONS.get(code, ProposalReaction.RETRY)
        if reaction is ProposalReaction.COMMIT:
            if leader_epoch != self.state.leader_epoch or partition_epoch < self.state.partition_epoch:
                return ProposalReaction.WAIT
            before, self.state = self.state, replace(self.state, in_sync=in_sync, partition_epoch=partition_epoch)
            self._note_those_who_left(before)
        if reaction in (ProposalReaction.COMMIT, ProposalReaction.REVERT):
            self.proposal = None
        return reaction
