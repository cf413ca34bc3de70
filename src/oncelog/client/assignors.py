"""How the leader of a consumer group shares the partitions among the members.

    range               per topic, neighbouring partitions to each member in order of member ids
    roundrobin          all partitions in turn to all members
    sticky              as even as possible, and otherwise as before; members give everything up before a rebalance
    cooperative-sticky  the same, but members keep what they hold; a partition that moves is given up first and handed
                        over by a second rebalance

All are deterministic functions of their input, and compatible with those of the same names in Apache Kafka, so members
with different clients can share a group.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from oncelog.client.offsets import by_topic
from oncelog.client.subscription import Subscription
from oncelog.core.ids import TopicPartition

Members = Mapping[str, Subscription]
Assignment = dict[str, list[TopicPartition]]
PartitionCounts = Mapping[str, int]


class Assignor(NamedTuple):
    name: str
    assign: Callable[[Members, PartitionCounts], Assignment]
    cooperative: bool
    user_data: Callable[[Iterable[TopicPartition], int], bytes]
    """What a member tells the leader beside its topics: partitions it had, and their generation."""


def assign_range(members: Members, counts: PartitionCounts) -> Assignment:
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(counts):
        takers = sorted(member for member, subscription in members.items() if topic in subscription.topics)
        if not takers:
            continue
        share, extra = divmod(counts[topic], len(takers))
        start = 0
        for index, member in enumerate(takers):
            end = start + share + (1 if index < extra else 0)
            assignment[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assignment


def assign_round_robin(members: Members, counts: PartitionCounts) -> Assignment:
    assignment: Assignment = {member: [] for member in members}
    ring = sorted(members)
    turn = 0
    for topic in sorted(counts):
        if not any(topic in subscription.topics for subscription in members.values()):
            continue
        for number in range(counts[topic]):
            while topic not in members[ring[turn % len(ring)]].topics:
                turn += 1
            assignment[ring[turn % len(ring)]].append(TopicPartition(topic, number))
            turn += 1
    return assignment


def assign_sticky(members: Members, counts: PartitionCounts) -> Assignment:
    return _balance(members, counts, _kept(members, counts, _previous_from_user_data))


def assign_cooperative(members: Members, counts: PartitionCounts) -> Assignment:
    kept = _kept(members, counts, lambda subscription: (subscription.owned, subscription.generation_id))
    owners = {partition: member for member, partitions in kept.items() for partition in partitions}
    target = _balance(members, counts, kept)
    # What moves stays unassigned for now: its owner learns that it lost it, and the rebalance after that gives it away.
    return {member: [p for p in partitions if owners.get(p, member) == member] for member, partitions in target.items()}


# Stickiness


def _kept(
    members: Members,
    counts: PartitionCounts,
    previous: Callable[[Subscription], tuple[Iterable[TopicPartition], int]],
) -> Assignment:
    """What each member may keep: partitions that exist, that it still wants, and that no newer claim is on."""
    claims: dict[TopicPartition, tuple[int, str]] = {}
    disputed: set[TopicPartition] = set()
    for member in sorted(members):
        partitions, generation = previous(members[member])
        for partition in partitions:
            if partition.partition >= counts.get(partition.topic, 0) or partition.topic not in members[member].topics:
                continue
            rival = claims.get(partition)
            if rival is None or generation > rival[0]:
                claims[partition] = (generation, member)
                disputed.discard(partition)
            elif generation == rival[0]:
                disputed.add(partition)
    kept: Assignment = {member: [] for member in members}
    for partition, (_, member) in sorted(claims.items()):
        if partition not in disputed:
            kept[member].append(partition)
    return kept


def _balance(members: Members, counts: PartitionCounts, kept: Assignment) -> Assignment:
    """Give away what nobody keeps, then move as little as possible until no move makes it more even."""
    assignment = {member: list(partitions) for member, partitions in kept.items()}
    wanted_by: defaultdict[str, list[str]] = defaultdict(list)
    for member in sorted(members):
        for topic in members[member].topics:
            wanted_by[topic].append(member)
    taken = {partition for partitions in assignment.values() for partition in partitions}
    free = [
        TopicPartition(topic, number)
        for topic in sorted(counts)
        for number in range(counts[topic])
        if TopicPartition(topic, number) not in taken and wanted_by[topic]
    ]
    # Partitions that few may have come first, while there still is room with those few.
    free.sort(key=lambda partition: len(wanted_by[partition.topic]))
    for partition in free:
        member = min(wanted_by[partition.topic], key=lambda name: (len(assignment[name]), name))
        assignment[member].append(partition)
    _even_out(assignment, wanted_by)
    return {member: sorted(partitions) for member, partitions in assignment.items()}


def _even_out(assignment: Assignment, wanted_by: Mapping[str, list[str]]) -> None:
    """Every move makes the difference between two members smaller, so this comes to an end."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(assignment, key=lambda name: (-len(assignment[name]), name)):
            for partition in reversed(assignment[giver]):
                taker = min(wanted_by[partition.topic], key=lambda name: (len(assignment[name]), name))
                if len(assignment[giver]) - len(assignment[taker]) >= 2:
                    assignment[giver].remove(partition)
                    assignment[taker].append(partition)
                    moved = True
                    break


# Kafka's user data of the sticky assignor: [topic, [partition]], generation


def _no_user_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    return b""


def _sticky_user_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    topics = by_topic(sorted(partitions))
    out = bytearray(struct.pack(">i", len(topics)))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += struct.pack(">h", len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out + struct.pack(">i", generation))


def _previous_from_user_data(subscription: Subscription) -> tuple[list[TopicPartition], int]:
    """Bytes of another origin are no reason to fail a whole group: they count as nothing held before."""
    data, position = subscription.user_data, 4
    partitions: list[TopicPartition] = []
    try:
        (topics,) = struct.unpack_from(">i", data)
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            numbers = struct.unpack_from(f">{max(count, 0)}i", data, position + 4)
            partitions += [TopicPartition(topic, number) for number in numbers]
            position += 4 + 4 * count
        generation = struct.unpack_from(">i", data, position)[0] if position < len(data) else -1
    except (struct.error, UnicodeDecodeError):
        return [], -1
    return partitions, generation


ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_range, False, _no_user_data),
        Assignor("roundrobin", assign_round_robin, False, _no_user_data),
        Assignor("sticky", assign_sticky, False, _sticky_user_data),
        Assignor("cooperative-sticky", assign_cooperative, True, _no_user_data),
    )
}
