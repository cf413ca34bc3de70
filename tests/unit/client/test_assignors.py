"""How partitions are shared: everything once, evenly, and with as few moves as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.assignors import (
    ASSIGNORS,
    Assignment,
    assign_cooperative,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from oncelog.client.subscription import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.core.ids import TopicPartition

topics = st.sampled_from(["a", "b", "c"])
groups = st.dictionaries(
    st.sampled_from([f"m{i}" for i in range(6)]), st.frozensets(topics, min_size=1), min_size=1, max_size=6
)
counts = st.fixed_dictionaries({name: st.integers(0, 7) for name in "abc"})


def members(wanted: dict[str, frozenset[str]]) -> dict[str, Subscription]:
    return {member: Subscription(tuple(sorted(names))) for member, names in wanted.items()}


def owned(assignment: Assignment, *, generation: int = 1, user_data: bool = False) -> dict[str, Subscription]:
    sticky = ASSIGNORS["sticky"]
    return {
        member: Subscription(
            ("a", "b", "c"),
            () if user_data else tuple(partitions),
            generation,
            sticky.user_data(partitions, generation) if user_data else b"",
        )
        for member, partitions in assignment.items()
    }


@given(st.sampled_from(sorted(ASSIGNORS)), groups, counts)
def test_every_wanted_partition_goes_to_exactly_one_member_that_wants_it(
    name: str, wanted: dict[str, frozenset[str]], sizes: dict[str, int]
) -> None:
    assignment = ASSIGNORS[name].assign(members(wanted), sizes)
    assert set(assignment) == set(wanted)
    everything = [partition for partitions in assignment.values() for partition in partitions]
    expected = {
        TopicPartition(topic, number)
        for topic, size in sizes.items()
        for number in range(size)
        if any(topic in names for names in wanted.values())
    }
    assert sorted(everything) == sorted(expected)
    assert all(p.topic in wanted[member] for member, partitions in assignment.items() for p in partitions)


@given(st.integers(1, 6), counts)
def test_equal_subscriptions_are_shared_within_one(member_count: int, sizes: dict[str, int]) -> None:
    group = members({f"m{i}": frozenset("abc") for i in range(member_count)})
    for assign in (assign_round_robin, assign_sticky, assign_cooperative):
        loads = [len(partitions) for partitions in assign(group, sizes).values()]
        assert max(loads) - min(loads) <= 1


def test_range_gives_neighbours_to_each_member() -> None:
    group = members({"x": frozenset("a"), "y": frozenset("a")})
    shares = assign_range(group, {"a": 5})
    assert [[p.partition for p in shares[member]] for member in ("x", "y")] == [[0, 1, 2], [3, 4]]


def test_sticky_moves_only_what_a_newcomer_needs() -> None:
    before = assign_sticky(members({"m0": frozenset("abc"), "m1": frozenset("abc")}), {"a": 6})
    group = {**owned(before, user_data=True), "m2": Subscription(("a",))}
    after = assign_sticky(group, {"a": 6})
    assert sorted(map(len, after.values())) == [2, 2, 2]
    assert all(set(after[member]) <= set(before[member]) for member in before)


def test_cooperative_holds_back_what_moves_until_its_owner_gave_it_up() -> None:
    before = assign_cooperative(members({"m0": frozenset("a")}), {"a": 4})
    during = assign_cooperative({**owned(before), "m1": Subscription(("a",))}, {"a": 4})
    assert (len(during["m0"]), during["m1"]) == (2, [])
    after = assign_cooperative({**owned(during), "m1": Subscription(("a",), (), 1)}, {"a": 4})
    assert after["m0"] == during["m0"]
    assert len(after["m1"]) == 2


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_cooperative_comes_to_rest_in_two_rounds(first: int, second: int, size: int) -> None:
    current = assign_cooperative(members({f"m{i}": frozenset("a") for i in range(first)}), {"a": size})
    for _ in range(2):
        group = {f"m{i}": current.get(f"m{i}", []) for i in range(second)}
        current = assign_cooperative(owned(group), {"a": size})
    loads = [len(partitions) for partitions in current.values()]
    assert sum(loads) == size
    assert max(loads) - min(loads) <= 1
    assert assign_cooperative(owned(current), {"a": size}) == current


def test_the_newer_generation_wins_a_disputed_partition() -> None:
    claim = TopicPartition("a", 0)
    group = {
        "old": Subscription(("a",), (claim,), 3),
        "new": Subscription(("a",), (claim,), 4),
    }
    assert assign_cooperative(group, {"a": 2})["new"] == [claim]


def test_partitions_of_deleted_topics_are_forgotten() -> None:
    group = {"m0": Subscription(("a",), (TopicPartition("a", 9), TopicPartition("gone", 0)), 1)}
    assert assign_cooperative(group, {"a": 1}) == {"m0": [TopicPartition("a", 0)]}


def test_user_data_of_another_origin_counts_as_nothing() -> None:
    group = {"m0": Subscription(("a",), user_data=b"\xff\x00garbage")}
    assert assign_sticky(group, {"a": 1}) == {"m0": [TopicPartition("a", 0)]}


def test_subscriptions_and_assignments_survive_the_wire() -> None:
    parts = (TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b", 1))
    subscription = Subscription(("a", "b"), parts, 7, b"data")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(parts)) == list(parts)


def test_the_bytes_of_an_assignment_are_kafkas() -> None:
    raw = encode_assignment([TopicPartition("t", 1), TopicPartition("t", 0)])
    assert raw.hex() == "000000000001000174000000020000000000000001ffffffff"
