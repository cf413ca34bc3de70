"""Counts what came out against the truth."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from oncelog.client.config import ClientConfig
from oncelog.spark.demo.orders import Truth
from oncelog.spark.demo.topics import read_topic
from oncelog.spark.offsets import LATEST
from oncelog.spark.worker_client import worker_client


@dataclass(frozen=True, slots=True)
class Tally:
    """Orders in one output topic."""

    expected: int
    once: int
    lost: int
    doubled: int
    foreign: int

    @property
    def exact(self) -> bool:
        return self.once == self.expected and not (self.lost or self.doubled or self.foreign)


def tally_orders(config: ClientConfig, topic: str, known: Truth) -> Tally:
    """Each good order must be there once."""
    seen: Counter[int] = Counter()
    for batch in read_topic(config, topic):
        seen.update(json.loads(value)["id"] for value in batch.column("value").to_pylist())
    return Tally(
        expected=len(known.good),
        once=sum(1 for number, times in seen.items() if times == 1 and number in known.good),
        lost=len(known.good - seen.keys()),
        doubled=sum(1 for number, times in seen.items() if times > 1 and number in known.good),
        foreign=len(seen.keys() - known.good),
    )


def tally_broken(config: ClientConfig, topic: str, known: Truth) -> Tally:
    """Each broken order must be in the dead-letter topic once, byte for byte."""
    seen: Counter[bytes] = Counter()
    for batch in read_topic(config, topic):
        seen.update(batch.column("value").to_pylist())
    return Tally(
        expected=known.broken.total(),
        once=sum(times for value, times in seen.items() if times == known.broken.get(value)),
        lost=(known.broken - seen).total(),
        doubled=sum((seen - known.broken)[value] for value in known.broken),
        foreign=sum(times for value, times in seen.items() if value not in known.broken),
    )


def input_is_committed(config: ClientConfig, group_id: str, topic: str) -> bool:
    """Whether the group's committed offsets are the ends of the input."""
    from oncelog.client.visibility import IsolationLevel

    client = worker_client(config)
    partitions = client.partitions_of([topic]).get(topic, [])
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED)
    committed = client.committed(group_id)
    return all(partition in committed and committed[partition].offset == ends[partition] for partition in ends)
