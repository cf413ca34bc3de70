"""Counts what came out against the truth."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from oncelog.client import ClientConfig, IsolationLevel, worker_client
from oncelog.spark.demo.orders import Truth
from oncelog.spark.demo.topics import read_topic, topic_offsets
from oncelog.spark.offsets import LATEST


@dataclass(frozen=True, slots=True)
class Tally:
    """Records of one output topic against what should be there."""

    expected: int
    once: int
    lost: int
    doubled: int
    foreign: int

    @property
    def exact(self) -> bool:
        return self.once == self.expected and not (self.lost or self.doubled or self.foreign)


def tally(expected: Counter[bytes], seen: Counter[bytes]) -> Tally:
    return Tally(
        expected=expected.total(),
        once=sum(times for value, times in seen.items() if times == expected.get(value)),
        lost=(expected - seen).total(),
        doubled=sum(times for value, times in (seen - expected).items() if value in expected),
        foreign=sum(times for value, times in seen.items() if value not in expected),
    )


def tally_orders(config: ClientConfig, topic: str, known: Truth) -> Tally:
    """Each good order must be there once, with the region of its customer."""
    seen: Counter[bytes] = Counter()
    for batch in read_topic(config, topic):
        for value in batch.column("value").to_pylist():
            order = json.loads(value)
            seen[b"%d/%s" % (order["id"], str(order.get("region")).encode())] += 1
    return tally(known.enriched, seen)


def tally_broken(config: ClientConfig, topic: str, known: Truth) -> Tally:
    """Each broken order must be in the dead-letter topic once, byte for byte."""
    seen: Counter[bytes] = Counter()
    for batch in read_topic(config, topic):
        seen.update(batch.column("value").to_pylist())
    return tally(known.broken, seen)


def revenue_errors(config: ClientConfig, topic: str, known: Truth) -> int:
    """Windows whose last count is not the true one, or that are missing, or should not be there."""
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for batch in read_topic(config, topic):
        for value in batch.column("value").to_pylist():
            found = json.loads(value)
            last[(found["window"], found["region"])] = (found["orders"], found["cents"])
    wrong = {where for where, totals in known.revenue.items() if last.get(where) != totals}
    return len(wrong | (last.keys() - known.revenue.keys()))


def input_is_committed(config: ClientConfig, group_id: str, topic: str) -> bool:
    """Whether the group's committed offsets are the ends of the input."""
    client = worker_client(config)
    ends = topic_offsets(client, topic, LATEST, IsolationLevel.READ_COMMITTED)
    committed = client.group_offsets(group_id, require_stable=True)
    return all(partition in committed and committed[partition].offset == ends[partition] for partition in ends)
