"""What readers are given: isolation levels, the list of aborted transactions, offsets by time, and the
administrator's view.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from tests.conformance.scenario import Name, Ref, Scenario, Step
from tests.conformance.steps import add_partitions, describe, end, fetch, init, list_offsets, produce, producers

FETCH_VERSIONS: Final = (4, 5, 7, 9, 10, 11, 12, 13, 15, 16, 17, 18)
START_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000


def interleaved() -> list[Step]:
    """A aborts, B commits, plain records between, C stays open."""
    return [
        init("A", "a"),
        init("B", "b"),
        init("C", "c"),
        add_partitions("A", "a", {"t": [0]}),
        add_partitions("B", "b", {"t": [0]}),
        produce("A", "a", count=2),
        produce("B", "b", count=2),
        produce(None, None),
        produce("A", "a", sequence=2),
        end("A", "a", commit=False),
        produce("B", "b", sequence=2),
        add_partitions("C", "c", {"t": [0]}),
        produce("C", "c"),
        end("B", "b"),
        produce(None, None, count=3),
    ]


def isolation() -> Scenario:
    steps = interleaved()
    steps += [fetch(committed=committed, version=version) for version in FETCH_VERSIONS for committed in (True, False)]
    steps += [fetch(offset) for offset in range(13)]
    steps += [
        list_offsets(committed=committed, version=version) for version in range(2, 12) for committed in (True, False)
    ]
    steps += [end("C", "c", commit=False), fetch(), fetch(5), fetch(9), list_offsets(committed=True)]
    return Scenario("isolation", steps, transaction_versions=(2,))


def several_segments() -> Scenario:
    """Transactions that reach over segments; the aborted list is collected from all that a fetch touches.

    Each batch is a day later than the one before and opens a segment of its own, until a marker with today's time is
    written.
    """
    days = itertools.count()

    def later() -> dict[str, Any]:
        return {"timestamp_ms": START_MS + next(days) * DAY_MS}

    steps = [init("A", "a"), init("B", "b"), add_partitions("A", "a", {"t": [0]}), produce("A", "a", batch=later())]
    for turn in range(3):
        steps += [
            add_partitions("B", "b", {"t": [0]}),
            produce("B", "b", sequence=turn * 6, count=3, batch=later()),
            produce("B", "b", sequence=turn * 6 + 3, count=3, batch=later()),
            end("B", "b", commit=turn == 1),
        ]
    steps += [produce("A", "a", sequence=1, batch=later()), end("A", "a", commit=False)]
    steps += [fetch(offset) for offset in range(25)]
    steps += [list_offsets(START_MS + day * DAY_MS, note=f"day {day}") for day in range(9)]
    return Scenario("several-segments", steps, topics={"t": (1, {"segment.ms": "3600000"})}, transaction_versions=(2,))


def filter_example() -> Scenario:
    """Six batches of two producers, of which a committed reader is to return the fourth and the sixth."""
    steps = [
        init("A", "a"),
        init("B", "b"),
        add_partitions("A", "a", {"t": [0]}),
        add_partitions("B", "b", {"t": [0]}),
        produce("A", "a"),
        produce("B", "b"),
        end("A", "a", commit=False),
        add_partitions("A", "a", {"t": [0]}),
        produce("A", "a", sequence=1),
        end("B", "b", commit=False),
        add_partitions("B", "b", {"t": [0]}),
        produce("B", "b", sequence=1),
        end("A", "a"),
        end("B", "b"),
        *(fetch(offset) for offset in range(8)),
    ]
    return Scenario("filter-example", steps, transaction_versions=(2,))


def fetch_errors() -> Scenario:
    steps = [produce(None, None, count=3)]
    for version in (4, 9, 12, 13, 16):
        steps += [
            fetch(3, version=version, note="at the end"),
            fetch(4, version=version, note="past the end"),
            fetch(-1, version=version, note="before the start"),
            fetch(partition=9, version=version, note="unknown partition"),
        ]
        if version >= 9:
            steps += [fetch(version=version, leader_epoch=epoch, note=f"leader epoch {epoch}") for epoch in (0, 1, 7)]
    steps += [
        fetch(max_bytes=1, note="one byte: the first batch all the same"),
        fetch(1, note="in the middle of a batch"),
        list_offsets(partition=9, note="unknown partition"),
        list_offsets(topic="missing", note="unknown topic"),
    ]
    return Scenario("fetch-errors", steps, transaction_versions=(2,))


def by_time() -> Scenario:
    """ListOffsets: special timestamps, and the first record at or after a time."""

    def at(*seconds: int) -> Step:
        times = [START_MS + second * 1000 for second in seconds]
        return produce(None, None, count=len(seconds), batch={"timestamps_ms": times})

    steps = [
        *(list_offsets(special, version=version, note="empty log") for special in (-1, -2) for version in (1, 7, 11)),
        list_offsets(-3, note="empty log"),
        list_offsets(START_MS, note="empty log"),
        at(10, 20, 15),
        at(50),
        at(30, 40),
        *(list_offsets(special, version=version) for version in range(1, 12) for special in (-1, -2)),
        *(list_offsets(-3, version=version) for version in range(7, 12)),
        *(list_offsets(special, version=version) for version in (8, 9, 10, 11) for special in (-4, -5)),
        *(list_offsets(START_MS + second * 1000, version=7, note=f"at {second} s") for second in range(0, 60, 5)),
        *(list_offsets(START_MS + 20_000, version=version) for version in range(1, 12)),
        list_offsets(-9, note="no such special timestamp"),
    ]
    return Scenario("by-time", steps, transaction_versions=(2,))


def records_deleted() -> Scenario:
    """DeleteRecords moves the start of the log, also past an open transaction."""

    def delete(offset: int, partition: int = 0, note: str = "") -> Step:
        partitions = [{"partition_index": partition, "offset": offset}]
        fields = {"topics": [{"name": Name("t"), "partitions": partitions}], "timeout": 10_000}
        return Step("delete_records", 2, fields, note=note or f"before {offset}")

    steps = [
        init("P", "x"),
        produce(None, None, count=4),
        add_partitions("P", "x", {"t": [0]}),
        produce("P", "x", count=2),
        produce(None, None, count=4),
        delete(2),
        list_offsets(-2),
        fetch(1, committed=False, note="before the start"),
        fetch(2, committed=False),
        delete(1, note="already gone"),
        delete(99, note="past the end"),
        delete(-5, note="negative"),
        delete(0, partition=9, note="unknown partition"),
        delete(5, note="past the start of the open transaction"),
        list_offsets(-2),
        list_offsets(committed=True),
        producers(),
        fetch(5),
        delete(-1, note="all up to the high watermark"),
        list_offsets(-2),
        list_offsets(committed=True),
        end("P", "x", commit=False),
        list_offsets(committed=True),
        fetch(10),
        fetch(10, committed=False),
        producers(),
    ]
    return Scenario("records-deleted", steps, topics={"t": 1}, transaction_versions=(2,))


def epochs() -> Scenario:
    """OffsetForLeaderEpoch."""

    def ask(epoch: int, version: int, current: int = -1, partition: int = 0) -> Step:
        entry: dict[str, Any] = {"partition": partition, "leader_epoch": epoch}
        if version >= 2:
            entry["current_leader_epoch"] = current
        fields: dict[str, Any] = {"topics": [{"topic": Name("t"), "partitions": [entry]}]}
        if version >= 3:
            fields["replica_id"] = -1
        return Step("offset_for_leader_epoch", version, fields, note=f"epoch {epoch}, current {current}")

    steps = [produce(None, None, count=3)]
    for version in (2, 3, 4):
        steps += [ask(epoch, version) for epoch in (-1, 0, 1)]
        steps += [ask(0, version, current) for current in (0, 1)]
        steps.append(ask(0, version, partition=9))
    return Scenario("leader-epochs", steps, transaction_versions=(2,))


def described() -> Scenario:
    """DescribeTransactions and DescribeProducers."""
    missing = Step(
        "describe_producers",
        0,
        {
            "topics": [
                {"name": Name("missing"), "partition_indexes": [0]},
                {"name": Name("t"), "partition_indexes": [0, 9]},
            ]
        },
        note="unknown topic and partition",
    )
    invalid = Step(
        "describe_producers", 0, {"topics": [{"name": "no such/name", "partition_indexes": [0]}]}, note="bad name"
    )
    steps = [
        describe("unknown"),
        describe(""),
        describe(),
        init("P", "x"),
        init("Q", "y"),
        add_partitions("P", "x", {"t": [0, 1]}),
        describe("x", "y", "unknown"),
        producers(note="nothing written"),
        produce("P", "x", count=2),
        produce("Q", None, count=2),
        producers(),
        missing,
        invalid,
    ]
    return Scenario("described", steps)


def listed() -> Scenario:
    """ListTransactions with every filter; the pattern keeps other tests' ids out where there is no other filter."""

    def ask(version: int, **filters: Any) -> Step:
        fields = {"state_filters": [], "producer_id_filters": [], **filters}
        return Step("list_transactions", version, fields, note=" ".join(sorted(filters)))

    ours = [Ref("A.id"), Ref("B.id"), Ref("C.id")]
    steps = [
        init("A", "a"),
        init("B", "b"),
        init("C", "c"),
        add_partitions("B", "b", {"t": [0]}),
        add_partitions("C", "c", {"t": [0]}),
        end("C", "c"),
    ]
    for version in (0, 1, 2):
        steps += [
            ask(version, producer_id_filters=ours),
            ask(version, producer_id_filters=ours, state_filters=["Ongoing"]),
            ask(version, producer_id_filters=ours, state_filters=["Ongoing", "Empty", "Nonsense", "ongoing", "Dead"]),
            ask(version, producer_id_filters=ours, state_filters=["Nonsense"]),
            ask(version, producer_id_filters=[Ref("A.id"), 987_654_321]),
        ]
        if version >= 1:
            steps += [ask(version, producer_id_filters=ours, duration_filter=value) for value in (-1, 0, 60_000)]
    steps += [
        ask(2, producer_id_filters=ours, transactional_id_pattern=pattern)
        for pattern in (".*-b", ".*-[ab]", "nobody", "", None, "(", ".*-B")
    ]
    return Scenario("listed", steps)


SCENARIOS: Final = (
    isolation(),
    several_segments(),
    filter_example(),
    fetch_errors(),
    by_time(),
    records_deleted(),
    epochs(),
    described(),
    listed(),
)
