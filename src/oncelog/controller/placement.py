"""Where the replicas of new partitions go: stripes over racks and, inside a rack, over brokers. The rules are Kafka's.

Replicas of a partition go to one rack after the other. The next partition begins one rack further, and every rack
begins one broker further. Brokers that are fenced come after the others, and never first: the first replica leads.
After as many partitions as there are brokers the order is shuffled, so that not always the same brokers share
partitions.

Randomness comes in as a function: `below(n)` is a number from 0 to n - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from oncelog.core.errors import ErrorCode, KafkaError
from oncelog.core.named_tuple import NamedTuple

Below = Callable[[int], int]
T = TypeVar("T")


class UsableBroker(NamedTuple):
    broker_id: int
    rack: str | None
    is_fenced: bool


class _Ring:
    """Brokers of a rack, from some place on, each once in a round."""

    def __init__(self, brokers: Iterable[int], below: Below) -> None:
        self.brokers = sorted(brokers)
        self._start = below(len(self.brokers)) if self.brokers else 0
        self._round = self._taken = 0

    def next(self, round_number: int) -> int | None:
        count = len(self.brokers)
        if count and round_number != self._round:
            self._round, self._taken, self._start = round_number, 0, (self._start + 1) % count
        if self._taken >= count:
            return None
        self._taken += 1
        return self.brokers[(self._start + self._taken - 1) % count]


class _Rack:
    def __init__(self, brokers: Sequence[UsableBroker], below: Below) -> None:
        self.fenced = _Ring((each.broker_id for each in brokers if each.is_fenced), below)
        self.unfenced = _Ring((each.broker_id for each in brokers if not each.is_fenced), below)

    def next(self, round_number: int) -> int | None:
        found = self.unfenced.next(round_number)
        return self.fenced.next(round_number) if found is None else found


class Placement:
    def __init__(self, brokers: Sequence[UsableBroker], below: Below) -> None:
        self._below = below
        self._brokers_in_all = len(brokers)
        self._unfenced_in_all = sum(not each.is_fenced for each in brokers)
        names = sorted({each.rack for each in brokers}, key=lambda rack: (rack is not None, rack or ""))
        self._racks = [_Rack([each for each in brokers if each.rack == name], below) for name in names]
        self._offset = below(len(self._racks)) if self._racks else 0
        self._round = 0

    def place(self, partition_count: int, replication_factor: int) -> Iterator[list[int]]:
        """The replicas of one partition after the other. Raises INVALID_REPLICATION_FACTOR, at once."""
        if not self._unfenced_in_all:
            raise _impossible("All brokers are currently fenced, or have all their log directories cordoned.")
        if replication_factor > self._brokers_in_all:
            raise _impossible(
                f"The target replication factor of {replication_factor} cannot be reached because only "
                f"{self._brokers_in_all} broker(s) are registered or some brokers have all their log directories "
                "cordoned."
            )
        return (self._place_one(replication_factor) for _ in range(partition_count))

    def _place_one(self, replication_factor: int) -> list[int]:
        if self._round and self._round % self._unfenced_in_all == 0:
            self._shuffle()
        self._offset %= len(self._racks)
        order = [*range(self._offset, len(self._racks)), *range(self._offset)]
        first = next(rack for rack in order if (leader := self._racks[rack].unfenced.next(self._round)) is not None)
        replicas = [leader]
        turn = 0
        skipped: int | None = first
        while len(replicas) < replication_factor:
            rack = order[turn % len(order)]
            turn += 1
            if rack == skipped:
                skipped = None
                continue
            found = self._racks[rack].next(self._round)
            if found is not None:
                replicas.append(found)
        self._round += 1
        self._offset += 1
        return replicas

    def _shuffle(self) -> None:
        _shuffle(self._racks, self._below)
        for rack in self._racks:
            _shuffle(rack.fenced.brokers, self._below)
            _shuffle(rack.unfenced.brokers, self._below)


def _shuffle(items: list[T], below: Below) -> None:
    for last in range(len(items) - 1, 0, -1):
        other = below(last + 1)
        items[last], items[other] = items[other], items[last]


def _impossible(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
