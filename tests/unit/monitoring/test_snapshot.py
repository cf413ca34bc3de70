"""A poll of a whole cluster: what it finds, that it fits together, and how much it asks."""

from __future__ import annotations

import json

import pytest

from oncelog.client import TopicPartition
from oncelog.console.watch import sample_of
from oncelog.monitoring.offsets import PartitionOffsets
from oncelog.monitoring.snapshot import OFFSETS_PER_REQUEST, STARTS_EVERY_POLLS, ClusterSnapshot, Poller, PollLimits
from tests.unit.monitoring.fake_admin import FakeAdmin, described, producer

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.fixture
def admin() -> FakeAdmin:
    admin = FakeAdmin()
    admin.offsets = {PLACE: PartitionOffsets(0, 4, 10), OTHER: PartitionOffsets(0, 5, 5)}
    admin.producers = {PLACE: [producer(1, 4)]}
    admin.transactions = {
        "slow": described("slow", 1, PLACE),
        "done": described("done", 2, state="CompleteCommit"),
    }
    admin.groups = {"billing": {PLACE: 3, OTHER: 5}, "shipping": {OTHER: 5}}
    return admin


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def poller(admin: FakeAdmin, **limits: int) -> Poller:
    return Poller(admin, PollLimits(**limits), Clock())  # type: ignore[arg-type]


def test_a_poll_shows_lag_holder_age_and_who_waits(admin: FakeAdmin) -> None:
    snapshot = poller(admin).poll()
    (held,) = snapshot.held_back
    assert (held.partition, held.blocking[0].transactional_id) == (PLACE, "slow")
    assert snapshot.groups_waiting_at(PLACE) == ["billing"]
    billing, shipping = snapshot.groups
    assert billing.group is not None
    assert shipping.group is not None
    assert (billing.group.lag, shipping.group.lag) == (7, 0)
    assert billing.group.partitions[0].note == "note"
    states = {one.transactional_id: (one.listing.state, one.age_ms(2_500)) for one in snapshot.transactions}
    assert states == {"slow": ("Ongoing", 2_000), "done": ("CompleteCommit", None)}
    assert [one.leads for one in snapshot.brokers] == [2]
    assert snapshot.topics["orders"].partitions[0].offsets == PartitionOffsets(0, 4, 10)
    json.dumps(snapshot.as_row())


def test_a_partition_without_a_leader_does_not_stop_the_poll(admin: FakeAdmin) -> None:
    lost = TopicPartition("orders", 2)
    admin.without_leader = {lost}
    admin.groups["billing"][lost] = 1
    snapshot = poller(admin).poll()
    assert snapshot.topics["orders"].without_leader == (2,)
    assert snapshot.topics["orders"].under_replicated == (2,)
    (billing, _) = snapshot.groups
    assert billing.group is not None
    assert billing.group.partitions[2].lag is None
    assert billing.group.lag == 7


def test_a_topic_that_acls_do_not_let_be_read_does_not_stop_the_poll(admin: FakeAdmin) -> None:
    secret = TopicPartition("secret", 0)
    admin.offsets[secret] = PartitionOffsets(0, 1, 2)
    admin.unreadable = {"secret"}
    snapshot = poller(admin).poll()
    assert [(one.partition, len(one.blocking), one.is_hidden) for one in snapshot.held_back] == [
        (PLACE, 1, False),
        (secret, 0, True),
    ]


def test_groups_that_acls_do_not_let_be_described_neither_stop_the_poll_nor_keep_others_waiting(
    admin: FakeAdmin,
) -> None:
    admin.hidden_groups = {"billing"}
    found = poller(admin, groups=1)
    for _ in range(2):
        snapshot = found.poll()
    billing, shipping = snapshot.groups
    assert billing.group is None
    assert shipping.group is not None


def test_a_group_that_reads_on_during_the_poll_is_not_beyond_the_end(admin: FakeAdmin) -> None:
    def grow(what: str) -> None:
        if what == "offsets":
            end = admin.offsets[OTHER].end + 1
            admin.offsets[OTHER] = PartitionOffsets(0, end, end)
            admin.groups["shipping"][OTHER] = end

    admin.before = grow
    (_, shipping) = poller(admin).poll().groups
    assert shipping.group is not None
    assert shipping.group.partitions[0].lag is not None
    assert shipping.group.partitions[0].lag.total >= 0


def crowded() -> FakeAdmin:
    admin = FakeAdmin()
    places = [TopicPartition("t", number) for number in range(100)]
    admin.offsets = {place: PartitionOffsets(0, 4, 10) for place in places}
    admin.producers = {place: [producer(place.partition, 4)] for place in places}
    admin.transactions = {f"id-{p.partition}": described(f"id-{p.partition}", p.partition, p) for p in places}
    admin.groups = {f"group-{number}": {places[0]: 4} for number in range(100)}
    return admin


def test_a_poll_asks_a_bounded_number_of_questions() -> None:
    admin = crowded()
    poller(admin, groups=10, transactions=20).poll()
    assert dict(admin.asked) == {
        "cluster": 1,
        "topics": 1,
        "offsets": 3,
        "producers": 1,
        "groups": 1,
        "group": 10,
        "committed": 10,
        "transactions": 1,
        "transaction": 20,
    }


def test_starts_of_logs_are_asked_for_now_and_then(admin: FakeAdmin) -> None:
    poll = poller(admin)
    asked = []
    for _ in range(STARTS_EVERY_POLLS + 1):
        admin.asked.clear()
        admin.offsets[OTHER] = PartitionOffsets(*(number + 1 for number in admin.offsets[OTHER]))
        starts = [p.offsets.start for p in poll.poll().topics["orders"].partitions if p.offsets is not None]
        asked.append((admin.asked["offsets"], starts))
    assert asked[0] == (3, [0, 1])
    assert asked[1:-1] == [(2, [0, 1])] * (STARTS_EVERY_POLLS - 1)
    assert asked[-1] == (3, [0, STARTS_EVERY_POLLS + 1])


def test_transactions_that_were_not_described_do_not_seem_to_hang() -> None:
    snapshot = poller(crowded(), transactions=20).poll()
    assert len(snapshot.open) == 100
    assert snapshot.hanging(older_than_ms=0) == []
    assert sum(one.description is not None for one in snapshot.transactions) == 20


def described_ids(snapshot: ClusterSnapshot) -> set[str]:
    return {one.transactional_id for one in snapshot.transactions if one.description is not None}


def test_details_come_round_to_every_group_and_every_transaction() -> None:
    poll = poller(crowded(), groups=25, transactions=50)
    snapshots = [poll.poll() for _ in range(4)]
    assert sum(state.group is not None for state in snapshots[0].groups) == 25
    assert all(state.group is not None for state in snapshots[3].groups)
    assert described_ids(snapshots[0]) | described_ids(snapshots[1]) == {f"id-{n}" for n in range(100)}
    first = {s.listing.group_id: s.described_ms for s in snapshots[0].groups if s.described_ms is not None}
    again = {s.listing.group_id: s.described_ms for s in poll.poll().groups}
    assert all((again[name] or 0) > described_ms for name, described_ms in first.items()), "the oldest are renewed"


def test_those_that_hold_readers_back_are_described_first() -> None:
    admin = crowded()
    places = list(admin.offsets)
    admin.producers = {place: [producer(99, 4), producer(place.partition, 5)] for place in places}
    poll = poller(admin, transactions=10)
    for _ in range(3):
        assert "id-99" in described_ids(poll.poll())


def test_a_group_that_is_gone_is_forgotten(admin: FakeAdmin) -> None:
    poll = poller(admin)
    poll.poll()
    del admin.groups["shipping"]
    assert [state.listing.group_id for state in poll.poll().groups] == ["billing"]


def test_the_offsets_of_many_partitions_are_asked_for_in_parts(admin: FakeAdmin) -> None:
    admin.offsets = {
        TopicPartition("many", number): PartitionOffsets(0, 0, number) for number in range(2 * OFFSETS_PER_REQUEST + 1)
    }
    admin.producers = {}
    polled = poller(admin)
    polled.poll()
    assert admin.asked["offsets"] == 3 * 3, "start, end and last stable offset"
    assert len(polled.poll().topics["many"].partitions) == len(admin.offsets)
    assert admin.asked["offsets"] == 3 * 3 + 3 * 2


def test_of_very_many_partitions_some_are_asked_for_in_each_poll_and_first_those_that_matter() -> None:
    admin = FakeAdmin()
    places = [TopicPartition("many", number) for number in range(100)]
    admin.offsets = {place: PartitionOffsets(0, 1, 1) for place in places}
    admin.groups = {"billing": {places[90]: 1}}
    poll = Poller(admin, PollLimits(partitions=10))  # type: ignore[arg-type]

    def known() -> dict[int, PartitionOffsets]:
        parts = poll.poll().topics["many"].partitions
        return {one.info.partition: one.offsets for one in parts if one.offsets is not None}

    assert sorted(known()) == [*range(10), 90]
    assert sorted(known()) == [*range(20), 90]
    admin.offsets |= {places[5]: PartitionOffsets(0, 1, 7), places[90]: PartitionOffsets(0, 9, 9)}
    admin.producers = {places[5]: [producer(7, 1)]}
    admin.transactions = {"slow": described("slow", 7, places[5])}
    second = known()
    assert second[90].end == 9, "what groups read is asked for in every poll"
    assert second[5].end == 1
    assert known()[5].held_back == 6, "the coordinator named the partition of the open transaction"
    for _ in range(6):
        found = known()
    assert len(found) == 100
    assert sample_of(poll.poll()).end_offsets == 98 + 7 + 9
