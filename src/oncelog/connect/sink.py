"""What a target must offer to be written to exactly once.

A sink keeps, for each partition it reads, the next offset and an owner number, in the same database as the rows:

    claim   owner number + 1 for each partition, in one transaction; returns where to go on
    write   one transaction: the rows, and the offsets moved on from where they were, by the owner alone

Whoever claims later owns the partitions: a write of a former owner finds another number, changes nothing and raises
Fenced. If the outcome of a commit is not known, claiming again tells it. A process that claims again after an error
must still be the owner, or an old instance that was cut off would take over from the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from oncelog.client import ConsumerRecord, TopicPartition


@dataclass(slots=True)
class Instance:
    """This run of a connector. It outlives reconnections, and not the process."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    claimed: set[TopicPartition] = field(default_factory=set)


class Start(NamedTuple):
    """Where a partition begins if the sink has not read it yet, and which topic it is of."""

    offset: int
    topic_id: str


class Claimed(NamedTuple):
    """What the sink has stored for a partition: the next offset to read, and the id of the topic it was read from."""

    next_offset: int
    topic_id: str


class Move(NamedTuple):
    """The next offset of a partition before and after a batch."""

    old: int
    new: int


class Batch(NamedTuple):
    records: Sequence[ConsumerRecord]
    moves: Mapping[TopicPartition, Move]
    prepared: Any = None
    """What `prepare` has made of the records."""


class Sink(Protocol):
    def claim(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Claimed]:
        """Become the owner of these partitions."""

    def prepare(self, records: Sequence[ConsumerRecord]) -> Any:
        """What can be done before `write`, without the database: another thread may be writing the batch before."""

    def write(self, batch: Batch) -> int:
        """Write the records and move the offsets, both or none. Returns how many records went to the dead letters.

        Raises Fenced, BadRecord, or a temporary error of the database after which it must be claimed again.
        """

    def verify(self) -> None:
        """Raises Fenced if somebody else has claimed a partition. For times without anything to write."""

    def close(self) -> None: ...
