"""What a consumer knows about each partition that is assigned to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final, NamedTuple

from oncelog.client.arguments import to_partition
from oncelog.client.errors import CorruptBatch, IllegalState
from oncelog.client.fetcher import FetchedChunk
from oncelog.core.ids import TopicPartition

NO_POSITION: Final = -1
_versions: Final = count()


class ReadReplica(NamedTuple):
    node_id: int
    until_s: float
    """When the leader is asked again."""


class PartitionPosition:
    """`position` is the next offset to take; `fetch_position` the next one to ask a broker for."""

    __slots__ = (
        "began_at",
        "chunk",
        "fetch_position",
        "held_from",
        "high_watermark",
        "last_stable_offset",
        "leader_until_s",
        "partition",
        "paused",
        "position",
        "problem",
        "read_replica",
        "version",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.position = NO_POSITION
        self.fetch_position = NO_POSITION
        self.held_from: int | None = None
        """The first offset that an iteration has taken and not handed out, if there is one."""
        self.began_at = NO_POSITION
        """The first position since the assignment: where to begin again while nothing is committed."""
        self.paused = False
        self.chunk: FetchedChunk | None = None
        """Fetched and not handed out yet; nothing more is fetched until it is."""
        self.problem: CorruptBatch | None = None
        """What comes next and cannot be read; nothing more is fetched until somebody seeks past it."""
        self.read_replica: ReadReplica | None = None
        """The follower that the leader has sent this consumer to."""
        self.leader_until_s = 0.0
        """Until then the leader itself is read from: its follower has failed."""
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.version = next(_versions)
        """A new one with every seek and every assignment: an answer to a question asked before is thrown away."""

    def seek(self, offset: int) -> None:
        self.position = self.fetch_position = offset
        self.held_from = None
        if self.began_at == NO_POSITION:
            self.began_at = offset
        self.chunk = None
        self.problem = None
        self.version = next(_versions)

    def unset(self) -> None:
        self.seek(NO_POSITION)

    def take_back(self) -> None:
        """What an iteration has taken and not handed out is for whoever polls next."""
        if self.held_from is not None:
            self.seek(self.held_from)

    @property
    def next_offset(self) -> int:
        """The next offset to hand out: the position that the application knows."""
        return self.position if self.held_from is None else self.held_from

    @property
    def fetchable(self) -> bool:
        return self.fetch_position >= 0 and self.chunk is None and self.problem is None and not self.paused


class Positions:
    """The assigned partitions, in the order in which they take turns."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionPosition] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._partitions

    def __iter__(self) -> Iterator[PartitionPosition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._partitions)

    def get(self, partition: TopicPartition) -> PartitionPosition | None:
        return self._partitions.get(partition)

    def __getitem__(self, partition: TopicPartition) -> PartitionPosition:
        wanted = to_partition(partition)
        found = self._partitions.get(wanted)
        if found is None:
            raise IllegalState(f"{wanted} is not assigned to this consumer")
        return found

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in sorted(partitions):
            self._partitions.setdefault(partition, PartitionPosition(partition))

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            removed = self._partitions.pop(partition, None)
            if removed is not None:
                removed.unset()

    def to_back(self, partition: TopicPartition) -> None:
        """Let the others have their turn first."""
        entry = self._partitions.pop(partition, None)
        if entry is not None:
            self._partitions[partition] = entry

    def without_position(self) -> list[PartitionPosition]:
        return [entry for entry in self if entry.position == NO_POSITION]
