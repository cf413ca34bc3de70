"""Queries, a consumer and somebody who deletes offsets, step by step in any order, with crashes: what is read is
written once.

Each history comes from a seed. The steps are those of the sink between two requests, judged by the code of the sink;
Spark and the broker are a few lines.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from oncelog.client import OffsetAndMetadata
from oncelog.core.ids import TopicPartition
from oncelog.spark.first_commit import mark_of
from oncelog.spark.micro_batch import MicroBatch
from oncelog.spark.offsets import Offsets
from oncelog.spark.resume import (
    CannotResume,
    NewCheckpoint,
    Verdict,
    changed_offsets,
    judge,
    offsets_to_commit,
    writers_before,
)

Group = dict[TopicPartition, OffsetAndMetadata]
Reads = Counter[tuple[TopicPartition | str, int]]

APPEARS, *THERE = PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
STEPS = 120


class Ended(Exception):
    """The driver has stopped: it crashed, was refused or fenced."""


@dataclass
class Query:
    name: str
    reads: list[TopicPartition]
    goes_on: bool
    """Whether it begins where the group stands."""
    keeps_state: bool
    """A batch of it that reads nothing writes something all the same."""
    planned: list[MicroBatch] = field(default_factory=list)
    noted: int = 0
    marks: set[str] = field(default_factory=set)
    written: Reads = field(default_factory=Counter)
    driver: Iterator[None] | None = None
    is_fenced: bool = False
    in_doubt: bool = False
    """The answer to a commit was lost, and its driver is about to ask the group."""


class History:
    def __init__(self, seed: int, *, consumer: bool, deletions: bool) -> None:
        self.chance = random.Random(seed)
        self.consumer, self.deletions = consumer, deletions
        self.ends: Offsets = dict.fromkeys(THERE, 0)
        self.group: Group = {}
        self.clock = 0
        subsets = [PARTITIONS, PARTITIONS, [APPEARS], THERE, [APPEARS, THERE[0]]]
        self.queries = [
            Query(f"q{n}", self.chance.choice(subsets), goes_on=n > 0, keeps_state=self.chance.random() < 0.3)
            for n in range(self.chance.choice([1, 2, 2, 3] if consumer else [2, 2, 3]))
        ]

    def play(self) -> None:
        for self.clock in range(STEPS):
            place = self.chance.random()
            if place < 0.15:
                partition = self.chance.choice(list(self.ends))
                self.ends[partition] += self.chance.randint(1, 3)
            elif place < 0.2:
                self.ends.setdefault(APPEARS, 0)
            elif place < 0.25 and self.consumer:
                partition = self.chance.choice(list(self.ends))
                self.group[partition] = OffsetAndMetadata(self.chance.randint(0, self.ends[partition]), "")
            elif place < 0.28 and self.deletions and self.group:
                self._delete()
            else:
                self._step_of(self.chance.choice(self.queries))

    def _delete(self) -> None:
        """The group, or the offset of one partition. What the page says of batches in doubt is left out."""
        if any(query.in_doubt for query in self.queries):
            return
        if self.chance.random() < 0.5:
            self.group.clear()
        else:
            del self.group[self.chance.choice(list(self.group))]

    def _step_of(self, query: Query) -> None:
        if query.driver is None:
            query.driver, query.is_fenced, query.in_doubt = self._driver(query), False, False
        try:
            if self.chance.random() < 0.08:
                raise Ended
            next(query.driver)
        except (Ended, CannotResume):
            query.driver = None

    def _driver(self, query: Query) -> Iterator[None]:
        """One run of a query. It may crash where it yields."""
        known: Group | None = None
        began, has_committed = len(query.planned), False
        tried: tuple[int, Group] | None = None
        while True:
            yield
            if query.noted == len(query.planned) and not self._plan(query):
                continue
            batch = query.planned[query.noted]
            yield
            batch = replace(batch, planned_before=batch.batch_id < began)
            known = dict(self.group) if known is None else known
            tried_on = tried[1] if tried is not None and tried[0] == batch.batch_id else None
            query.in_doubt = False
            if self._verdict(query, batch, known, tried_on, has_committed=has_committed) is Verdict.WRITE:
                offsets = offsets_to_commit(batch, None, query.name)
                if others := writers_before(batch, known, None, query.name):
                    self._fence(others)
                    if self._has_moved(known, offsets):
                        known = None
                        continue
                yield
                committing = changed_offsets(batch, offsets, known) if has_committed else offsets
                if self._has_moved(known, committing):
                    known = None
                    continue
                yield
                if batch.is_first_to_commit:
                    query.marks.add(mark_of("g", known, offsets))
                    yield
                tried = batch.batch_id, known
                if self.chance.random() < 0.1:
                    known = None  # it fails
                    continue
                self._commit(query, batch, committing)
                if self.chance.random() < 0.15:
                    known, query.in_doubt = None, True  # the answer is lost
                    continue
                known, has_committed = {**known, **committing}, True
            yield
            assert not set(_written_by(query, batch)) - set(query.written), "noted as done, and not written"
            query.noted += 1

    def _verdict(
        self, query: Query, batch: MicroBatch, known: Group, tried_on: Group | None, *, has_committed: bool
    ) -> Verdict:
        return judge(
            batch,
            known,
            batch_id_partition=None,
            group="g",
            on_new_checkpoint=NewCheckpoint.REFUSE,
            keeps_state=lambda: query.keeps_state,
            marks_left=lambda: query.marks,
            has_committed=has_committed,
            tried_on=tried_on,
        )

    def _plan(self, query: Query) -> bool:
        """False if there is nothing to read."""
        there = {partition: end for partition, end in self.ends.items() if partition in query.reads}
        before = query.planned[-1].end if query.planned else {}
        appeared = frozenset(there.keys() - before.keys())
        start = {**dict.fromkeys(appeared, 0), **before}
        if not query.planned and query.goes_on:
            start |= {p: min(self.group[p].offset, there[p]) for p in there if p in self.group}
        reads_nothing = query.keeps_state and bool(before) and self.chance.random() < 0.2
        if not there or (start == there and not appeared and not reads_nothing):
            return False
        end = {partition: self.chance.randint(start[partition], there[partition]) for partition in there}
        if reads_nothing:
            end = {**start}
        batch = MicroBatch(query.name, len(query.planned), "checkpoint", start, end, only_kafka=True)
        query.planned.append(replace(batch, appeared=appeared, is_first_to_read=not before, planned_ms=self.clock))
        return True

    def _fence(self, writers: set[str]) -> None:
        for query in self.queries:
            query.is_fenced |= query.name in writers

    def _has_moved(self, before: Group, offsets: Group) -> bool:
        return any(self.group.get(partition) != before.get(partition) for partition in offsets)

    def _commit(self, query: Query, batch: MicroBatch, offsets: Group) -> None:
        if query.is_fenced:
            raise Ended
        self.group.update(offsets)
        query.written.update(_written_by(query, batch))
        if self._may_be_written_twice(batch):
            query.written = Counter(set(query.written))
        assert not query.written or max(query.written.values()) == 1, "written twice"

    def _may_be_written_twice(self, batch: MicroBatch) -> bool:
        """What the page says of those who put the group back to what it was before a batch, or delete what it left."""
        if batch.is_first_to_commit:
            return self.consumer or self.deletions
        noted = {min(batch.end), *(p for p, end in batch.end.items() if (batch.start or {})[p] != end)}
        return self.deletions and noted <= batch.appeared


def _written_by(query: Query, batch: MicroBatch) -> Reads:
    """What it has read, or its number."""
    start = batch.start or {}
    read = Counter((p, offset) for p, end in batch.end.items() for offset in range(start[p], end))
    return Counter({("batch", batch.batch_id): 1}) if query.keeps_state and not read else Counter(read)


@pytest.mark.parametrize("deletions", [False, True], ids=["", "deletions"])
@pytest.mark.parametrize("consumer", [False, True], ids=["queries", "queries and a consumer"])
def test_whatever_comes_between_a_query_writes_all_it_notes_and_nothing_twice(consumer: bool, deletions: bool) -> None:
    noted = 0
    for seed in range(2000):
        history = History(seed, consumer=consumer, deletions=deletions)
        try:
            history.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        noted += sum(query.noted for query in history.queries)
    assert noted > 2000
