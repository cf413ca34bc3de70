"""The leader's view of its followers: what is committed, who is in sync, and what the controller's answers do."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replicas import (
    REACTIONS,
    Follower,
    IsrProposal,
    ProposalReaction,
    ReplicaFetch,
    ReplicaRules,
    Replicas,
)
from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.ids import LeaderEpoch, NodeId
from oncelog.core.invariant import InvariantError

LAG_MS = 1000
START_MS = 5000
EPOCH_START = 10


class Broker(NamedTuple):
    epoch: int
    is_fenced: bool = False
    in_controlled_shutdown: bool = False


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


class Led:
    """Broker 1 leads; the brokers 2 and 3 are registered under the epochs 20 and 30."""

    def __init__(self, in_sync: tuple[int, ...] = (1, 2, 3), replicas: tuple[int, ...] = (1, 2, 3)) -> None:
        self.brokers = {1: Broker(10), 2: Broker(20), 3: Broker(30)}
        self.state = PartitionState(NodeId(1), LeaderEpoch(7), ids(*replicas), ids(*in_sync), partition_epoch=4)
        self.now_ms = START_MS
        self.replicas = Replicas(
            NodeId(1),
            self.state,
            ReplicaRules(lambda broker: self.brokers.get(broker), LAG_MS),
            epoch_start_offset=EPOCH_START,
            now_ms=START_MS,
        )

    def fetch(self, broker: int, offset: int, *, end: int = 20, epoch: int | None = None, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        broker_epoch = self.brokers[broker].epoch if epoch is None else epoch
        self.replicas.on_fetch(NodeId(broker), ReplicaFetch(offset, 0, broker_epoch), end, self.now_ms)

    def high_watermark(self, own: int = 20, *, end: int = 20, minimum: int = 1) -> int:
        return self.replicas.high_watermark(own, end, minimum)

    def expand(self, high_watermark: int = 15) -> IsrProposal | None:
        return self.replicas.propose_expansion(high_watermark, 10)

    def shrink(self, *, end: int = 20, after_ms: int = 0) -> IsrProposal | None:
        self.now_ms += after_ms
        return self.replicas.propose_shrink(end, 10, self.now_ms)

    def answer(
        self, proposal: IsrProposal, code: int = 0, *, epoch: int = 7, partition_epoch: int = 5
    ) -> ProposalReaction:
        return self.replicas.on_answer(
            proposal, code, in_sync=proposal.in_sync, leader_epoch=epoch, partition_epoch=partition_epoch
        )

    def metadata(self, *in_sync: int, partition_epoch: int = 5) -> None:
        state = PartitionState(NodeId(1), LeaderEpoch(7), self.state.replicas, ids(*in_sync), partition_epoch)
        self.replicas.on_state(state, self.now_ms)


@pytest.mark.parametrize(
    ("in_sync", "fetched", "own", "minimum", "expected"),
    [
        ((1, 2, 3), {2: 20, 3: 18}, 20, 1, 18),
        ((1, 2, 3), {2: 12, 3: 18}, 20, 1, 12),
        ((1, 2, 3), {2: 20}, 20, 1, -1),
        ((1, 2, 3), {}, 20, 1, -1),
        ((1, 2, 3), {2: 20, 3: 20}, 16, 1, 16),
        ((1, 2), {2: 17, 3: 11}, 20, 2, 17),
        ((1, 2), {2: 17, 3: 20}, 20, 2, 17),
        ((1,), {2: 11, 3: 12}, 20, 1, 20),
        ((1,), {}, 20, 1, 20),
        ((1,), {}, 20, 2, -1),
        ((1, 2), {2: 20}, 20, 3, -1),
        ((1, 2, 3), {2: 20, 3: 20}, 20, 5, 20),
    ],
    ids=[
        "the slowest member",
        "whoever it is",
        "a member that has not fetched in this epoch",
        "nobody has fetched",
        "the leader's own log counts up to what is on disk",
        "not a follower that is no member and behind",
        "nor one that is ahead of a member",
        "the leader is alone in sync",
        "and nobody fetches",
        "below min.insync.replicas it stands still",
        "also with two of three",
        "more than all replicas cannot be asked for",
    ],
)
def test_high_watermark(
    in_sync: tuple[int, ...], fetched: dict[int, int], own: int, minimum: int, expected: int
) -> None:
    led = Led(in_sync)
    for broker, offset in fetched.items():
        led.fetch(broker, offset)
    assert led.high_watermark(own, minimum=minimum) == expected


def test_one_replica_commits_what_it_has() -> None:
    assert Led((1,), replicas=(1,)).high_watermark(13, minimum=3) == 13


def test_the_high_watermark_waits_for_a_follower_that_could_join_at_any_moment() -> None:
    """And only for such a one (KAFKA-15021)."""
    led = Led((1,))
    led.fetch(2, 20, end=20)
    assert led.high_watermark(25, end=25) == 20, "it is caught up, and the controller would take it"
    led.brokers[2] = Broker(20, in_controlled_shutdown=True)
    assert led.high_watermark(25, end=25) == 25, "it cannot join: waiting would block every produce"
    led.brokers[2] = Broker(20)
    led.replicas.tick(led.now_ms + LAG_MS + 1)
    assert led.high_watermark(25, end=25) == 25, "it has been behind for too long"


@pytest.mark.parametrize(
    ("fetches", "expected_ms"),
    [
        ([(0, 20, 20)], 0),
        ([(0, 19, 20)], None),
        ([(0, 15, 20), (300, 20, 30)], 0),
        ([(0, 15, 20), (300, 19, 30)], None),
        ([(0, 20, 20), (300, 15, 30)], 0),
        ([(0, 15, 20), (300, 20, 30), (300, 30, 40)], 300),
    ],
    ids=[
        "at the end",
        "one record behind",
        "at the end that the leader had at the fetch before",
        "not even there",
        "what it had stays known",
        "under constant load it is always one fetch behind",
    ],
)
def test_when_a_follower_was_last_caught_up(fetches: list[tuple[int, int, int]], expected_ms: int | None) -> None:
    follower, now_ms = Follower(), START_MS
    for after_ms, offset, end in fetches:
        now_ms += after_ms
        follower = follower.after(ReplicaFetch(offset), end, now_ms)
    assert follower.caught_up_ms == (None if expected_ms is None else START_MS + expected_ms)


@pytest.mark.parametrize(
    ("offset", "high_watermark", "fetched_epoch", "registered", "joins"),
    [
        (15, 15, 30, Broker(30), True),
        (14, 15, 30, Broker(30), False),
        (9, 5, 30, Broker(30), False),
        (10, 5, 30, Broker(30), True),
        (20, 15, 30, Broker(30, is_fenced=True), False),
        (20, 15, 30, Broker(30, in_controlled_shutdown=True), False),
        (20, 15, 30, None, False),
        (20, 15, -1, Broker(30), True),
        (20, 15, 31, Broker(30), False),
    ],
    ids=[
        "at the high watermark",
        "below the high watermark",
        "below the start of the epoch",
        "at the start of the epoch",
        "fenced",
        "shutting down",
        "not registered",
        "a fetch without a broker epoch",
        "restarted, and the metadata does not say so yet",
    ],
)
def test_who_may_join(
    offset: int, high_watermark: int, fetched_epoch: int, registered: Broker | None, joins: bool
) -> None:
    """Not who is fenced (KAFKA-13916), and not who was started again since (KAFKA-14617)."""
    led = Led((1, 2))
    led.fetch(3, offset, epoch=fetched_epoch)
    if registered is None:
        del led.brokers[3]
    else:
        led.brokers[3] = registered
    proposal = led.expand(high_watermark)
    if not joins:
        assert proposal is None
        return
    assert proposal is not None
    assert proposal == (7, 4, ((1, 10), (2, -1), (3, fetched_epoch)))


def test_a_follower_that_was_restarted_before_its_last_fetch_does_not_join() -> None:
    """The fetch was under way while the broker was registered anew (KAFKA-15221)."""
    led = Led((1, 2))
    led.fetch(3, 20)
    led.brokers[3] = Broker(31)
    assert led.expand() is None
    with pytest.raises(KafkaError) as refused:
        led.fetch(3, 20, epoch=30)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    led.fetch(3, 20)
    assert led.expand() == (7, 4, ((1, 10), (2, -1), (3, 31)))


def test_a_fetch_of_a_broker_that_is_no_replica() -> None:
    led = Led((1, 2), replicas=(1, 2))
    with pytest.raises(KafkaError) as refused:
        led.fetch(3, 20)
    assert refused.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("fetches", "after_ms", "expected"),
    [
        ({}, LAG_MS, None),
        ({}, LAG_MS + 1, (1,)),
        ({2: 20}, LAG_MS + 1, (1, 2)),
        ({2: 20, 3: 19}, LAG_MS + 1, (1, 2)),
        ({2: 20, 3: 20}, LAG_MS + 1, None),
    ],
    ids=[
        "a new leader waits for a whole time span",
        "and no longer",
        "who has everything stays, however long ago it fetched",
        "who is one record behind for too long goes",
        "all have everything",
    ],
)
def test_who_must_leave(fetches: dict[int, int], after_ms: int, expected: tuple[int, ...] | None) -> None:
    led = Led()
    for broker, offset in fetches.items():
        led.fetch(broker, offset)
    proposal = led.shrink(after_ms=after_ms)
    assert (proposal and proposal.in_sync) == expected


def test_while_an_expansion_is_under_way_the_new_member_is_waited_for() -> None:
    led = Led((1, 2))
    led.fetch(2, 20)
    led.fetch(3, 15)
    assert led.high_watermark() == 20
    assert led.expand() is not None
    assert led.high_watermark() == 15


def test_while_a_shrink_is_under_way_the_old_member_is_waited_for() -> None:
    led = Led((1, 2))
    led.fetch(2, 15)
    proposal = led.shrink(after_ms=LAG_MS + 1)
    assert proposal is not None
    assert led.high_watermark() == 15
    assert led.answer(proposal) is ProposalReaction.COMMIT
    assert led.high_watermark() == 20


def test_one_proposal_at_a_time() -> None:
    led = Led((1, 2))
    led.fetch(3, 20)
    assert led.expand() is not None
    assert led.expand() is None
    assert led.shrink(after_ms=LAG_MS + 1) is None


@pytest.mark.parametrize(
    ("code", "reaction", "in_sync", "maximal"),
    [
        (ErrorCode.NONE, ProposalReaction.COMMIT, (1, 2, 3), {1, 2, 3}),
        (ErrorCode.INELIGIBLE_REPLICA, ProposalReaction.REVERT, (1, 2), {1, 2}),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, ProposalReaction.REVERT, (1, 2), {1, 2}),
        (ErrorCode.UNKNOWN_TOPIC_ID, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.FENCED_LEADER_EPOCH, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.INVALID_REQUEST, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.INVALID_UPDATE_VERSION, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.NEW_LEADER_ELECTED, ProposalReaction.WAIT, (1, 2), {1, 2, 3}),
        (ErrorCode.NOT_CONTROLLER, ProposalReaction.RETRY, (1, 2), {1, 2, 3}),
        (ErrorCode.REQUEST_TIMED_OUT, ProposalReaction.RETRY, (1, 2), {1, 2, 3}),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ProposalReaction.RETRY, (1, 2), {1, 2, 3}),
    ],
)
def test_what_an_answer_does(
    code: ErrorCode, reaction: ProposalReaction, in_sync: tuple[int, ...], maximal: set[int]
) -> None:
    led = Led((1, 2))
    led.fetch(3, 20)
    proposal = led.expand()
    assert proposal is not None
    assert led.answer(proposal, code) is reaction
    assert (led.replicas.state.in_sync, led.replicas.maximal_isr) == (in_sync, maximal)
    is_open = reaction in (ProposalReaction.WAIT, ProposalReaction.RETRY)
    assert (led.replicas.proposal is proposal) == is_open
    assert (led.replicas.state.partition_epoch == 5) == (reaction is ProposalReaction.COMMIT)


def test_every_listed_reaction_is_tested() -> None:
    assert len(REACTIONS) == 9


@pytest.mark.parametrize(
    ("in_sync", "partition_epoch", "is_ended"),
    [((1, 2), 4, False), ((1, 2, 3), 5, True), ((1,), 5, True), ((1, 2), 3, False)],
    ids=["known already", "the proposal is in force", "another change came first", "older"],
)
def test_metadata_ends_a_proposal(in_sync: tuple[int, ...], partition_epoch: int, is_ended: bool) -> None:
    led = Led((1, 2))
    led.fetch(3, 20)
    proposal = led.expand()
    assert proposal is not None
    led.metadata(*in_sync, partition_epoch=partition_epoch)
    assert (led.replicas.proposal is None) == is_ended
    assert led.replicas.state.in_sync == (in_sync if is_ended else (1, 2))
    if is_ended:
        assert led.answer(proposal) is ProposalReaction.WAIT, "the answer comes too late"
        assert led.replicas.state.in_sync == in_sync


def test_an_answer_to_an_earlier_proposal_is_not_for_the_next_one() -> None:
    led = Led((1, 2))
    led.fetch(3, 20)
    earlier = led.expand()
    assert earlier is not None
    led.metadata(1, 2, partition_epoch=5)
    later = led.expand()
    assert later is not None
    assert led.answer(earlier, ErrorCode.INELIGIBLE_REPLICA) is ProposalReaction.WAIT
    assert led.replicas.proposal is later


def test_an_answer_of_another_leader_epoch_commits_nothing() -> None:
    led = Led((1, 2))
    led.fetch(3, 20)
    proposal = led.expand()
    assert proposal is not None
    assert led.answer(proposal, epoch=8) is ProposalReaction.WAIT
    assert led.answer(proposal, partition_epoch=3) is ProposalReaction.WAIT
    assert led.replicas.state.in_sync == (1, 2)


def test_metadata_of_another_leader_epoch_is_another_leadership() -> None:
    led = Led()
    with pytest.raises(InvariantError):
        led.replicas.on_state(PartitionState(NodeId(1), LeaderEpoch(8), ids(1), ids(1), 9), START_MS)


def test_a_reassignment_brings_a_follower_that_nobody_waits_for() -> None:
    led = Led((1, 2), replicas=(1, 2))
    led.fetch(2, 20)
    led.replicas.on_state(PartitionState(NodeId(1), LeaderEpoch(7), ids(1, 2, 3), ids(1, 2), 5), led.now_ms)
    assert led.high_watermark() == 20
    led.fetch(3, 0)
    assert led.high_watermark() == 20
    assert led.replicas.followers[NodeId(2)].end_offset == 20, "what is known stays known"


def test_a_follower_that_fell_behind_comes_back_when_it_fetches_and_not_before() -> None:
    """Too few are in sync then for the high watermark to move on, and what it had is still all that is committed."""
    led = Led(in_sync=(1, 2))
    led.fetch(2, 15, end=15)
    proposal = led.shrink(end=20, after_ms=LAG_MS + 1)
    assert proposal is not None and proposal.in_sync == ids(1)
    led.answer(proposal)
    assert led.expand(high_watermark=15) is None
    led.fetch(2, 16)
    joined = led.expand(high_watermark=15)
    assert joined is not None and joined.in_sync == ids(1, 2)


def test_a_follower_that_the_controller_took_out_comes_back_when_it_fetches() -> None:
    led = Led(in_sync=(1, 2))
    led.fetch(2, 20)
    led.metadata(1)
    assert led.expand() is None
    led.fetch(2, 20)
    assert led.expand() is not None


def test_a_follower_that_has_what_was_deleted_here_joins_when_it_has_deleted_it_as_well() -> None:
    """Its records below the leader's start may be others than those that were committed."""
    led = Led(in_sync=(1,))
    led.replicas.on_fetch(NodeId(2), ReplicaFetch(20, 0, 20), 20, led.now_ms)
    assert led.replicas.propose_expansion(15, 10, log_start_offset=18) is None
    led.replicas.on_fetch(NodeId(2), ReplicaFetch(20, 18, 20), 20, led.now_ms)
    assert led.replicas.propose_expansion(15, 10, log_start_offset=18) is not None
